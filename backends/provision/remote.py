"""Running our scripts on a peer, and holding a lock there."""

from __future__ import annotations

import asyncio
import contextlib
from functools import cache
from typing import TYPE_CHECKING

from backends.engine import compiling
from backends.errors import HostError
from backends.provision.refusals import PeerBusy, ProvisionError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from backends.machines.shell import Shell, ShellResult

LOCKED_ELSEWHERE = 75
_LOCK_S = 15.0
_IO_ERROR = 74
_CANNOT_WRITE = (
    "Let your account on {peer} write there (owner, mode, disk), or set XDG_CACHE_HOME "
    "for its logins; then repeat."
)


@cache
def script(name: str) -> str:
    """The text of a script, with what they share before it."""
    shared = compiling.script("common")
    own = compiling.script("common", name, package=f"{__package__}.scripts")
    return f"{shared}\n{own}"


class There:
    """A peer, for the scripts of a build."""

    def __init__(self, shell: Shell) -> None:
        """``shell`` runs on it."""
        self._shell = shell

    async def run(
        self, name: str, *args: str, on_line: Callable[[str], None]
    ) -> tuple[int, str]:
        """As ``backends.engine.compiling.Runner`` says."""
        text = compiling.script("common", name)
        result = await self._shell.run(
            text, *args, timeout_s=None, check=False, on_line=on_line
        )
        return result.code, last_line(result)


def last_line(result: ShellResult) -> str:
    """What a script said at the end, on stderr or else on stdout."""
    said = (result.stderr.strip() or result.stdout.strip()).splitlines()
    return said[-1].strip() if said else f"exit status {result.code}"


def rows(text: str) -> list[list[str]]:
    """The lines of an answer, split at tabs."""
    return [line.split("\t") for line in text.splitlines() if "\t" in line]


def refusal(peer: str, result: ShellResult) -> ProvisionError:
    """Explain a script that did not do its work, by its last line."""
    hint = _CANNOT_WRITE if result.code == _IO_ERROR else ""
    return ProvisionError(f"{peer}: {last_line(result)}", hint.format(peer=peer))


@contextlib.asynccontextmanager
async def lock(shell: Shell, name: str, doing: str) -> AsyncIterator[None]:
    """Hold a lock on the peer: a process there, which ends with the connection.

    Args:
        shell: the peer.
        name: of the lock, a plain word.
        doing: what would be going on if another has it: ``"An installation"``.

    Raises:
        PeerBusy: another console has it.
        HostError: it cannot be made.
    """
    held: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()

    def listen(line: str) -> None:
        if line.startswith("held\t") and not held.done():
            held.set_result(line.split("\t")[1:])

    holding = asyncio.ensure_future(
        shell.run(script("hold"), name, timeout_s=None, check=False, on_line=listen)
    )
    try:
        await asyncio.wait(
            (holding, held), timeout=_LOCK_S, return_when=asyncio.FIRST_COMPLETED
        )
        if not held.done():
            raise await _refusal(shell, holding, doing)
        yield
    finally:
        if held.done() and not held.cancelled() and not holding.done():
            await _release(shell, held.result())
        holding.cancel()
        with contextlib.suppress(asyncio.CancelledError, HostError):
            await holding


async def _release(shell: Shell, files: list[str]) -> None:
    """Remove a lock we hold, whatever happens; a broken connection ends it too."""
    with contextlib.suppress(HostError):
        await shell.run('rm -f "$@"', *files)


async def _refusal(
    shell: Shell, holding: asyncio.Future[ShellResult], doing: str
) -> HostError:
    if not holding.done():
        return HostError(f"{shell.name} did not answer within {_LOCK_S:g} s")
    result = await holding
    if result.code == LOCKED_ELSEWHERE:
        return PeerBusy(
            f"{doing} is under way on {shell.name} already ({last_line(result)})",
            "Wait for it to end, or end it where it was begun.",
        )
    return refusal(shell.name, result)
