"""What the controller needs of a machine, whatever way it is reached."""

from __future__ import annotations

from typing import Protocol

from backends.state import Device, LogChunk, ProcessRole, ProcessState, Value


class ProcessSpec(Value, frozen=True, kw_only=True):
    """A process to start."""

    name: str
    """Name of its process directory; one process per name at a time."""
    role: ProcessRole
    argv: tuple[str, ...]
    port: int | None = None
    """Loopback port it is to listen on; recorded, so that adoption knows it."""
    env: dict[str, str] = {}
    ignore_sigpipe: bool = False


class ProcessRecord(Value, frozen=True, kw_only=True):
    """What a process directory tells about its process, now."""

    name: str
    role: ProcessRole
    state: ProcessState
    pid: int
    argv: tuple[str, ...]
    port: int | None = None
    started_at: float = 0.0
    """Unix seconds."""
    exit_code: int | None = None
    """None while it runs, and when it ended unseen (its supervisor was killed)."""
    exit_signal: int | None = None
    log_path: str = ""
    rss_bytes: int | None = None

    @property
    def alive(self) -> bool:
        """Whether the process still exists."""
        return self.state is not ProcessState.EXITED


class Host(Protocol):
    """One machine: its processes, their logs, its memory."""

    @property
    def name(self) -> str:
        """The peer's name."""
        ...

    async def start(self, spec: ProcessSpec) -> ProcessRecord:
        """Start a process in its own directory, detached from us.

        Raises:
            HostError: a living process has that name, or it cannot be executed.
        """
        ...

    async def record(self, name: str) -> ProcessRecord | None:
        """The process of that name, alive or ended; None when there is none."""
        ...

    async def records(self) -> list[ProcessRecord]:
        """Every process directory, alive or ended."""
        ...

    async def stop(self, name: str, grace_s: float = 5.0) -> ProcessRecord | None:
        """TERM its process group, wait, KILL, and see that it is gone.

        Raises:
            HostError: it outlived SIGKILL.
        """
        ...

    async def remove(self, name: str) -> None:
        """Delete the directory of an ended process."""
        ...

    async def read_log(self, name: str, offset: int, limit_bytes: int) -> LogChunk:
        """Part of a log; a negative offset counts from the end."""
        ...

    async def free_port(self) -> int:
        """A loopback port nobody listens on at this moment."""
        ...

    async def listens(self, pid: int, port: int) -> bool:
        """Whether that very process listens on that loopback port."""
        ...

    async def port_owner(self, port: int) -> str | None:
        """``name (pid 42)`` of whoever listens on a port; None when it is free."""
        ...

    async def memory(self) -> Device:
        """The machine's main memory as a CPU device."""
        ...
