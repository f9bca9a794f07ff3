"""The contract can fail: a backend that breaks one promise is noticed by the test that is named for it."""

import time
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest

from backstay import port
from backstay.errors import CorruptionError, UnavailableError
from backstay.port import Ask, Kind, SessionRow, View
from tests.backends.dict_backend import DictBackend, Moment, One, name_of, number
from tests.backends.test_dict_backend import TestDict as Contract

read, write, apply, scan = DictBackend.read, DictBackend.write, DictBackend._apply, DictBackend.scan
fill, row_of = One.fill, One.row


def write_before_looking_for_blobs(self: Any, draft: Moment, ask: Ask, batch: Any) -> set[bytes]:
    try:
        return apply(self, draft, ask, batch)
    except port.BlobsAbsentError:
        rows = tuple([row for row in batch.puts if not getattr(row, "refs", None)])
        apply(self, Moment(self.disk.kept), ask, port.Batch(rows))
        raise


def decide_before_the_lock(self: Any, ask: Ask, decide: Any) -> View:
    view, batch = port.decided(self.read, ask, decide)
    time.sleep(0.001)
    return write(self, ask, lambda _view: batch) if batch.puts or batch.drops else view


def refuse_on_a_kept_view(self: Any, ask: Ask, decide: Any) -> View:
    kept = self.__dict__.setdefault("views", {})
    if ask in kept:
        decide(kept[ask])
    view = write(self, ask, decide)
    kept[ask] = read(self, ask)
    return view


def keep_to_itself(self: Any, ask: Ask, decide: Any) -> View:
    if not hasattr(self, "shared"):
        self.shared, self.disk = self.disk, type(self.disk)()
        self.disk.kept = dict(self.shared.kept)
    return write(self, ask, decide)


def read_in_two_moments(self: Any, ask: Ask) -> View:
    first = read(self, ask)
    time.sleep(0.0005)
    second = read(self, ask)
    second.lanes = first.lanes or second.lanes
    return second


def number_by_what_is_here(self: Any, ask: Ask) -> View:
    view = read(self, ask)
    view.fresh = 1 + max([one.line.touched for one in self._now().sessions()], default=0)
    return view


def never_wait(self: Any, ask: Ask, decide: Any) -> View:
    if not self.disk.__dict__.setdefault("busy", set()):
        self.disk.busy.add(1)
        try:
            time.sleep(0.001)
            return write(self, ask, decide)
        finally:
            self.disk.busy.clear()
    raise UnavailableError("busy")


def remember_who_lives(self: Any, ask: Ask) -> View:
    view = read(self, ask)
    kept = self.__dict__.setdefault("lives", {})
    view.live = kept.setdefault(ask.session, view.live) if view.live or ask.session in kept else view.live
    return view


def rename_without_the_rows(self: Any, draft: Moment, ask: Ask, batch: Any) -> set[bytes]:
    if any([isinstance(row, SessionRow) and row.id != ask.session for row in batch.puts]):
        draft.kept.pop(name_of(ask.hidden, ask.session))
    return apply(self, draft, ask, batch)


def release_at_once(self: Any, draft: Moment, ask: Ask, batch: Any) -> set[bytes]:
    for ref in apply(self, draft, ask, batch):
        draft.kept.pop(b"b" + ref, None)
    return set()


def skip_what_is_damaged(self: Any, kind: Kind, kept: Any) -> Any:
    row = row_of(self, kind, kept)
    return None if isinstance(row, port.Unreadable) else row


def look_again_in_vain(look: Any, ask: Ask, decide: Any) -> Any:
    view = look(ask)
    batch = decide(view)
    batch = decide(view) if isinstance(batch, port.More) else batch
    view.answer = batch.answer
    return view, batch


def as_they_came(self: Any, session: str, kind: Kind, **page: Any) -> list[Any]:
    rows = scan(self, session, kind, **page)
    return sorted(rows, key=lambda row: str(port.rows.key_of(row)))


def call_not_made(self: Any, run: int, journal: int) -> list[Any]:
    rows = [row_of(self, Kind.CALL, kept) for kept in self.all(Kind.CALL, (run, journal))]
    return [row for row in rows if isinstance(row, port.CallRow)]


def folded(hidden: bool, id_: str) -> bytes:
    return b"i" + bytes([hidden]) + unicodedata.normalize("NFC", id_).encode()


def short_number(value: int) -> bytes:
    return str(value).encode()


def words_of_a_driver(self: Any, ask: Ask, decide: Any) -> View:
    try:
        return write(self, ask, decide)
    except CorruptionError:
        raise
    except Exception as error:
        raise type(error)(f"IntegrityError: {error}") from error


def nothing_under_other_names(self: Any, view: View, ask: Ask) -> None:
    fill(self, view, ask)
    view.foreign = {id_: at for id_, at in view.foreign.items() if id_ in ask.ids}


DICT = "tests.backends.dict_backend."
BROKEN: list[tuple[str, Callable[..., Any], str]] = [
    ("DictBackend._apply", write_before_looking_for_blobs, "w1_a_batch_whose_blob_is_absent_writes_nothing"),
    ("DictBackend.write", decide_before_the_lock, "w2_a_rule_that_counts_loses_nothing"),
    ("DictBackend.write", decide_before_the_lock, "w2_of_those_that_find_something_absent_one_puts_it"),
    ("DictBackend.write", decide_before_the_lock, "w2_two_intentions_come_out"),
    ("DictBackend.write", refuse_on_a_kept_view, "w3_a_rule_never_refuses"),
    ("DictBackend.write", keep_to_itself, "w4_what_was_written_is_seen_by_every_other"),
    ("DictBackend.read", read_in_two_moments, "w5_a_reader_never_sees_half"),
    ("DictBackend.read", number_by_what_is_here, "w6_the_next_number_is_beyond"),
    ("DictBackend.read", number_by_what_is_here, "w6_a_number_is_not_given_again"),
    ("Moment.swept", lambda self, _among: self.kept, "w7_a_blob_goes_with_the_last_row"),
    ("DictBackend._apply", release_at_once, "w7_a_blob_goes_with_the_last_row"),
    ("DictBackend.write", never_wait, "w8_calls_journaled_at_once"),
    ("DictBackend.write", never_wait, "w8_branches_of_one_session"),
    ("DictBackend.read", remember_who_lives, "w9_a_lease_counts_until_it_expires"),
    ("One.expect", lambda _self, _kind: None, "w10_a_damaged_name_is_an_error"),
    ("One.expect", lambda _self, _kind: None, "w10_a_damaged_checkpoint_costs"),
    ("One.journal", call_not_made, "w10_a_damaged_call_is_never_taken"),
    ("One.row", skip_what_is_damaged, "w10_a_damaged_checkpoint_costs"),
    ("DictBackend.scan", as_they_came, "w11_rows_are_paged_by_their_number"),
    ("number", short_number, "w11_rows_are_paged_by_their_number"),
    ("name_of", folded, "names_of_any_kind_never_collide"),
    ("port.decided", look_again_in_vain, "w2_a_view_holds_what_was_asked_for"),
    ("DictBackend._apply", rename_without_the_rows, "a_renamed_session_brings_all_its_rows"),
    ("DictBackend.write", words_of_a_driver, "of_two_reasons_against_it"),
    ("One.fill", nothing_under_other_names, "a_foreign_id_is_found_by_itself_and_by_how"),
    ("DictBackend._now", lambda self: Moment(self.disk.kept), "a_closed_backend_refuses_every_verb"),
    ("DictBackend._now", lambda self: Moment(self.disk.kept), "a_forked_child_is_refused"),
    ("is_wanted", lambda row, query: row.id.lower().startswith(query.prefix.lower()), "a_listing_is_filtered"),
]


@pytest.mark.parametrize(("where", "instead", "test"), BROKEN, ids=[f"{at}-{test}" for at, _, test in BROKEN])
def test_a_broken_promise_is_noticed(
    where: str, instead: Callable[..., Any], test: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where == "number":
        monkeypatch.setattr(DICT + "number", lambda value: number(value) if value > 2**40 else short_number(value))
    else:
        monkeypatch.setattr(DICT + where, instead)
    (name,) = [name for name in dir(Contract) if name.startswith(f"test_{test}")]
    with pytest.raises(BaseException) as caught:
        run_all(name)
    assert not isinstance(caught.value, pytest.skip.Exception | TypeError)


def run_all(name: str) -> None:
    """A test of the contract, with everything it is parametrized by."""
    code = getattr(Contract, name).__code__
    for arguments in arguments_of(getattr(Contract, name)):
        contract = Contract()
        contract._opened = []
        given = {"backend": contract.make()} if "backend" in code.co_varnames[: code.co_argcount] else {}
        getattr(contract, name)(**given, **arguments)


def arguments_of(test: Any) -> list[dict[str, Any]]:
    """What the marks of a test give it, every combination."""
    found: list[dict[str, Any]] = [{}]
    for mark in getattr(test, "pytestmark", []):
        if mark.name == "parametrize":
            found = [{**given, mark.args[0]: value} for given in found for value in mark.args[1]]
    return found
