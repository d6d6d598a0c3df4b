"""What holds for the agent of this machine holds for one over a real sshd."""

# The tests it imports run here again, with the hosts of this file.
# ruff: noqa: F401

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from backends.machines.agent import AgentSession
from backends.paths import relay_binary
from tests.hosts.reaching import reached
from tests.unit.machines.test_host_clusters import (
    test_asking_a_program,
    test_bytes_in_arguments_arrive,
)
from tests.unit.machines.test_host_logs import (
    test_a_log_is_read_on_from_where_one_was,
    test_a_new_process_restarts_the_log,
    test_no_such_process,
    test_reading_while_it_grows,
)
from tests.unit.machines.test_host_news import (
    test_an_end_is_told_with_its_exit_status,
    test_messages_are_not_held_up_by_a_slow_stop,
    test_stopping_is_seen,
)
from tests.unit.machines.test_host_start import (
    test_a_name_is_free_again_after_the_end,
    test_a_start_that_is_cancelled_is_whole_or_not_at_all,
    test_environment_and_working_directory,
    test_how_it_ended_is_known,
    test_many_start_at_once,
    test_one_of_many_starts_of_one_name_wins,
    test_sigpipe,
)
from tests.unit.machines.test_host_stop import (
    test_a_cancelled_stop_can_be_repeated,
    test_a_process_may_end_in_its_own_way,
    test_it_is_seen_stopping_meanwhile,
    test_stopping_what_has_ended_is_fine,
    test_two_stops_at_once_are_fine,
    test_who_ignores_term_is_killed_after_the_grace,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.hosts.network import Network

SYSTEM_PYTHON = "/usr/bin/python3"

pytestmark = pytest.mark.skipif(
    shutil.which(SYSTEM_PYTHON) is None, reason="peers have no Python"
)


@pytest.fixture
async def host(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[AgentSession]:
    """A peer under test; at the end nothing runs there."""
    # A peer has the Python of the system, not our environment.
    monkeypatch.setattr(sys, "executable", SYSTEM_PYTHON)
    network.write_ssh_config()
    peer = network.peer("ada")
    shutil.copy(relay_binary(), peer.home / "dllm-relay")
    line = 'exec "$1/dllm-relay" host --run-dir "$1/run"'
    async with reached("ada") as ada:
        host = AgentSession("local", lambda: ada.hold(line, peer.remote_home))
        yield host
        orphans = {orphan.name for orphan in await host.orphans()}
        for name in {record.name for record in host.seen} | orphans:
            await host.stop(name, grace_s=0)
        await host.close()
