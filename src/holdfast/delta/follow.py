"""A state followed along its records, with its digest known at every step.

Who checks a long history cannot rebuild and hash each state from nothing. Here a delta is done to the state before it,
and only the branches of the digest tree that it touched are made anew. Records come from outside: whatever an op does,
the tree is that of the state it left behind, or it is a CorruptionError. Pure: no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.codec import Path
from holdfast.delta.record import DEL, LIST, PATCH, SET, SPLICE, Record, apply, rebuild
from holdfast.digest import DictTree, ListTree, Tree, leaf_of, tree_of
from holdfast.errors import CorruptionError, InvalidInputError
from holdfast.model import MAX_DEPTH, State


class Followed:
    """A state and its digest tree. `follow` moves both on, in place; after an error neither can be used."""

    __slots__ = ("state", "tree")

    def __init__(self, state: State) -> None:
        self.state = state
        self.tree = _root(state)

    @property
    def digest(self) -> bytes:
        """The state's digest."""
        return self.tree.digest

    @property
    def size_bytes(self) -> int:
        """What a plain copy of the state would weigh."""
        return self.tree.size

    def follow(self, record: Record, pieces: Mapping[bytes, bytes]) -> None:
        """Do a delta to the state."""
        for op in apply(self.state, record, pieces):
            try:
                tree = _renewed(self.tree, self.state, op, ())
            except InvalidInputError as error:
                raise _unfit(str(error)) from error
            except (LookupError, TypeError, ValueError) as error:
                raise _unfit("an op leads where nothing is") from error
            if not isinstance(tree, DictTree):
                raise _unfit("the keys of a state are text")
            self.tree = tree


def stand_on(record: Record, pieces: Mapping[bytes, bytes]) -> Followed:
    """Begin with a whole copy."""
    return Followed(rebuild([record], pieces).state)


def _root(state: State) -> DictTree:
    try:
        tree = _tree(state, ())
    except InvalidInputError as error:
        raise _unfit(str(error)) from error
    if not isinstance(tree, DictTree):
        raise _unfit("the keys of a state are text")
    return tree


def _renewed(tree: Tree, value: Any, op: list[Any], path: Path) -> Tree:
    """The tree of the value that stands at `path`, now that the op is done somewhere in it."""
    way = op[1]
    if len(path) == len(way):
        return _changed(tree, value, op, path)
    step = way[len(path)]
    here = (*path, step)
    if isinstance(tree, DictTree):
        return tree.replace({step: _renewed(tree.children[step], value[step], op, here)}, ())
    if isinstance(tree, ListTree):
        return tree.splice(_index(step, len(value)), 1, [leaf_of(value[step], here)])
    return _tree(value, path)


def _changed(tree: Tree, value: Any, op: list[Any], path: Path) -> Tree:
    """The same, where the value is the container that the op changed."""
    code = op[0]
    if code == SPLICE and type(value) is not list:
        raise _unfit("a splice of what is not a list")
    if isinstance(tree, ListTree) and code == SPLICE:
        _, _, start, drop, count = op
        if type(start) is not int or type(drop) is not int or type(count) is not int:
            raise _unfit("a splice counts in whole numbers")
        leaves = [leaf_of(value[at], (*path, at)) for at in range(start, start + count)]
        return _counted(tree.splice(start, drop, leaves), value)
    if isinstance(tree, ListTree) and code in (SET, PATCH, LIST):
        at = _index(op[2], len(value))
        return _counted(tree.splice(at, 1, [leaf_of(value[at], (*path, at))]), value)
    if isinstance(tree, DictTree) and code in (SET, PATCH, LIST) and type(op[2]) is str:
        return tree.replace({op[2]: _tree(value[op[2]], (*path, op[2]))}, ())
    if isinstance(tree, DictTree) and code == DEL and type(op[2]) is str:
        return tree.replace({}, (op[2],))
    return _tree(value, path)


def _index(step: object, count: int) -> int:
    # True and -1 find an item too, but not the one that a tree would find.
    if type(step) is not int or not 0 <= step < count:
        raise _unfit("an op counts from the wrong end of a list")
    return step


def _counted(tree: ListTree, value: list[Any]) -> ListTree:
    if tree.count != len(value):
        raise _unfit("a list has another length than its ops say")
    return tree


def _tree(value: Any, path: Path) -> Tree:
    _refuse_deep(value, path)
    return tree_of(value, path)


def _refuse_deep(value: Any, path: Path) -> None:
    """Dicts of dicts, which are hashed level by level; what is hashed in one piece is looked at when it is encoded."""
    if type(value) is not dict and type(value) is not list:
        return
    if len(path) > MAX_DEPTH:
        message = f"a state is nested deeper than {MAX_DEPTH} levels"
        raise CorruptionError(message)
    if type(value) is dict:
        for key, item in value.items():
            if type(item) is dict or type(item) is list:
                _refuse_deep(item, (*path, key))


def _unfit(what: str) -> CorruptionError:
    return CorruptionError(f"a record does not fit its state: {what}")
