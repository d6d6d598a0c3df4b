"""A process that holds a machine awake while a cluster serves on it.

It is ``caffeinate`` on macOS and ``systemd-inhibit`` on Linux, started and ended like
any process of the cluster. A machine that has neither serves all the same.
"""

from __future__ import annotations

import logging

from backends.errors import DllmError
from backends.machines.agent import AgentSession, ProcessSpec
from backends.state import ProcessRole, ProcessState

log = logging.getLogger(__name__)

PREFIX = "keep-awake-"
# Over SSH a user may be allowed to keep a machine from idling, but not from sleep.
_INHIBIT = """\
hold() {
  systemd-inhibit --what="$1" --mode=block --who=dllm-tui --why="A model is served" \\
    sleep infinity
}
hold sleep:idle || hold idle
"""


def keep_awake_name(machine: str) -> str:
    return f"{PREFIX}{machine}"


def holds_awake(short_name: str) -> bool:
    return short_name.startswith(PREFIX)


def keep_awake_argv(os: str) -> tuple[str, ...]:
    if os == "Darwin":
        return ("caffeinate", "-i", "-s")
    return ("sh", "-c", _INHIBIT)


async def hold_awake(agent: AgentSession, name: str) -> None:
    """Start it under its full name, unless it runs; what goes wrong is only logged."""
    try:
        told = await agent.machine()
        spec = ProcessSpec(
            name=name, role=ProcessRole.OTHER, argv=keep_awake_argv(told.os)
        )
        record = await agent.record(name)
        if record is not None:
            runs = record.state is ProcessState.RUNNING
            if runs and record.digest == spec.digest:
                return
            await agent.stop(name)
            await agent.remove(name)
        await agent.start(spec)
    except DllmError as error:
        log.warning("%s is not held awake: %s", agent.name, error)
