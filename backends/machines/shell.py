"""Running POSIX sh on a machine, whatever way it is reached."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from backends.state import Value

if TYPE_CHECKING:
    from collections.abc import Callable

RUN_TIMEOUT_S = 15.0


class ShellResult(Value, frozen=True, kw_only=True):
    """What a script printed and how it ended."""

    code: int
    stdout: str
    stderr: str


class Shell(Protocol):
    """A machine that can run a script; the user's login shell never parses it."""

    @property
    def name(self) -> str:
        """The peer's name, for messages."""
        ...

    async def rtt_ms(self) -> float:
        """Milliseconds of a round trip that starts nothing there.

        Raises:
            PeerUnreachable: the connection broke.
        """
        ...

    async def run(
        self,
        script: str,
        *args: str,
        timeout_s: float | None = RUN_TIMEOUT_S,
        check: bool = True,
        on_line: Callable[[str], None] | None = None,
    ) -> ShellResult:
        """Run a script under ``sh`` with ``$1``… set; nothing is left behind of it.

        ``args`` may hold any text without NUL. ``on_line`` gets every line of stdout as
        it comes. A timeout of None waits as long as the connection lives; cancelling
        ends the script.

        Raises:
            HostError: it ended with another status than 0 (``check``), or took too
                long; the message ends with the last line of its stderr.
            PeerUnreachable: the connection broke or could not be made.
        """
        ...
