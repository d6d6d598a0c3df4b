"""The machine we run on, as a host: process directories under one run directory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from typing import TYPE_CHECKING

from backends.errors import HostError
from backends.paths import make_private, relay_binary
from backends.peers import directory as directories
from backends.peers import logs, memory, ports
from backends.peers.directory import checked_name
from backends.peers.family import (
    MARKER,
    end_family,
    find_family,
    find_orphans,
)
from backends.peers.spawning import (
    LOG_LIMIT_BYTES,
    Stopping,
    complaint_of,
    finished,
    not_started,
    spawn_words,
    still_runs,
)

if TYPE_CHECKING:
    from pathlib import Path

    from backends.peers.family import Orphan
    from backends.peers.host import ProcessRecord, ProcessSpec
    from backends.state import Device, LogChunk

START_TIMEOUT_S = 15.0
"""Starting takes milliseconds; a program on a sleeping network disk takes longer."""
REAP_TIMEOUT_S = 1.0

_REMOVE_ATTEMPTS = 3


class LocalHost:
    """Starts, finds and stops processes of this user on this machine.

    It remembers nothing that matters: all state is in the directories, so a second one
    over the same run directory adopts what the first one started.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        name: str = "local",
        relay: Path | None = None,
        log_limit_bytes: int = LOG_LIMIT_BYTES,
    ) -> None:
        """Look after the processes in ``run_dir``, which is made when first needed."""
        # Resolved, because that is how processes carry it in their environment.
        self._run_dir = run_dir.resolve()
        self._name = name
        self._relay = relay
        self._log_limit_bytes = log_limit_bytes
        self._stopping = Stopping()
        self._recent_ports = ports.RecentPorts()

    @property
    def name(self) -> str:
        """The peer's name."""
        return self._name

    async def start(self, spec: ProcessSpec) -> ProcessRecord:
        """Start a process in its own directory, detached from us.

        Raises:
            HostError: a living process has that name or is left over from an earlier
                one (``stop`` ends both), or it cannot be executed.
        """
        directory = self._directory(spec.name)
        await asyncio.to_thread(make_private, self._run_dir)
        await self._refuse_leftovers(directory)
        code, complaint = await finished(self._run(self._spawn_argv(directory, spec)))
        record = await self.record(spec.name)
        if code != 0 or record is None:
            raise not_started(spec.name, self._name, complaint)
        return record

    async def record(self, name: str) -> ProcessRecord | None:
        """The process of that name, alive or ended; None when there is none.

        One whose record is damaged appears as ended, with pid 0.
        """
        directory = self._directory(name)
        found = await asyncio.to_thread(directories.read_record, directory)
        return None if found is None else self._stopping.seen(found)

    async def records(self) -> list[ProcessRecord]:
        """Every process directory, alive or ended, by name.

        Raises:
            HostError: the run directory cannot be read.
        """
        found = await asyncio.to_thread(directories.read_records, self._run_dir)
        return [self._stopping.seen(record) for record in found]

    async def stop(self, name: str, grace_s: float = 5.0) -> ProcessRecord | None:
        """TERM its process group, wait, KILL, and see that it is gone.

        Takes everything the process started with it, also when its directory is lost.
        Stopping what has ended, or twice at once, is fine.

        Raises:
            HostError: it outlived SIGKILL.
        """
        directory = self._directory(name)
        with self._stopping.of(name):
            await end_family(directory, grace_s)
        return await self.record(name)

    async def remove(self, name: str) -> None:
        """Delete the directory of an ended process; fine when there is none.

        Raises:
            HostError: it still runs, or its directory cannot be deleted.
        """
        record = await self.record(name)
        if record is not None and record.alive:
            raise still_runs(name, self._name)
        await asyncio.to_thread(_delete, self._directory(name))

    async def orphans(self) -> list[Orphan]:
        """Processes of ours whose directory is lost; ``stop`` ends them by name."""
        return await asyncio.to_thread(find_orphans, self._run_dir)

    async def read_log(self, name: str, offset: int, limit_bytes: int) -> LogChunk:
        """Part of a log; a negative offset counts from the end.

        Raises:
            HostError: there is no such process.
        """
        directory = self._directory(name)
        return await asyncio.to_thread(logs.read_log, directory, offset, limit_bytes)

    async def free_port(self) -> int:
        """A loopback port nobody listens on, not given to another caller just now."""
        return self._recent_ports.take(ports.free_port)

    async def listens(self, pid: int, port: int) -> bool:
        """Whether that very process listens on that loopback port."""
        return await asyncio.to_thread(ports.listens, pid, port)

    async def port_owner(self, port: int) -> str | None:
        """``name (pid 42)`` of whoever listens on a port; None when it is free."""
        return await asyncio.to_thread(ports.port_owner, port)

    async def memory(self) -> Device:
        """The machine's main memory as a CPU device."""
        return await asyncio.to_thread(memory.cpu_device, self._name)

    def _directory(self, name: str) -> Path:
        return self._run_dir / checked_name(name)

    async def _refuse_leftovers(self, directory: Path) -> None:
        family = await asyncio.to_thread(find_family, directory)
        if family:
            raise still_runs(directory.name, self._name, family[0].pid)

    def _spawn_argv(self, directory: Path, spec: ProcessSpec) -> list[str]:
        words = spawn_words(str(directory), spec, self._log_limit_bytes)
        return [str(self._relay or relay_binary()), *words]

    async def _run(self, argv: list[str]) -> tuple[int, str]:
        """Run the helper; its exit status and what it complained of."""
        # Its supervisor must not look like part of whatever started us.
        env = {key: value for key, value in os.environ.items() if key != MARKER}
        try:
            helper = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env=env,
            )
            async with asyncio.timeout(START_TIMEOUT_S):
                _, errors = await helper.communicate()
        except TimeoutError:
            await _kill(helper)
            return 1, f"no answer within {START_TIMEOUT_S:g} s"
        except (OSError, ValueError) as error:
            # ValueError: a NUL in an argument.
            return 1, f"{argv[0]} cannot be run ({error})"
        status = helper.returncode or 0
        return status, complaint_of(errors.decode(errors="replace"), status)


async def _kill(helper: asyncio.subprocess.Process) -> None:
    helper.kill()
    # One stuck in the kernel is left to the system.
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(helper.wait(), REAP_TIMEOUT_S)


def _delete(directory: Path) -> None:
    for attempt in range(_REMOVE_ATTEMPTS):
        try:
            shutil.rmtree(directory)
        except FileNotFoundError:
            return
        except OSError as error:
            # The supervisor of a process that ended this moment may add exit.json.
            if attempt == _REMOVE_ATTEMPTS - 1:
                raise HostError(f"{directory} cannot be deleted ({error})") from error
