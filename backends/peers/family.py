"""The processes that belong to a process directory, and ending them.

A family is the started process (the leader) and everything it started: whoever shares
its session or process group, or carries ``DLLM_PROCESS_DIR`` of that directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from backends.errors import HostError
from backends.peers.directory import ProcessFile, read_process_file
from backends.peers.identity import is_same, start_id
from backends.peers.spawning import outlived
from backends.state import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

MARKER = "DLLM_PROCESS_DIR"

POLL_S = 0.02
KILL_PATIENCE_S = 10.0
"""A process in an uninterruptible read of a slow disk dies when that returns."""
SUPERVISOR_PATIENCE_S = 2.0


class Member(Value, frozen=True, kw_only=True):
    """One process, never mistaken for a later one with its number."""

    pid: int
    start_id: str

    @property
    def alive(self) -> bool:
        """Whether that very process still exists."""
        return is_same(self.pid, self.start_id)


class Orphan(Value, frozen=True, kw_only=True):
    """A process of ours whose directory is lost or tells of another."""

    name: str
    """What to stop it by."""
    pid: int
    start_id: str
    argv: tuple[str, ...] = ()


def find_family(directory: Path, known: Collection[Member] = ()) -> list[Member]:
    """Everything alive that belongs to a process directory; ``known`` was seen before.

    Session and group count as long as something certain is left in them: the leader, a
    marked or a known process. Otherwise their number may be another's by now (daemons
    live in sessions whose leader is gone), and nobody must ever be ended by mistake.

    Looks at every process of the machine: milliseconds to tens of them.
    """
    leader = _leader_number(_process_file(directory))
    certain = {member.pid for member in known if member.alive}
    grouped = set()
    for pid in _other_pids():
        if _marker(pid) == str(directory):
            certain.add(pid)
        if leader and leader in (_session_of(pid), _group_of(pid)):
            grouped.add(pid)
    if leader in grouped or certain & grouped:
        certain |= grouped
    return list(_members(sorted(certain)))


def find_orphans(run_dir: Path) -> list[Orphan]:
    """Processes that carry a marker under ``run_dir`` but have no living record."""
    found = ((pid, _marker(pid)) for pid in _other_pids())
    prefix = f"{run_dir}{os.sep}"
    marked = [(pid, Path(mark)) for pid, mark in found if mark.startswith(prefix)]
    covered = {path: _has_living_leader(path) for _, path in marked}
    return [
        Orphan(
            name=path.name,
            pid=member.pid,
            start_id=member.start_id,
            argv=_argv(member.pid),
        )
        for pid, path in marked
        if not covered[path]
        for member in _members([pid])
    ]


async def end_family(directory: Path, grace_s: float) -> None:
    """TERM a family, KILL after ``grace_s`` seconds what is left, see that it is gone.

    Raises:
        HostError: something outlived SIGKILL.
    """
    process = await asyncio.to_thread(_process_file, directory)
    known: set[Member] = set()
    left = await _end_with(directory, known, signal.SIGTERM, grace_s)
    if left:
        left = await _end_with(directory, known, signal.SIGKILL, KILL_PATIENCE_S)
    if left:
        raise outlived(directory.name, [member.pid for member in left])
    if process is not None:
        await _end_supervisor(process)


async def _end_with(
    directory: Path, known: set[Member], number: signal.Signals, patience_s: float
) -> list[Member]:
    """Signal each member once, newcomers too; who is left after that time.

    All that were ever seen are added to ``known``.
    """
    deadline = time.monotonic() + patience_s
    told: set[Member] = set()
    while members := await asyncio.to_thread(find_family, directory, known):
        known.update(members)
        newcomers = [member for member in members if member not in told]
        await asyncio.to_thread(_tell, directory, newcomers, number)
        told.update(newcomers)
        if not await _wait_gone(members, deadline):
            return [member for member in members if member.alive]
    return []


def _tell(directory: Path, members: list[Member], number: signal.Signals) -> None:
    """Signal the group at once, so that forking cannot outrun it, then the others."""
    process = _process_file(directory)
    group = process.pid if process else 0
    living = [member for member in members if member.alive]
    # A living member in the group proves that its number was not given away.
    if group and any(_group_of(member.pid) == group for member in living):
        _signal(os.killpg, group, number)
    for member in living:
        if _group_of(member.pid) != group and member.alive:
            _signal(os.kill, member.pid, number)
        if number == signal.SIGTERM:
            # A stopped process hears TERM only once it is continued.
            _signal(os.kill, member.pid, signal.SIGCONT)


async def _end_supervisor(process: ProcessFile) -> None:
    """Let the supervisor write the exit status; end it if it does not come to that."""
    supervisor = Member(
        pid=process.supervisor_pid, start_id=process.supervisor_start_id
    )
    if await _wait_gone([supervisor], time.monotonic() + SUPERVISOR_PATIENCE_S):
        return
    _signal(os.kill, supervisor.pid, signal.SIGKILL)
    await _wait_gone([supervisor], time.monotonic() + SUPERVISOR_PATIENCE_S)


async def _wait_gone(members: list[Member], deadline: float) -> bool:
    while any(member.alive for member in members):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(POLL_S)
    return True


def _signal(send: Callable[[int, int], None], target: int, number: int) -> None:
    # Gone already is what we want; not permitted shows as still there.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        send(target, number)


def _process_file(directory: Path) -> ProcessFile | None:
    try:
        return read_process_file(directory)
    except HostError:
        return None


def _leader_number(process: ProcessFile | None) -> int:
    """Number of a family's session and group; 0 when another process has it now."""
    if process is None:
        return 0
    present = start_id(process.pid)
    return process.pid if present in (None, process.start_id) else 0


def _has_living_leader(directory: Path) -> bool:
    process = _process_file(directory)
    return process is not None and process.alive


def _other_pids() -> Iterator[int]:
    return (pid for pid in psutil.pids() if pid not in (0, os.getpid()))


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except OSError:
        return -1


def _members(pids: Iterable[int]) -> Iterator[Member]:
    """The living among some processes."""
    for pid in pids:
        identity = start_id(pid)
        if identity is not None:
            yield Member(pid=pid, start_id=identity)


def _marker(pid: int) -> str:
    """The process directory a process says it belongs to; empty when none."""
    if sys.platform != "linux":
        return _environment(pid).get(MARKER, "")
    # psutil would parse the whole environment: five times as slow.
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return ""
    prefix = f"{MARKER}=".encode()
    found = (item for item in data.split(b"\0") if item.startswith(prefix))
    return os.fsdecode(next(found, prefix)[len(prefix) :])


def _environment(pid: int) -> dict[str, str]:
    try:
        return psutil.Process(pid).environ()
    except (psutil.Error, OSError):
        return {}


def _argv(pid: int) -> tuple[str, ...]:
    try:
        return tuple(psutil.Process(pid).cmdline())
    except (psutil.Error, OSError):
        return ()
