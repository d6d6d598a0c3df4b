"""What holds for adopting on this machine holds through a shell."""

from tests.unit.peers.test_local_adopt import (
    test_a_damaged_exit_status_is_an_unknown_one,
    test_a_damaged_record_hides_nothing_else,
    test_a_lost_directory_makes_an_orphan,
    test_a_second_host_adopts,
    test_an_exit_status_of_another_process_does_not_count,
    test_arguments_that_are_no_text_can_be_shown,
    test_killing_everything_is_survived,
    test_other_things_in_the_run_directory_are_passed_over,
    test_relatives_of_an_ended_process_are_orphans,
    test_what_another_version_wrote_is_read,
)

__all__ = [
    "test_a_damaged_exit_status_is_an_unknown_one",
    "test_a_damaged_record_hides_nothing_else",
    "test_a_lost_directory_makes_an_orphan",
    "test_a_second_host_adopts",
    "test_an_exit_status_of_another_process_does_not_count",
    "test_arguments_that_are_no_text_can_be_shown",
    "test_killing_everything_is_survived",
    "test_other_things_in_the_run_directory_are_passed_over",
    "test_relatives_of_an_ended_process_are_orphans",
    "test_what_another_version_wrote_is_read",
]
