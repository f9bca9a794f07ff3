"""What the hall builds on the port, once more where rows are far away: edits, listings, checkpoints by their id."""

from collections.abc import Iterator

import pytest

import backstay
from backstay import Session, Store
from tests.backends.conftest import Fresh
from tests.store import test_edit, test_filters, test_finding


@pytest.fixture
def store(postgres_url: str, fresh_schema: Fresh) -> Iterator[Store]:
    with backstay.open(f"{postgres_url}{'&' if '?' in postgres_url else '?'}schema={fresh_schema()}") as opened:
        yield opened


def test_an_edit_leaves_all_or_no_trace(store: Store) -> None:
    test_edit.test_an_edit_loads_and_commits_and_one_that_raises_leaves_no_trace(store)


def test_edits_take_turns(store: Store) -> None:
    test_edit.test_threads_that_edit_take_turns_whatever_they_change(store)


def test_an_edit_that_is_overtaken_is_made_again(store: Store) -> None:
    test_edit.test_a_commit_does_not_wait_for_an_edit_whose_changes_are_then_made_on_top_of_it(store)


def test_checkpoints_are_found_by_their_ids(store: Store) -> None:
    test_finding.test_a_checkpoint_is_found_by_its_id_or_a_start_of_it_whatever_its_session(store)
    test_finding.test_an_id_that_no_session_has_is_not_found_and_an_ambiguous_start_lists_what_it_could_be(store)


def test_an_id_of_the_callers_own_is_found(store: Store) -> None:
    test_finding.test_an_id_of_the_callers_own_is_found_too(store)


def test_histories_and_runs_are_listed(store: Store) -> None:
    test_finding.test_a_history_has_all_branches_newest_first_and_is_read_in_pages(store)
    store.delete("s")
    test_finding.test_runs_that_have_not_come_to_their_end_are_listed_by_branch(store)


def test_sessions_are_found_by_what_is_said_of_them(store: Store) -> None:
    many: Store = test_filters.many.__wrapped__(store)  # type: ignore[attr-defined]
    test_filters.test_each_filter_and_all_of_them_together_give_what_they_say(many)


def test_a_session_is_described(store: Store) -> None:
    test_filters.test_a_description_can_be_changed_and_taken_away_and_stays_through_commits(store)


def test_a_text_is_found(store: Store) -> None:
    told: Session = test_filters.told.__wrapped__(store)  # type: ignore[attr-defined]
    test_filters.test_a_text_is_found_where_it_first_came_up(store, told)
