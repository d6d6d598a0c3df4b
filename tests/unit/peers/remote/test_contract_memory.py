"""What holds for the memory of this machine holds through a shell."""

from tests.unit.peers.test_host_memory import (
    test_this_machine,
)

__all__ = [
    "test_this_machine",
]
