"""What holds for ports of this machine holds through a shell."""

from tests.unit.peers.test_loopback_ports import (
    listening,
    test_a_connection_is_not_a_listener,
    test_a_port_bound_but_not_listening_is_no_server,
    test_a_started_listener,
    test_lingering_connections_leave_a_port_free,
    test_no_process_listens_nowhere,
    test_who_listens,
)

__all__ = [
    "listening",
    "test_a_connection_is_not_a_listener",
    "test_a_port_bound_but_not_listening_is_no_server",
    "test_a_started_listener",
    "test_lingering_connections_leave_a_port_free",
    "test_no_process_listens_nowhere",
    "test_who_listens",
]
