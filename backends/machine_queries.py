"""Queries to any machine, ours or a peer, once our helper is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from backends.state import Value


class Outcome(Value, frozen=True, kw_only=True):
    code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    truncated: bool = False
    stdout: str = ""
    stderr: str = ""

    @property
    def text(self) -> str:
        return f"{self.stdout}\n{self.stderr}"


class FoundFile(Value, frozen=True, kw_only=True):
    path: str
    size_bytes: int = 0
    mtime_ns: int = 0
    inode: str = ""
    """The same for one file under two names; empty for a link that leads nowhere."""


class MachineQueries(Protocol):
    """Queries that a machine answers; all raise ``MachineError``."""

    @property
    def name(self) -> str: ...

    async def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
        touch: int = 0,
        until: Sequence[str] = (),
    ) -> Outcome:
        """Run a program to its end, at most that long; nothing of it lives on.

        Args:
            argv: the program and its arguments.
            env: what is added to its environment.
            timeout_s: after so many seconds it is killed.
            touch: a loopback port to connect to once, as soon as it listens.
            until: after a line with one of these it is killed, which is its end.
        """

    async def find(
        self,
        folders: Sequence[str],
        *,
        depth: int = 0,
        suffix: str = "",
        whole: bool = False,
    ) -> list[FoundFile]: ...

    async def read(self, path: str) -> bytes:
        """The first MiB of a file there."""

    async def identity(self, path: str) -> str: ...

    async def free_port(self) -> int: ...
