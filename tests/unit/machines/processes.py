"""Real processes to start, and waiting for what they do."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from backends.machines.agent import ProcessRecord, ProcessSpec
from backends.state import ProcessRole
from tests.kit.waiting import PATIENCE_S

if TYPE_CHECKING:
    from backends.machines.agent import AgentSession

POLL_S = 0.005

SLEEPER = ("sleep", "600")

IGNORES_TERM = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
while True: time.sleep(1)
"""

SAYS_GOODBYE = """
import os, signal, sys, time
def leave(*_):
    os.write(1, b"bye\\n")
    sys.exit(4)
signal.signal(signal.SIGTERM, leave)
os.write(1, b"ready\\n")
time.sleep(600)
"""

# A grandchild in a session of its own, without our mark when asked, deaf to TERM.
LEAVES_A_STRAY = """
import os, signal, subprocess, sys, time
env = {} if "unmarked" in sys.argv else None
new_session = "session" in sys.argv
stray = subprocess.Popen(["/bin/sleep", "600"], env=env, start_new_session=new_session)
print(stray.pid, flush=True)
if "leave" not in sys.argv: time.sleep(600)
"""


def spec(
    name: str = "p",
    argv: tuple[str, ...] = SLEEPER,
    role: ProcessRole = ProcessRole.OTHER,
) -> ProcessSpec:
    return ProcessSpec(name=name, role=role, argv=argv)


def python(code: str, *args: str) -> tuple[str, ...]:
    # What it runs is of the standard library: it looks for no packages.
    return (sys.executable, "-E", "-S", "-c", code, *args)


def shell(code: str) -> tuple[str, ...]:
    return ("sh", "-c", code)


def stray_in_a_lost_session() -> tuple[int, int]:
    """A process of no relation whose session leader is gone: both their numbers."""
    leader = subprocess.Popen(
        python(LEAVES_A_STRAY, "unmarked", "leave"),
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert leader.stdout is not None
    with leader.stdout:
        stray = int(leader.stdout.readline())
    leader.wait()
    return stray, leader.pid


async def first_line(agent: AgentSession, name: str = "p") -> str:
    deadline = time.monotonic() + PATIENCE_S
    while "\n" not in (text := (await agent.read_log(name, 0, 4096)).text):
        assert time.monotonic() < deadline, "it printed nothing"
        await asyncio.sleep(POLL_S)
    return text.splitlines()[0]


async def known(agent: AgentSession, name: str = "p") -> ProcessRecord:
    record = await agent.record(name)
    assert record is not None
    return record


async def stopped(agent: AgentSession, **options: float) -> ProcessRecord:
    record = await agent.stop("p", **options)
    assert record is not None
    return record


async def wait_ended(agent: AgentSession, name: str = "p") -> None:
    deadline = time.monotonic() + PATIENCE_S
    while (record := await agent.record(name)) is not None and record.alive:
        assert time.monotonic() < deadline, "it did not end"
        await asyncio.sleep(POLL_S)
