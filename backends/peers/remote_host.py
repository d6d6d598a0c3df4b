"""Another machine as a host: the same process directories, seen through a shell."""

from __future__ import annotations

from random import choice
from typing import TYPE_CHECKING

from backends.errors import HostError
from backends.peers import logs
from backends.peers.answers import Answer, memory_in, orphans_in, records_in
from backends.peers.directory import checked_name
from backends.peers.ports import RECENT_PORTS_MAX, RecentPorts
from backends.peers.scripts import host_script
from backends.peers.shell import RUN_TIMEOUT_S
from backends.peers.spawning import (
    LOG_LIMIT_BYTES,
    Stopping,
    complaint_of,
    finished,
    not_started,
    outlived,
    spawn_words,
    still_runs,
)

if TYPE_CHECKING:
    from backends.peers.family import Orphan
    from backends.peers.host import ProcessRecord, ProcessSpec
    from backends.peers.shell import Shell, ShellResult
    from backends.state import Device, LogChunk

START_TIMEOUT_S = 30.0
"""Starting takes milliseconds; a program on a sleeping network disk takes longer."""
KILL_PATIENCE_S = 10.0
"""A process in an uninterruptible read of a slow disk dies when that returns."""
SUPERVISOR_PATIENCE_S = 2.0

# A log is read in one go; more would keep a slow link busy for too long.
_READ_MAX_BYTES = 1024 * 1024
# Status of host.sh when the last line of stderr is meant for the user.
_REFUSED = 3

_PROCESSES = ("processes.awk",)
_FAMILIES = ("processes.awk", "families.awk")
_SOCKETS = ("sockets.awk",)
_PROGRAMS: dict[str, tuple[str, ...]] = {
    "records": _PROCESSES,
    "remove": _PROCESSES,
    "start": _FAMILIES,
    "stop": _FAMILIES,
    "orphans": _FAMILIES,
    "ports": _SOCKETS,
    "listeners": _SOCKETS,
}


class RemoteHost:
    """Starts, finds and stops processes of this user on another machine.

    It remembers nothing that matters: all state is in the directories there, so another
    one, or a ``LocalHost`` on that machine, adopts what this one started. Every call is
    one script that runs there to its end: a connection that breaks meanwhile leaves
    nothing half done, and everything may be repeated.

    All methods raise ``PeerUnreachable`` when there is no connection.
    """

    def __init__(
        self,
        shell: Shell,
        *,
        run_dir: str,
        relay: str,
        log_limit_bytes: int = LOG_LIMIT_BYTES,
    ) -> None:
        """Look after the processes in ``run_dir`` with the help of ``relay``.

        Both are absolute paths there; the directory is made when first needed.

        Raises:
            ValueError: the directory is not absolute, or has control characters.
        """
        if not run_dir.startswith("/") or any(ord(sign) < 32 for sign in run_dir):
            raise ValueError(f"{run_dir!r} cannot be a run directory")
        self._shell = shell
        self._run_dir = run_dir.rstrip("/")
        self._relay = relay
        self._log_limit_bytes = log_limit_bytes
        self._stopping = Stopping()
        self._recent_ports = RecentPorts()

    @property
    def name(self) -> str:
        """The peer's name."""
        return self._shell.name

    async def start(self, spec: ProcessSpec) -> ProcessRecord:
        """Start a process in its own directory, detached from us.

        Raises:
            HostError: a living process has that name or is left over from an earlier
                one (``stop`` ends both), or it cannot be executed.
            PeerUnreachable: the connection broke; ``record`` tells whether it runs.
        """
        directory = f"{self._run_dir}/{checked_name(spec.name)}"
        words = spawn_words(directory, spec, self._log_limit_bytes)
        if any("\0" in word for word in words):
            raise not_started(spec.name, self.name, "embedded null byte")
        arguments = (self._run_dir, spec.name, self._relay, *words)
        result = await finished(
            self._run("start", *arguments, timeout_s=START_TIMEOUT_S)
        )
        answer = Answer(self.name, result.stdout)
        for pid in answer.numbers("leftover"):
            raise still_runs(spec.name, self.name, pid)
        status = sum(answer.numbers("status"))
        records = records_in(answer, self._run_dir)
        if status != 0 or not records:
            detail = complaint_of(result.stderr, status)
            raise not_started(spec.name, self.name, detail)
        return records[0]

    async def record(self, name: str) -> ProcessRecord | None:
        """The process of that name, alive or ended; None when there is none.

        One whose record is damaged appears as ended, with pid 0.
        """
        answer = await self._ask("records", self._run_dir, checked_name(name))
        return self._first(answer)

    async def records(self) -> list[ProcessRecord]:
        """Every process directory, alive or ended, by name.

        Raises:
            HostError: the run directory cannot be read.
        """
        answer = await self._ask("records", self._run_dir)
        return [self._stopping.seen(r) for r in records_in(answer, self._run_dir)]

    async def stop(self, name: str, grace_s: float = 5.0) -> ProcessRecord | None:
        """TERM its process group, wait, KILL, and see that it is gone.

        Takes everything the process started with it, also when its directory is lost.
        Stopping what has ended, or twice at once, is fine.

        Raises:
            HostError: it outlived SIGKILL.
            PeerUnreachable: the connection broke; to be repeated.
        """
        patience = (grace_s, KILL_PATIENCE_S, SUPERVISOR_PATIENCE_S)
        with self._stopping.of(checked_name(name)):
            answer = await self._ask(
                "stop",
                self._run_dir,
                name,
                *(f"{seconds:.3f}" for seconds in patience),
                timeout_s=sum(patience) + SUPERVISOR_PATIENCE_S + RUN_TIMEOUT_S,
            )
        left = answer.numbers("left")
        if left:
            raise outlived(name, left)
        return self._first(answer)

    async def remove(self, name: str) -> None:
        """Delete the directory of an ended process; fine when there is none.

        Raises:
            HostError: it still runs, or its directory cannot be deleted.
        """
        answer = await self._ask("remove", self._run_dir, checked_name(name))
        if answer.first("alive") is not None:
            raise still_runs(name, self.name)

    async def orphans(self) -> list[Orphan]:
        """Processes of ours whose directory is lost; ``stop`` ends them by name."""
        return orphans_in(await self._ask("orphans", self._run_dir))

    async def read_log(self, name: str, offset: int, limit_bytes: int) -> LogChunk:
        """Part of a log, 1 MiB at most; a negative offset counts from the end.

        Raises:
            HostError: there is no such process.
        """
        limit_bytes = logs.clamped(limit_bytes, _READ_MAX_BYTES)
        words = (checked_name(name), str(offset), str(limit_bytes))
        answer = await self._ask("log", self._run_dir, *words)
        size = sum(answer.numbers("size"))
        missing = answer.first("missing") is not None
        data = b"" if missing else answer.bytes_after("size")
        chunk = logs.log_chunk(name, offset, size, data)
        if not logs.is_stuck(chunk, data):
            return chunk
        record = await self.record(name)
        ended = record is None or not record.alive
        return logs.log_chunk(name, offset, size, data, ended=ended)

    async def free_port(self) -> int:
        """A loopback port nobody uses, not given to another caller just now.

        Raises:
            HostError: nearly all ports are in use there.
        """
        answer = await self._ask("ports")
        used = set(answer.numbers("used"))
        first, last = answer.numbers("range")[:2] or (0, 0)
        free = [port for port in range(first, last + 1) if port not in used]
        if len(free) <= RECENT_PORTS_MAX:
            raise HostError(f"{self.name} has no free port")
        return self._recent_ports.take(lambda: choice(free))

    async def listens(self, pid: int, port: int) -> bool:
        """Whether that very process listens on that loopback port."""
        if pid <= 0:
            return False
        answer = await self._ask("listeners", str(port), str(pid))
        return answer.first("owner") is not None

    async def port_owner(self, port: int) -> str | None:
        """``name (pid 42)`` of whoever listens on a port; None when it is free."""
        answer = await self._ask("listeners", str(port))
        if answer.first("listening") is None:
            return None
        owner = answer.first("owner")
        if owner is None:
            return "another process"
        pid, name = answer.words(owner, 2)
        return f"{name} (pid {pid})"

    async def memory(self) -> Device:
        """The machine's main memory as a CPU device."""
        return memory_in(await self._ask("memory"), self.name)

    def _first(self, answer: Answer) -> ProcessRecord | None:
        records = records_in(answer, self._run_dir)
        return self._stopping.seen(records[0]) if records else None

    async def _ask(
        self, verb: str, *words: str, timeout_s: float = RUN_TIMEOUT_S
    ) -> Answer:
        result = await self._run(verb, *words, timeout_s=timeout_s)
        return Answer(self.name, result.stdout)

    async def _run(self, verb: str, *words: str, timeout_s: float) -> ShellResult:
        script = host_script(*_PROGRAMS.get(verb, ()))
        result = await self._shell.run(
            script, verb, *words, timeout_s=timeout_s, check=False
        )
        if result.code == 0:
            return result
        sentence = result.stderr.rstrip().rpartition("\n")[2]
        if result.code == _REFUSED and sentence:
            raise HostError(f"{sentence} on {self.name}")
        detail = sentence or f"status {result.code}"
        raise HostError(f"{self.name} could not do what it was asked ({detail})")
