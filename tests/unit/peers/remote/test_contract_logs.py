"""What holds for logs on this machine holds through a shell."""

from tests.unit.peers.test_process_logs import (
    test_a_log_is_read_on_from_where_one_was,
    test_a_new_process_restarts_the_log,
    test_an_unfinished_character_waits_for_its_rest,
    test_no_such_process,
)

__all__ = [
    "test_a_log_is_read_on_from_where_one_was",
    "test_a_new_process_restarts_the_log",
    "test_an_unfinished_character_waits_for_its_rest",
    "test_no_such_process",
]
