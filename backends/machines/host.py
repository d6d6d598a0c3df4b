"""Processes of a machine: what to start, and what its agent tells of them."""

from __future__ import annotations

import hashlib
import json

import msgspec

from backends.state import ProcessRole, ProcessState, Value

PRIVATE = "private"
"""Name of the file, in a process directory, that only its process is to read."""


class ProcessSpec(Value, frozen=True, kw_only=True):
    """A process to start."""

    name: str
    """``cluster/name``, its directory below the run directory; one process each."""
    role: ProcessRole
    argv: tuple[str, ...]
    port: int | None = None
    """Loopback port it is to listen on; recorded, so that adoption knows it."""
    env: dict[str, str] = {}
    ignore_sigpipe: bool = False
    after: dict[str, str] = {}
    """What it depends on: name to incarnation. Another incarnation of one of them needs
    a new process of this one too."""
    private: str = ""
    """What only the process is to know: its file ``PRIVATE`` there, gone with it."""

    def __repr__(self) -> str:
        """Without what is private: this may get into a log."""
        return f"ProcessSpec(name={self.name!r}, argv={self.argv!r})"

    @property
    def digest(self) -> str:
        """A hash of all of this: what runs is adopted only if it is equal."""
        told = msgspec.to_builtins(self)
        told["private"] = hashlib.sha256(self.private.encode()).hexdigest()
        # Not msgspec's: an argument need not be text, and this escapes what is none.
        whole = json.dumps(told, sort_keys=True)
        return hashlib.sha256(whole.encode()).hexdigest()[:32]


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
    cpu_ms: int | None = None
    """Processor time since its start, of all its threads; an older helper tells none.
    """
    digest: str = ""
    """Of the specification it was started from; empty when that is unknown."""

    @property
    def incarnation(self) -> str:
        """Tells this process from an earlier or later one of its name."""
        return f"{self.pid}@{self.started_at:.6f}"

    @property
    def alive(self) -> bool:
        """Whether the process still exists."""
        return self.state is not ProcessState.EXITED


def pid_of(incarnation: str) -> int:
    """The process number in an incarnation."""
    return int(incarnation.partition("@")[0])


class Orphan(Value, frozen=True, kw_only=True):
    """A process of ours whose directory is lost or tells of another."""

    name: str
    """What to stop it by."""
    pid: int
    argv: tuple[str, ...] = ()
