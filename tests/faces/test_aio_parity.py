"""The two faces name by name: what the sync face can do and the async one cannot, or does otherwise, fails here."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import backstay
from backstay import aio

TWINS: list[tuple[type, type]] = [
    (backstay.Store, aio.AsyncStore),
    (backstay.Session, aio.AsyncSession),
    (backstay.Run, aio.AsyncRun),
]

# Public for the other rooms of the library only: the async face goes through the sync one for these.
BETWEEN_ROOMS = {"refuse_closed", "begin_edit", "begin", "enclosed", "end_with", "enter", "leave"}
BETWEEN_ROOMS |= {"begin_wait", "begin_receive", "begin_sleep", "begin_approval", "approved_args"}
BETWEEN_ROOMS |= {"hold", "left", "leave_waiting", "end_waiting", "enter_ended"}
BETWEEN_ROOMS |= {"begin_child", "end_child", "below"}

# What does no I/O has nothing to await.
PLAIN = {"session", "on", "run", "calling", "child", "Run.append", "use", "halt", "fail", "pause", "Run.cancel"}

RENAMED = {
    "Session": "AsyncSession",
    "Store": "AsyncStore",
    "Run": "AsyncRun",
    "Iterator[Calling]": "AsyncIterator[AsyncCalling]",
    "Iterator[Run]": "AsyncIterator[AsyncRun]",
}


def methods(face: type) -> dict[str, Callable[..., Any]]:
    found = dict(inspect.getmembers(face, inspect.isfunction))
    return {name: fn for name, fn in found.items() if not name.startswith("_") and name not in BETWEEN_ROOMS}


def cases() -> list[tuple[str, type, type]]:
    return [(name, plain, awaited) for plain, awaited in TWINS for name in methods(plain)]


def awaited_return(annotation: str) -> str:
    """What the async face must say it returns, for what the sync face says."""
    return RENAMED.get(annotation, annotation.replace("Iterator[", "AsyncIterator["))


@pytest.mark.parametrize(("plain", "awaited"), TWINS)
def test_whoever_awaits_misses_no_method_and_is_offered_no_other(plain: type, awaited: type) -> None:
    assert set(methods(plain)) == set(methods(awaited))


@pytest.mark.parametrize(("name", "plain", "awaited"), cases())
def test_a_call_moved_to_the_other_face_means_the_same(name: str, plain: type, awaited: type) -> None:
    ours, theirs = (inspect.signature(methods(face)[name]) for face in (plain, awaited))
    # Names, order, kinds, defaults and annotations: Parameter compares them all.
    assert list(ours.parameters.values()) == list(theirs.parameters.values())
    assert awaited_return(ours.return_annotation) == theirs.return_annotation


@pytest.mark.parametrize(("name", "plain", "awaited"), cases())
def test_everything_that_touches_the_disk_is_awaited(name: str, plain: type, awaited: type) -> None:
    ours, theirs = methods(plain)[name], methods(awaited)[name]
    iterates = inspect.signature(ours).return_annotation.startswith("Iterator[")
    assert inspect.iscoroutinefunction(theirs) is (not PLAIN & {name, f"{plain.__name__}.{name}"} and not iterates)


def test_opening_takes_the_same_arguments() -> None:
    ours, theirs = (inspect.signature(fn).parameters for fn in (backstay.open, aio.open))
    assert list(ours.values()) == list(theirs.values())


def test_a_function_that_takes_a_store_is_not_forgotten() -> None:
    takes_store = {
        name
        for name in backstay.__all__
        if inspect.isfunction(fn := getattr(backstay, name))
        and any(p.annotation in ("Store", backstay.Store) for p in inspect.signature(fn).parameters.values())
    }
    assert takes_store <= set(aio.__all__)


def test_what_a_session_knows_of_itself_can_be_asked_of_either(tmp_path: Path) -> None:
    with backstay.open(tmp_path / "store.db") as store:
        known = {name for name in vars(store.session("s", agent="a")) if not name.startswith("_")}
    assert known
    assert all(isinstance(inspect.getattr_static(aio.AsyncSession, name, None), property) for name in known)


@pytest.mark.parametrize("name", aio.__all__)
def test_help_on_every_name_of_the_async_face_says_something(name: str) -> None:
    assert inspect.getdoc(getattr(aio, name))
