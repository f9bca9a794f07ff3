"""Waiting on PostgreSQL: what `tests/run` tries on the other stores, tried here by the same functions."""

from collections.abc import Iterator

import pytest

import backstay
from tests.backends.conftest import Fresh
from tests.run import test_children, test_messages, test_stop, test_streams, test_waiting
from tests.run.crashes import World

AS_ELSEWHERE = [
    test_waiting.test_a_run_that_waits_is_left_and_goes_on_with_the_answer_once,
    test_waiting.test_an_approval_of_other_args_than_the_code_now_asks_for_is_refused,
    test_waiting.test_the_first_answer_counts_and_the_others_are_told,
    test_waiting.test_a_cancelled_wait_is_over,
    test_children.test_a_child_is_a_session_of_its_own_linked_both_ways_and_its_usage_counts_once,
    test_children.test_a_child_that_ended_is_not_made_again_after_a_crash_of_its_parent,
    test_children.test_a_child_that_waits_lets_its_parent_wait_and_its_answer_wakes_the_root,
    test_children.test_a_fork_of_the_parent_does_not_reuse_the_answers_of_the_child,
    test_streams.test_a_stream_closed_early_is_kept_as_partial_and_asked_again,
]
WITHOUT_WORLD = [
    test_waiting.test_recover_takes_what_is_answered_and_leaves_the_rest,
    test_waiting.test_a_worker_wakes_a_session_that_waits_again_and_again,
    test_waiting.test_a_worker_that_waits_wakes_a_sleeper_when_it_is_due_and_not_before,
    test_waiting.test_an_undo_of_a_restore_waits_again,
    test_waiting.test_a_fork_of_a_branch_that_waits_asks_for_itself,
    test_messages.test_messages_are_received_once_and_in_order_by_name,
    test_messages.test_a_message_received_before_a_crash_is_given_again_and_the_next_is_the_next,
    test_messages.test_what_was_received_and_given_up_comes_again,
    test_messages.test_a_fork_gets_none_of_them_and_a_deleted_branch_leaves_none,
    test_stop.test_the_heartbeat_of_a_long_call_hears_of_a_stop,
    test_stop.test_a_run_stopped_between_two_calls_is_not_completed_by_its_end,
]


@pytest.fixture
def store(postgres_url: str, fresh_schema: Fresh) -> Iterator[backstay.Store]:
    mark = "&" if "?" in postgres_url else "?"
    with backstay.open(f"{postgres_url}{mark}schema={fresh_schema()}") as opened:
        yield opened


@pytest.mark.parametrize("test", AS_ELSEWHERE, ids=lambda test: test.__name__)
def test_waiting_is_the_same_here(store: backstay.Store, test: object) -> None:
    test(store, World())  # type: ignore[operator]


@pytest.mark.parametrize("test", WITHOUT_WORLD, ids=lambda test: test.__name__)
def test_messages_times_and_stops_are_the_same_here(store: backstay.Store, test: object) -> None:
    test(store)  # type: ignore[operator]
