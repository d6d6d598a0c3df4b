"""Running POSIX sh on a machine, and what goes wrong with installing there."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Protocol

import asyncssh

from backends.engine import compiling
from backends.errors import MachineError, PeerUnreachable
from backends.machines.facts import System
from backends.printable import last_line
from backends.state import Value
from backends.units import format_bytes

if TYPE_CHECKING:
    from backends.machines.agent import AgentSession


RUN_TIMEOUT_S = 15.0
AGENT_RUN_S = 600.0
"""Longest run of a program that an agent allows."""


class ShellResult(Value, frozen=True, kw_only=True):
    code: int
    stdout: str
    stderr: str


class Shell(Protocol):
    """A machine that can run a script; the user's login shell never parses it."""

    @property
    def name(self) -> str: ...

    def files(self) -> AbstractAsyncContextManager[asyncssh.SFTPClient]: ...

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
        """


class AgentShell:
    """Implements ``Shell`` by an agent's ``run``, so that no session is opened.

    A script runs for ten minutes at most; its lines come when it has ended.
    """

    def __init__(self, agent: AgentSession, shell: Shell) -> None:
        self._agent = agent
        self._shell = shell

    @property
    def name(self) -> str:
        return self._shell.name

    def files(self) -> AbstractAsyncContextManager[asyncssh.SFTPClient]:
        return self._shell.files()

    async def run(
        self,
        script: str,
        *args: str,
        timeout_s: float | None = RUN_TIMEOUT_S,
        check: bool = True,
        on_line: Callable[[str], None] | None = None,
    ) -> ShellResult:
        limit_s = AGENT_RUN_S if timeout_s is None else timeout_s
        argv = ("/bin/sh", "-c", script, "sh", *args)
        told = await self._agent.run(argv, timeout_s=limit_s)
        code = told.code if told.code is not None else 128 + (told.signal or 0)
        result = ShellResult(code=code, stdout=told.stdout, stderr=told.stderr)
        if told.timed_out or (check and code != 0):
            raise MachineError(f"A command on {self.name} failed: {why_ended(result)}")
        if on_line is not None:
            for line in told.stdout.splitlines():
                on_line(line)
        return result


class Greeting(System, frozen=True, kw_only=True):
    """The little that a shell tells of a machine, where no helper runs yet."""

    cores: int = 1
    cache: str = ""
    """The folder of our engines and helpers there: ``…/dllm-tui``."""
    helpers: dict[str, str] = {}
    """By the path of each helper there the hash of the one it was made from."""

    @property
    def newest(self) -> str:
        return max(self.helpers, key=_version_of, default="")


def greeting_of(text: str) -> Greeting:
    """Read the output of ``greet.sh``; nothing in it is needed but the system."""
    lines = {row[0]: row[1:] for row in rows(text)}
    os_name, arch = [*lines.get("uname", ()), "", ""][:2]
    cores = lines.get("cores", ["1"])[0]
    helpers = [row for row in rows(text) if row[0] == "relay" and len(row) == 3]
    return Greeting(
        os=os_name,
        arch=arch,
        libc=lines.get("libc", [""])[0],
        cores=int(cores) if cores.isdigit() else 1,
        cache=lines.get("cache", [""])[0],
        helpers={row[1]: row[2] for row in helpers},
    )


async def greet(shell: Shell) -> Greeting:
    return greeting_of((await shell.run(script("greet"))).stdout)


def _version_of(helper: str) -> tuple[int, ...]:
    version = PurePath(helper).parent.name
    return tuple(int(piece) for piece in version.split(".") if piece.isdigit())


LOCKED_ELSEWHERE = 75
_LOCK_S = 15.0
_IO_ERROR = 74
_CANNOT_WRITE = (
    "Let your account on {peer} write there (owner, mode, disk), or set XDG_CACHE_HOME "
    "for its logins; then repeat."
)


@cache
def script(*names: str) -> str:
    """The text of some scripts, with what they share before it."""
    shared = compiling.script("common")
    own = compiling.script("common", *names, package=f"{__package__}.scripts")
    return f"{shared}\n{own}"


class There:
    """A peer, for the scripts of a build.

    ``shell`` runs on it.
    """

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    async def run(
        self, name: str, *args: str, on_line: Callable[[str], None]
    ) -> tuple[int, str]:
        text = compiling.script("common", name)
        result = await self._shell.run(
            text, *args, timeout_s=None, check=False, on_line=on_line
        )
        return result.code, why_ended(result)


def why_ended(result: ShellResult) -> str:
    said = last_line(result.stderr) or last_line(result.stdout)
    return said or f"exit status {result.code}"


def rows(text: str) -> list[list[str]]:
    return [line.split("\t") for line in text.splitlines() if "\t" in line]


def refusal(peer: str, result: ShellResult) -> ProvisionError:
    hint = _CANNOT_WRITE if result.code == _IO_ERROR else ""
    return ProvisionError(f"{peer}: {why_ended(result)}", hint.format(peer=peer))


@contextlib.asynccontextmanager
async def lock(shell: Shell, name: str, doing: str) -> AsyncIterator[Greeting]:
    """Hold a lock on the peer: a process there, which ends with the connection.

    It greets too: whoever installs needs that, and no session more. ``doing`` is what
    goes on if another has it: ``"An installation"``.
    """
    held: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
    said: list[str] = []

    def listen(line: str) -> None:
        if line.startswith("held\t") and not held.done():
            held.set_result(line.split("\t")[1:])
        elif not held.done():
            said.append(line)

    text = script("greet", "hold")
    holding = asyncio.ensure_future(
        shell.run(text, name, timeout_s=None, check=False, on_line=listen)
    )
    try:
        await asyncio.wait(
            (holding, held), timeout=_LOCK_S, return_when=asyncio.FIRST_COMPLETED
        )
        if not held.done():
            raise await _refusal(shell, holding, doing)
        yield greeting_of("\n".join(said))
    finally:
        if held.done() and not held.cancelled() and not holding.done():
            with contextlib.suppress(MachineError):
                await shell.run('rm -f "$@"', *held.result())
        holding.cancel()
        with contextlib.suppress(asyncio.CancelledError, MachineError):
            await holding


async def _refusal(
    shell: Shell, holding: asyncio.Future[ShellResult], doing: str
) -> MachineError:
    if not holding.done():
        return MachineError(f"{shell.name} did not answer within {_LOCK_S:g} s")
    result = await holding
    if result.code == LOCKED_ELSEWHERE:
        return PeerBusy(
            f"{doing} is under way on {shell.name} already ({why_ended(result)})",
            "Wait for it to end, or end it where it was begun.",
        )
    return refusal(shell.name, result)


class ProvisionError(MachineError):
    """Something could not be installed on a peer; carries the end of its output."""


class PeerBusy(ProvisionError):
    """Somebody else installs something there, or what is to go still runs."""


class PeerFull(ProvisionError):
    """The disk there is full, or too small to begin."""


class DoesNotRun(ProvisionError):
    """Our programs cannot run there as they are."""


class CannotBuild(ProvisionError):
    """A compiler or CMake is missing, or failed."""


class WrongFile(ProvisionError):
    pass


def peer_full(
    peer: str, folder: str, need_bytes: int, free_bytes: int | None = None
) -> PeerFull:
    """The sentence for a full disk, before (``free_bytes`` given) or during."""
    what = f"The disk of {peer} holding {folder} became full"
    if free_bytes is not None:
        free = format_bytes(free_bytes)
        what = f"Only {free} are free on the disk of {peer} holding {folder}"
    return PeerFull(what, f"It needs {format_bytes(need_bytes)}: free some and repeat.")


def transfer_error(peer: str, error: Exception) -> MachineError:
    """Explain a failed transfer: a broken connection, a refusal there, our disk."""
    if isinstance(error, asyncssh.SFTPNoConnection | asyncssh.SFTPConnectionLost):
        return PeerUnreachable(f"The connection to {peer} broke", _RESUMES)
    if isinstance(error, asyncssh.SFTPPermissionDenied):
        return ProvisionError(f"{peer} refused to write a file ({error.reason})")
    if isinstance(error, asyncssh.SFTPError):
        return ProvisionError(f"{peer} could not write a file ({error.reason})")
    unrouted = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)
    is_network = isinstance(error, ConnectionError | TimeoutError) or (
        isinstance(error, OSError) and error.errno in unrouted
    )
    if isinstance(error, OSError) and not is_network:
        what = f"{error.filename or 'A file'} on this machine cannot be read or written"
        return ProvisionError(
            f"{what} ({error.strerror or error})", "Is its disk in order, and not full?"
        )
    return PeerUnreachable(f"The connection to {peer} broke ({error})", _RESUMES)


_RESUMES = "Repeat it: it goes on where it stopped."
