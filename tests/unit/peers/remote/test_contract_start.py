"""What holds for starting on this machine holds through a shell."""

import pytest

from tests.unit.peers.remote.local_shell import LocalShell
from tests.unit.peers.test_local_start import (
    test_a_living_name_is_refused,
    test_a_name_is_free_again_after_the_end,
    test_a_process_started_from_a_process_is_not_its_family,
    test_a_start_that_is_cancelled_is_whole_or_not_at_all,
    test_a_started_process_is_known,
    test_an_ended_directory_is_removed,
    test_environment_and_working_directory,
    test_how_it_ended_is_known,
    test_leftovers_of_an_earlier_process_are_refused,
    test_many_start_at_once,
    test_names_cannot_lead_elsewhere,
    test_nothing_is_known_of_nothing,
    test_one_of_many_starts_of_one_name_wins,
    test_sigpipe,
    test_the_exit_status_is_there_with_the_end,
    test_the_run_directory_is_private,
    test_the_user_may_want_backtraces,
    test_what_cannot_start_leaves_nothing,
)

__all__ = [
    "test_a_living_name_is_refused",
    "test_a_name_is_free_again_after_the_end",
    "test_a_process_started_from_a_process_is_not_its_family",
    "test_a_start_that_is_cancelled_is_whole_or_not_at_all",
    "test_a_started_process_is_known",
    "test_an_ended_directory_is_removed",
    "test_environment_and_working_directory",
    "test_how_it_ended_is_known",
    "test_leftovers_of_an_earlier_process_are_refused",
    "test_many_start_at_once",
    "test_names_cannot_lead_elsewhere",
    "test_nothing_is_known_of_nothing",
    "test_one_of_many_starts_of_one_name_wins",
    "test_sigpipe",
    "test_the_exit_status_is_there_with_the_end",
    "test_the_run_directory_is_private",
    "test_the_user_may_want_backtraces",
    "test_what_cannot_start_leaves_nothing",
]


@pytest.fixture
def shell() -> LocalShell:
    """One system will do: most of a start is the helper's."""
    return LocalShell()
