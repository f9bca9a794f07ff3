"""One order of refusals for all intentions: of two things that stand against a caller the same one is told, everywhere.

Each intention comes with what can stand against it; `spoil` makes that hold in the view, or in the intention. For every
pair that can hold at once the earlier of the two comes out, in the very words it has when it stands alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any, NamedTuple

import msgspec
import pytest

from backstay.errors import (
    AlreadyExistsError,
    BackstayError,
    ConflictError,
    CorruptionError,
    FencedError,
    InDoubtError,
    InvalidInputError,
    LeaseHeldError,
    NotFoundError,
)
from backstay.ids import MAX_SEQUENCE
from backstay.port import Decide, TagRow, Unreadable, View
from backstay.rules import branches, deletion, runs
from backstay.rules.commit import commit
from backstay.rules.refusals import Reason
from tests.rules.shelf import (
    NOW_US,
    SESSION,
    UID,
    batch_of,
    call,
    checkpoint,
    claim,
    done,
    entering,
    head,
    lane,
    lease,
    line,
    lost,
    plan,
    view_of,
)


class Scene:
    """What a rule sees, and what is wanted of it."""

    def __init__(self, view: View, **options: Any) -> None:
        self.view = view
        self.options = options

    def replace_lane(self, name: str = "main", **fields: Any) -> None:
        if name in self.view.lanes:
            changed = msgspec.structs.replace(self.view.lanes[name], **fields)
            self.view.lanes = {**self.view.lanes, name: changed}

    def replace_session(self, **fields: Any) -> None:
        if self.view.session is not None:
            self.view.session = msgspec.structs.replace(self.view.session, **fields)


Spoil = Callable[[Scene], None]


class Intention(NamedTuple):
    name: str
    scene: Callable[[], Scene]
    rule: Callable[[Scene], Decide]
    spoils: dict[Reason, Spoil]
    # Pairs of which one takes away what the other is about.
    apart: frozenset[frozenset[Reason]] = frozenset()


def apart(*pairs: tuple[Reason, Reason]) -> frozenset[frozenset[Reason]]:
    return frozenset(frozenset(pair) for pair in pairs)


R = Reason


# what can stand against somebody


def no_session(scene: Scene) -> None:
    scene.view.session = None
    scene.view.lanes, scene.view.tags, scene.view.checkpoints = {}, {}, {}


def is_held(scene: Scene) -> None:
    for name in scene.view.lanes:
        scene.replace_lane(name, claim=claim())
    scene.view.live = set(scene.view.lanes)


def is_damaged(scene: Scene) -> None:
    scene.view.pending = {"main": [*scene.view.pending.get("main", ()), lost((5, 2, 7))]}


def is_in_doubt(scene: Scene) -> None:
    scene.view.pending = {"main": [*scene.view.pending.get("main", ()), call("a", (5, 2, 8))]}


def is_a_tag(scene: Scene) -> None:
    scene.view.lanes = {}
    scene.view.tags = {"main": TagRow("main", 1)}
    scene.options["expect"] = None


def is_elsewhere(scene: Scene) -> None:
    scene.options["expect"] = head(7).id


def id_is_taken(scene: Scene) -> None:
    scene.options["id"] = "turn 7"
    scene.view.foreign = {"turn 7": 1}


def is_full(scene: Scene) -> None:
    scene.replace_session(sequence=MAX_SEQUENCE)


def is_fenced(scene: Scene) -> None:
    scene.replace_lane(token=2)


def no_lane(scene: Scene) -> None:
    scene.view.lanes = {}


# the intentions


def session_scene(**options: Any) -> Scene:
    rows = line(sequence=2, checkpoints=2, lanes=1), lane(at=2, run=5, token=1), checkpoint(2, 1)
    return Scene(view_of(*rows), **options)


def running_scene(**options: Any) -> Scene:
    scene = session_scene(**options)
    scene.replace_lane(entered=True, unfinished=True, claim=claim())
    scene.view.live = {"main"}
    return scene


COMMIT: dict[Reason, Spoil] = {R.ID_TAKEN: id_is_taken, R.MOVED: is_elsewhere, R.FULL: is_full}
PENDING: dict[Reason, Spoil] = {R.DAMAGED: is_damaged, R.IN_DOUBT: is_in_doubt}


def commit_scene(**options: Any) -> Scene:
    return session_scene(**({"expect": head(2).id} | options))


def held_scene(**options: Any) -> Scene:
    scene = commit_scene(**options)
    scene.replace_lane(claim=claim(), purpose="files")
    return scene


def a_commit(scene: Scene) -> Decide:
    return commit(plan(**scene.options))


def naming(rule: Any) -> Callable[[Scene], Decide]:
    return lambda _: rule(SESSION, "new", sequence=2, id_=checkpoint(2).id)


def new_is_taken(scene: Scene) -> None:
    scene.view.tags = {"new": TagRow("new", 1)}


def no_checkpoint(scene: Scene) -> None:
    scene.view.checkpoints = {}


def checkpoint_is_damaged(scene: Scene) -> None:
    scene.view.checkpoints = {2: Unreadable(2, "checkpoint #2 is damaged")}


def run_is_over(scene: Scene) -> None:
    scene.options["expect_token"] = 7


def branch_is_missing(scene: Scene) -> None:
    scene.view.lanes, scene.view.live = {}, set()


def entering_tag(scene: Scene) -> None:
    scene.view.lanes, scene.view.tags = {}, {"main": TagRow("main", 1)}


def with_a_call(scene: Scene) -> Scene:
    scene.view.calls = {(5, 2, 0): call("c", (5, 2, 0))}
    return scene


def call_has_changed(scene: Scene) -> None:
    scene.view.calls = {}


# a deletion of 2 and 3, of 1 - 2 - 3 with a branch on 3, and 4 on 2 that stays


def deletion_scene() -> Scene:
    points = checkpoint(1, keyframe=True), checkpoint(2, 1), checkpoint(3, 2), checkpoint(4, 2)
    view = view_of(line(sequence=4, checkpoints=4, lanes=1), *points, lane(at=3, run=5))
    view.children, view.pending = {2: [3, 4], 3: []}, {"main": []}
    return Scene(view)


def a_deletion(scene: Scene) -> Decide:
    rewrites = (deletion.Rewrite(4, scene.options.get("parent", 1), keyframe=b"keyframe"),)
    return deletion.delete_checkpoints(deletion.Deletion(SESSION, UID, (2, 3), rewrites, (1,)))


def one_is_gone(scene: Scene) -> None:
    scene.view.checkpoints = {at: row for at, row in scene.view.checkpoints.items() if at != 2}


def another_child(scene: Scene) -> None:
    scene.view.children = {2: [3, 4, 5], 3: []}


def is_tagged(scene: Scene) -> None:
    scene.view.tags = {"release": TagRow("release", 2)}


def nothing_before(scene: Scene) -> None:
    scene.options["parent"] = None
    if 2 in scene.view.checkpoints:
        scene.view.checkpoints = {**scene.view.checkpoints, 2: checkpoint(2)}


def was_touched(scene: Scene) -> None:
    scene.options["touched"] = 1


def beside_is_there(scene: Scene) -> None:
    scene.view.beside = line(id="imported")


ARRIVING = line(id=UID.hex(), hidden=True)

INTENTIONS = [
    Intention(
        "commit by somebody else",
        commit_scene,
        a_commit,
        {R.NAME_TAKEN: is_a_tag, R.HELD: is_held, **PENDING, **COMMIT},
        apart((R.NAME_TAKEN, R.HELD)),
    ),
    Intention(
        "commit by a run",
        lambda: running_scene(lease=lease(), expect=head(2).id),
        a_commit,
        {R.FENCED: is_fenced, **COMMIT},
    ),
    Intention(
        "commit by a run whose branch became a tag",
        lambda: running_scene(lease=lease(), expect=head(2).id),
        a_commit,
        {R.NAME_TAKEN: is_a_tag, **COMMIT},
    ),
    Intention(
        "commit by whoever holds the branch",
        lambda: held_scene(lease=lease(purpose="files")),
        a_commit,
        {R.FENCED: is_fenced, **PENDING, **COMMIT},
    ),
    *[
        Intention(
            name,
            session_scene,
            naming(rule),
            {
                R.NO_SESSION: no_session,
                R.NO_CHECKPOINT: no_checkpoint,
                R.NAME_TAKEN: new_is_taken,
                R.DAMAGED: checkpoint_is_damaged,
            },
            apart((R.NO_CHECKPOINT, R.DAMAGED)),
        )
        for name, rule in (("fork", branches.fork), ("tag", branches.tag))
    ],
    Intention(
        "untag",
        session_scene,
        lambda _: branches.untag(SESSION, "old"),
        {R.NO_SESSION: no_session, R.NO_TAG: lambda _: None},
    ),
    Intention(
        "delete_branch",
        session_scene,
        lambda _: branches.delete_branch(SESSION, "main"),
        {R.NO_SESSION: no_session, R.NO_BRANCH: no_lane, R.HELD: is_held},
        apart((R.NO_BRANCH, R.HELD)),
    ),
    Intention(
        "enter",
        session_scene,
        lambda scene: runs.enter(entering(**scene.options)),
        {
            R.NO_BRANCH: branch_is_missing,
            R.NAME_TAKEN: entering_tag,
            R.HELD: is_held,
            R.DAMAGED: is_damaged,
            R.MOVED: run_is_over,
        },
        apart((R.NO_BRANCH, R.NAME_TAKEN), (R.NO_BRANCH, R.HELD), (R.NAME_TAKEN, R.HELD)),
    ),
    Intention(
        "hold",
        session_scene,
        lambda _: runs.hold(entering(), "files"),
        {R.NO_SESSION: no_session, R.NO_BRANCH: no_lane, R.HELD: is_held},
        apart((R.NO_BRANCH, R.HELD)),
    ),
    Intention("renew", running_scene, lambda _: runs.renew(lease()), {R.FENCED: is_fenced}),
    Intention("leave", running_scene, lambda _: runs.leave(lease(), status=None, reason=None), {R.FENCED: is_fenced}),
    Intention(
        "journal",
        lambda: with_a_call(running_scene()),
        lambda _: runs.journal(lease(), done("c", (5, 2, 0)), at=(5, 2, 0)),
        {R.FENCED: is_fenced, R.CALL_MOVED: call_has_changed},
    ),
    Intention(
        "settle",
        lambda: with_a_call(session_scene()),
        lambda _: runs.settle(SESSION, "main", before=call("c", (5, 2, 0)), after=done("c", (5, 2, 0))),
        {R.NO_SESSION: no_session, R.CALL_MOVED: call_has_changed},
    ),
    Intention(
        "abandon",
        session_scene,
        lambda _: runs.abandon(SESSION, "main", reason="enough", at_us=NOW_US, nonce="n"),
        {R.NO_SESSION: no_session, R.NO_BRANCH: no_lane, R.HELD: is_held},
        apart((R.NO_BRANCH, R.HELD)),
    ),
    Intention(
        "delete_checkpoints",
        deletion_scene,
        a_deletion,
        {
            R.NO_SESSION: no_session,
            R.NO_CHECKPOINT: one_is_gone,
            R.HELD: is_held,
            R.DAMAGED: is_damaged,
            R.IN_DOUBT: is_in_doubt,
            R.CHANGED: another_child,
            R.TAGGED: is_tagged,
            R.LAST_OF_BRANCH: nothing_before,
        },
    ),
    Intention(
        "delete a session",
        session_scene,
        lambda scene: deletion.hide(SESSION, touched=scene.options.get("touched")),
        {R.NO_SESSION: no_session, R.HELD: is_held, R.CHANGED: was_touched},
    ),
    Intention(
        "begin an import",
        lambda: Scene(view_of()),
        lambda _: deletion.arrive(ARRIVING),
        {R.SESSION_EXISTS: beside_is_there, R.CHANGED: lambda scene: setattr(scene.view, "session", line())},
    ),
    Intention(
        "end an import",
        lambda: Scene(view_of(ARRIVING)),
        lambda _: deletion.show(line(id="imported"), last_run=0),
        {R.SESSION_EXISTS: beside_is_there, R.CHANGED: lambda scene: setattr(scene.view, "session", None)},
    ),
]


def refused(intention: Intention, *reasons: Reason, reverse: bool = False) -> tuple[type, str, str]:
    """What a caller is told where these things hold."""
    scene = intention.scene()
    for reason in sorted(reasons, reverse=reverse):
        intention.spoils[reason](scene)
    with pytest.raises(BackstayError) as caught:
        intention.rule(scene)(scene.view)
    return type(caught.value), caught.value.args[0], caught.value.hint


def pairs() -> Iterator[Any]:
    for intention in INTENTIONS:
        for pair in combinations(sorted(intention.spoils), 2):
            if frozenset(pair) not in intention.apart:
                yield pytest.param(intention, *pair, id=f"{intention.name}: {pair[0].name} before {pair[1].name}")


@pytest.mark.parametrize(("intention", "first", "second"), list(pairs()))
def test_of_two_things_that_stand_against_a_caller_the_earlier_is_told(
    intention: Intention, first: Reason, second: Reason
) -> None:
    alone = refused(intention, first)
    assert alone != refused(intention, second), "the two must be told apart for this to mean anything"
    assert refused(intention, first, second) == alone
    assert refused(intention, first, second, reverse=True) == alone


WORDS: dict[Reason, tuple[type[BackstayError], str]] = {
    R.NO_SESSION: (NotFoundError, "there is no session 's'"),
    R.SESSION_EXISTS: (AlreadyExistsError, "there is already a session 'imported'"),
    R.NO_BRANCH: (NotFoundError, "session 's' has no branch 'main'"),
    R.NO_TAG: (NotFoundError, "session 's' has no tag 'old'"),
    R.NO_CHECKPOINT: (NotFoundError, "session 's' has no checkpoint "),
    R.NAME_TAKEN: (AlreadyExistsError, "there is already a branch or tag named "),
    R.FENCED: (FencedError, "session 's', branch 'main': this run has lost its lease to another"),
    R.HELD: (LeaseHeldError, "session 's', branch 'main' is being run by process 4711 on far.example, which holds "),
    R.DAMAGED: (CorruptionError, "session 's'"),
    R.IN_DOUBT: (InDoubtError, "session 's', branch 'main': it is not known whether these calls happened: pay (a)"),
    R.ID_TAKEN: (ConflictError, "session 's': there is already a checkpoint 'turn 7'"),
    R.MOVED: (ConflictError, "session 's'"),
    R.CALL_MOVED: (ConflictError, "call c is no longer as it was: it has been decided, or a run went on"),
    R.CHANGED: (ConflictError, "session "),
    R.TAGGED: (InvalidInputError, "the checkpoint is tagged 'release'"),
    R.LAST_OF_BRANCH: (InvalidInputError, "branch 'main' has no other checkpoint to go back to"),
    R.FULL: (InvalidInputError, "session 's' has no numbers left for another checkpoint or run"),
}


@pytest.mark.parametrize(
    ("intention", "reason"),
    [
        pytest.param(intention, reason, id=f"{intention.name}: {reason.name}")
        for intention in INTENTIONS
        for reason in intention.spoils
    ],
)
def test_each_thing_has_its_words_and_its_class(intention: Intention, reason: Reason) -> None:
    kind, said, hint = refused(intention, reason)
    expected, words = WORDS[reason]
    assert kind is expected
    assert said.startswith(words)
    assert hint


@pytest.mark.parametrize("intention", INTENTIONS, ids=lambda intention: intention.name)
def test_where_nothing_stands_against_it_an_intention_is_carried_out(intention: Intention) -> None:
    if intention.name != "untag":  # where there is no such tag
        scene = intention.scene()
        batch_of(intention.rule(scene)(scene.view))


@pytest.mark.parametrize("intention", INTENTIONS, ids=lambda intention: intention.name)
def test_all_that_stands_against_a_caller_at_once_gives_the_first(intention: Intention) -> None:
    reasons = sorted(intention.spoils)
    while clash := next((pair for pair in combinations(reasons, 2) if frozenset(pair) in intention.apart), None):
        reasons.remove(clash[1])
    assert refused(intention, *reasons) == refused(intention, reasons[0])


def test_this_is_the_order() -> None:
    """Here by name, because the pairs above take it from where it is kept: a caller may rely on it."""
    assert [reason.name for reason in sorted(Reason)] == [
        *("NO_SESSION", "SESSION_EXISTS", "NO_BRANCH", "NO_TAG", "NO_CHECKPOINT", "NAME_TAKEN"),
        *("FENCED", "HELD", "DAMAGED", "IN_DOUBT", "ID_TAKEN", "MOVED", "CALL_MOVED", "CHANGED"),
        *("TAGGED", "LAST_OF_BRANCH", "FULL"),
    ]


def test_every_reason_is_tried() -> None:
    assert {reason for intention in INTENTIONS for reason in intention.spoils} == set(Reason)


def test_the_same_thing_is_told_in_the_same_words_whatever_was_wanted() -> None:
    told: dict[Reason, set[tuple[type, str]]] = {}
    for intention in INTENTIONS:
        for reason in intention.spoils:
            kind, _, hint = refused(intention, reason)
            told.setdefault(reason, set()).add((kind, hint))
    several = {reason for reason, words in told.items() if len(words) > 1}
    # A branch that moved and a recovery that came too late need other advice; so do a damaged call and a checkpoint.
    assert several == {Reason.MOVED, Reason.DAMAGED}
    assert {kind for kind, _ in told[Reason.DAMAGED]} == {next(iter(told[Reason.DAMAGED]))[0]}


def test_a_session_that_was_made_again_is_told_before_anything_about_the_new_one() -> None:
    scene = deletion_scene()
    for spoil in (one_is_gone, is_held, is_tagged):
        spoil(scene)
    scene.replace_session(uid=b"o" * 16)
    with pytest.raises(BackstayError, match="deleted and made again"):
        a_deletion(scene)(scene.view)
