"""Logging in to a worker that we are paired with, by whatever socket leads there."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import asyncssh
import msgspec

from backends.errors import HostError, PeerUnreachable, Revoked
from backends.machines.shell import Greeting
from backends.machines.ssh.config import Destination
from backends.machines.ssh.connection import Connection
from backends.machines.ssh.errors import connection_lost
from backends.machines.ssh.login import (
    CONNECT_TIMEOUT_S,
    FAST_CIPHERS,
    KEEPALIVE_MISSES,
    KEEPALIVE_S,
    LoginClient,
)
from backends.machines.ssh.sessions import HeldSession
from backends.mesh.dialling import dial_any
from backends.mesh.identity import line_of_raw, own_key, public_line
from backends.mesh.messages import (
    AGENT,
    HELLO,
    NOISE,
    PAIR,
    PROTOCOL,
    USER_BY_KEY,
    USER_BY_SECRET,
    PairAnswer,
    PairRequest,
    WorkerHello,
    read_line,
)
from backends.state import NOT_JSON

if TYPE_CHECKING:
    from backends.link.transport import LinkTransport
    from backends.machines.shell import ShellResult
    from backends.machines.ssh.tunnels import Tunnel
    from backends.mesh.token import Token
    from backends.state import PeerPath, QuestionKind

PAIR_S = 20.0
_CHUNK_BYTES = 64 << 10
_NO_SHELL = "{name} is lent by its owner: it gives no shell"


class Dial(Protocol):
    """A way to get a connected socket to one machine; TCP, or anything like it."""

    @property
    def label(self) -> str:
        """The place as messages name it."""
        ...

    @property
    def shares(self) -> bool:
        """True if there is one socket at a time, for tokens and files alike."""
        ...

    @property
    def path(self) -> PeerPath | None:
        """The path of the oldest socket that is open; None for one of TCP."""
        ...

    async def connected(self) -> socket.socket: ...

    async def otherwise(self) -> socket.socket | None:
        """Another way, after another machine answered; None if there is none."""
        ...


async def no_other_way(_: Dial) -> None:
    """``otherwise`` of a dial that knows one way."""


class Dialled:
    """A machine that listens at one of some places."""

    shares = False
    path = None
    otherwise = no_other_way

    def __init__(self, places: Sequence[str]) -> None:
        self._places = places
        self.label = " or ".join(places)

    async def connected(self) -> socket.socket:
        return await dial_any(self._places)


class InvitedLogin:
    """Opens connections to one worker, with our key and to its key alone."""

    def __init__(self, name: str, dial: Dial, host_key: str, key_file: Path) -> None:
        self._name = name
        self._dial = dial
        self._host_key = host_key
        self._key_file = key_file

    async def open(
        self, answers: Mapping[QuestionKind, str] | None = None
    ) -> asyncssh.SSHClientConnection:
        """Connect and log in, within 15 s."""
        key = await asyncio.to_thread(own_key, self._key_file)
        try:
            async with reaching(self._name, self._dial.label, CONNECT_TIMEOUT_S):
                made = await self._dial.connected()
                login = {"username": USER_BY_KEY, "client_keys": [key]}
                return await _logged_in(self._dial, made, self._host_key, **login)
        except asyncssh.PermissionDenied as error:
            raise Revoked(
                f"{self._name} lets this console in no more",
                "Its owner has revoked it: ask for a token, and add it again.",
            ) from error

    def close(self) -> None:
        """There is nothing in between."""


@contextlib.asynccontextmanager
async def reaching(name: str, label: str, within_s: float) -> AsyncIterator[None]:
    """Tell in one sentence why a worker is not reached; a refusal is the caller's."""
    try:
        async with asyncio.timeout(within_s):
            yield
    except asyncssh.PermissionDenied:
        raise
    except TimeoutError as error:
        raise PeerUnreachable(
            f"{name} ({label}) did not answer within {within_s:g} s",
            "Does its dllm-tui worker run?",
        ) from error
    except (OSError, asyncssh.Error) as error:
        raise _explained(name, label, error) from error


def _explained(name: str, label: str, error: Exception) -> PeerUnreachable:
    if isinstance(error, asyncssh.HostKeyNotVerifiable):
        return PeerUnreachable(
            f"Another machine answers at {label}: its key is not that of {name}",
            "If it was set up anew, ask for a token, and add it again.",
        )
    why = getattr(error, "reason", "") or str(error) or type(error).__name__
    return PeerUnreachable(
        f"{name} ({label}) cannot be reached ({str(why).rstrip('.')})",
        "Does its dllm-tui worker run?",
    )


async def client_over(
    made: socket.socket, host_key: str | None, **login: Any
) -> asyncssh.SSHClientConnection:
    """An SSH client on a socket; without ``host_key`` whoever is there is let in."""
    known: Any = None
    if host_key is not None:
        known = ([asyncssh.import_public_key(host_key)], [], [])
    # The near end of a stream of QUIC has no address.
    host = "worker" if made.family is socket.AF_UNIX else ""
    try:
        return await asyncssh.connect(
            host,
            sock=made,
            client_factory=lambda: LoginClient((), (), None),
            known_hosts=known,
            server_host_key_algs=["ssh-ed25519"],
            encryption_algs=FAST_CIPHERS,
            keepalive_interval=KEEPALIVE_S,
            keepalive_count_max=KEEPALIVE_MISSES,
            config=None,
            agent_path=None,
            agent_forwarding=False,
            gss_host=None,
            **login,
        )
    except BaseException:
        made.close()
        raise


async def _logged_in(
    dial: Dial, made: socket.socket, host_key: str, **login: Any
) -> asyncssh.SSHClientConnection:
    try:
        return await client_over(made, host_key, **login)
    except (asyncssh.HostKeyNotVerifiable, asyncssh.KeyExchangeFailed):
        # As another home's machine at the same private address.
        other = None
        with contextlib.suppress(HostError):
            other = await dial.otherwise()
        if other is None:
            raise
        return await client_over(other, host_key, **login)


class InvitedConnection(Connection):
    """A connection to a worker that is lent: an agent, files, and ways to workers."""

    builds = False

    def __init__(self, name: str, dial: Dial, host_key: str, key_file: Path) -> None:
        super().__init__(
            name,
            Destination(host=name),
            login=lambda: InvitedLogin(name, dial, host_key, key_file),
        )
        self.hello = WorkerHello(protocol=PROTOCOL)
        self._shares = dial.shares

    async def _be_greeted(self, link: asyncssh.SSHClientConnection) -> None:
        try:
            told = await _first_line(link, HELLO)
            self.hello = msgspec.json.decode(told, type=WorkerHello)
        except (OSError, TimeoutError, asyncssh.Error) as error:
            raise connection_lost(self.name, error) from error
        except NOT_JSON as error:
            raise PeerUnreachable(
                f"{self.name} gave an answer without sense"
            ) from error
        if self.hello.protocol != PROTOCOL:
            raise PeerUnreachable(
                f"{self.name} runs dllm-tui {self.hello.version}, which this one does "
                "not understand",
                "Install the same version on both machines.",
            )
        if self.hello.refusal:
            raise PeerUnreachable(f"{self.name} is not lent now: {self.hello.refusal}")
        it = self.hello
        self.greeting = Greeting(
            os=it.os, arch=it.arch, libc=it.libc, helpers={it.relay: ""}
        )

    async def run(self, script: str, *args: str, **_: Any) -> ShellResult:
        raise HostError(_NO_SHELL.format(name=self.name))

    async def hold(self, line: str, *args: str) -> HeldSession:
        """Open its agent, whatever line would start one elsewhere."""
        return HeldSession(await self._subsystem(AGENT))

    async def noise(self, heard: Callable[[int], None]) -> None:
        process = await self._subsystem(NOISE)
        while data := await process.stdout.read(_CHUNK_BYTES):
            heard(len(data))

    async def _subsystem(self, name: str) -> asyncssh.SSHClientProcess[bytes]:
        link = self._open_link()
        try:
            return await link.create_process(subsystem=name, encoding=None)
        except (OSError, asyncssh.Error) as error:
            raise self._broken(link, error) from error

    async def forward_back(self, beyond: LinkTransport, far: str = "") -> Tunnel:
        raise HostError(
            f"{self.name} is lent as a worker: it cannot be the head",
            "Make another machine the head.",
        )

    async def _files_over(
        self, shared: asyncssh.SSHClientConnection
    ) -> asyncssh.SSHClientConnection:
        return shared if self._shares else await super()._files_over(shared)

    async def _start_sftp(
        self, link: asyncssh.SSHClientConnection
    ) -> asyncssh.SFTPClient:
        try:
            return await link.start_sftp_client()
        except (OSError, asyncssh.Error) as error:
            raise connection_lost(self.name, error) from error


async def _first_line(link: asyncssh.SSHClientConnection, subsystem: str) -> bytes:
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        process = await link.create_process(subsystem=subsystem, encoding=None)
        line = await read_line(process.stdout)
        process.close()
        return line


async def pair(
    token: Token, key_file: Path, name: str, dial: Dial | None = None
) -> str:
    """Hand our key to the worker of a token, by TCP or another way; its own name.

    Its host key is that of the token, or it is told nothing.

    Raises:
        HostError: it cannot be reached, is another, or lets nobody in by this token.
    """
    key = await asyncio.to_thread(own_key, key_file)
    dial = dial or Dialled(token.places)
    made = await dial.connected()
    try:
        async with reaching(token.name, dial.label, PAIR_S):
            link = await _logged_in(
                dial,
                made,
                line_of_raw(token.key),
                username=USER_BY_SECRET,
                password=token.secret.hex(),
                client_keys=None,
            )
            try:
                return await _handed_over(link, key, name)
            finally:
                link.close()
    except asyncssh.PermissionDenied as error:
        raise HostError(
            f"{token.name} does not know this token", "Ask for another one."
        ) from error
    except NOT_JSON as error:
        raise HostError(f"{token.name} gave an answer without sense") from error


async def _handed_over(
    link: asyncssh.SSHClientConnection, key: asyncssh.SSHKey, name: str
) -> str:
    process = await link.create_process(subsystem=PAIR, encoding=None)
    request = PairRequest(name=name, key=public_line(key))
    process.stdin.write(msgspec.json.encode(request) + b"\n")
    told = await read_line(process.stdout)
    answer = msgspec.json.decode(told, type=PairAnswer)
    if answer.problem:
        raise HostError(answer.problem)
    return answer.name
