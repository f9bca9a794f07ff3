"""Lanes: no two branches are drawn over one another, and each line ends where its branch began."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from backstay.graph_layout import Layout, Node, lay_out


def test_a_branch_has_a_lane_of_its_own_until_it_joins() -> None:
    nodes = [
        Node("e", "c", "main"),
        Node("d", "b", "try"),
        Node("c", "a", "main"),
        Node("b", "a", "try"),
        Node("a", None, "main"),
    ]
    layout = lay_out(nodes)
    assert layout.lanes == (0, 1, 0, 1, 0)
    trunk, side = layout.strands
    assert (trunk.rows, trunk.fork, trunk.goes_on) == ((0, 2, 4), None, False)
    assert (side.rows, side.fork) == ((1, 3), 4)


def test_a_lane_is_used_again_once_its_branch_has_joined() -> None:
    nodes = [Node("d", "c", "late"), Node("c", "b", "main"), Node("x", "a", "early"), Node("b", "a", "main")]
    nodes.append(Node("a", None, "main"))
    assert lay_out(nodes).lanes == (1, 0, 1, 0, 0)


def test_a_branch_that_was_made_again_under_its_name_is_another_line() -> None:
    nodes = [Node("d", "b", "try"), Node("c", "a", "try"), Node("b", "a", "main"), Node("a", None, "main")]
    layout = lay_out(nodes)
    assert [strand.rows for strand in layout.strands if strand.branch == "try"] == [(0,), (1,)]


def test_branches_beyond_the_last_lane_share_it_without_lines() -> None:
    nodes = [Node(f"n{n}", "root", f"b{n}") for n in range(30)] + [Node("root", None, "main")]
    layout = lay_out(nodes, max_lanes=12)
    assert layout.width == 12
    assert len(layout.folded) == 30 - 11
    assert max(layout.lanes) == 11


def test_a_history_that_goes_on_below_says_so() -> None:
    assert lay_out([Node("b", "gone", "main")]).strands[0].goes_on
    assert lay_out([]) == Layout((), (), 1, ())


@st.composite
def histories(draw: st.DrawFn) -> list[Node]:
    nodes: list[Node] = []
    heads: dict[str, str | None] = {"main": None}
    for n in range(draw(st.integers(1, 25))):
        branch = draw(st.sampled_from(["main", "a", "b", "c", "d"]))
        if branch not in heads:
            heads[branch] = draw(st.sampled_from(nodes)).id if nodes else None
        nodes.insert(0, Node(f"n{n}", heads[branch], branch))
        heads[branch] = f"n{n}"
    return nodes[: draw(st.integers(1, len(nodes)))]


@given(histories())
def test_no_line_is_drawn_over_another(nodes: list[Node]) -> None:
    layout = lay_out(nodes)
    taken: dict[tuple[int, int], str] = {}
    for strand in layout.strands:
        assert not strand.folded
        last = strand.fork - 1 if strand.fork is not None else len(nodes) - 1 if strand.goes_on else strand.rows[-1]
        for row in range(strand.rows[0], last + 1):
            assert taken.setdefault((strand.lane, row), strand.branch) == strand.branch
    assert sorted(row for strand in layout.strands for row in strand.rows) == list(range(len(nodes)))
