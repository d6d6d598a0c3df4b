"""Logging in to a worker that we are paired with, by whatever socket leads there."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncssh
import msgspec

from backends.errors import (
    MachineError,
    NeedsAnswer,
    PeerUnreachable,
    Revoked,
    Withheld,
)
from backends.machines.shell import Greeting
from backends.machines.ssh.authentication import (
    CLOSE_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    FAST_CIPHERS,
    KEEPALIVE_MISSES,
    KEEPALIVE_S,
    Login,
    LoginClient,
    begin_session,
    on_lost,
)
from backends.machines.ssh.config import Destination
from backends.machines.ssh.connection import (
    SUSPECT_AFTER_S,
    Connection,
    ConnectionState,
    answer_ms,
    wait_for,
)
from backends.machines.ssh.errors import (
    connection_lost,
    forwarding_failed,
    hung_up,
    reason_of,
)
from backends.machines.ssh.sessions import HeldSession
from backends.machines.ssh.tunnels import connect_beyond
from backends.mesh.dialling import (
    DIAL_S,
    FIRST_LOOK_S,
    LAST_LOOK_S,
    Dialled,
    IndirectSocket,
    greeted,
    soonest,
)
from backends.mesh.identity import line_of_raw, own_key, public_line
from backends.mesh.messages import (
    AGENT,
    CLIENT_VERSION,
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
from backends.mesh.token import place
from backends.state import NOT_JSON, PeerPath
from backends.tasks import end_tasks

if TYPE_CHECKING:
    from backends.link.transport import LinkTransport
    from backends.machines.shell import ShellResult
    from backends.machines.ssh.tunnels import Tunnel
    from backends.mesh.dialling import Dial, SocketPath, Way
    from backends.mesh.token import Token
    from backends.state import QuestionKind

log = logging.getLogger(__name__)

PAIR_S = 20.0
PROVE_S = 5.0
"""So long another way is seen to answer before it is taken."""
PROVE_EVERY_S = 0.5
BUSY_MAX_S = 60.0
OTHERS_MAX = 8
"""Other ways that are tried, after other machines answered."""
LEFT_AFTER_S = 8.0
"""So long a way is silent before it is left; what is sent may hold up a ping."""
_CHUNK_BYTES = 64 << 10
_NO_SHELL = "{name} is lent by its owner: it gives no shell"


class LentLogin:
    """Opens connections to one worker, with our key and to its key alone."""

    def __init__(self, name: str, dial: Dial, host_key: str, key_file: Path) -> None:
        self._name = name
        self.dial = dial
        self._host_key = host_key
        self._key_file = key_file

    async def open(
        self, answers: Mapping[QuestionKind, str] | None = None
    ) -> asyncssh.SSHClientConnection:
        """Connect and log in, within 15 s."""
        return await self._opened(self.dial.connected, self.dial.otherwise)

    async def open_better(self, path: PeerPath | None) -> asyncssh.SSHClientConnection:
        """The same by a better way than a path."""
        return await self._opened(lambda: self.dial.better(path))

    async def _opened(
        self, way: Way, other: Way | None = None
    ) -> asyncssh.SSHClientConnection:
        key = await asyncio.to_thread(own_key, self._key_file)
        try:
            async with reaching(self._name, self.dial.label, CONNECT_TIMEOUT_S):
                made = await way()
                login = {"username": USER_BY_KEY, "client_keys": [key]}
                return await _logged_in(made, other, self._host_key, **login)
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
    why = "it hung up" if hung_up(error) else reason_of(error)
    return PeerUnreachable(
        f"{name} ({label}) cannot be reached ({why})",
        "Does its dllm-tui worker run?",
    )


async def client_over(
    made: socket.socket, host_key: str | None, **login: Any
) -> asyncssh.SSHClientConnection:
    """An SSH client on a socket; without ``host_key`` whoever is there is let in."""
    known: Any = None
    if host_key is not None:
        known = ([asyncssh.import_public_key(host_key)], [], [])
    path = made.path if isinstance(made, IndirectSocket) else None
    # Neither a stream of QUIC nor a channel of SSH has an address.
    host = "worker" if path else ""
    try:
        link = await asyncssh.connect(
            host,
            sock=made,
            client_factory=lambda: LoginClient((), (), None),
            client_version=CLIENT_VERSION,
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
    link.set_extra_info(path=path)
    return link


async def _logged_in(
    made: socket.socket, other: Way | None, host_key: str, **login: Any
) -> asyncssh.SSHClientConnection:
    left = OTHERS_MAX
    while True:
        try:
            return await client_over(made, host_key, **login)
        except (asyncssh.HostKeyNotVerifiable, asyncssh.KeyExchangeFailed) as wrong:
            # As another home's machine at the same private address.
            if other is None or left == 0:
                raise
            left -= 1
            try:
                made = await other()
            except MachineError:
                raise wrong from None


VIA_START_S = 2.0
"""Head start of every other way over one through an SSH host."""


class ThroughHost:
    """Implements ``Dial``: through an SSH host, where no other way goes.

    That host connects to ``places``, and sees nothing of what is sent.
    """

    shares = False

    def __init__(self, direct: Dial, host: str, places: Sequence[str]) -> None:
        self._direct = direct
        self._host = Destination.parse(host)
        self._places = places
        self.label = f"{direct.label} or through {host}"

    async def connected(self) -> socket.socket:
        return await soonest((self._directly, self._through), VIA_START_S)

    async def otherwise(self) -> socket.socket:
        ways = self._direct.otherwise, self._through
        return await soonest(ways, VIA_START_S)

    async def better(self, path: PeerPath | None) -> socket.socket:
        if path is not None and path.via:
            return await self._directly()
        return await self._direct.better(path)

    async def _directly(self) -> socket.socket:
        made = await self._direct.connected()
        if isinstance(made, IndirectSocket):
            return made
        return await greeted(made, self._direct.label)

    async def _through(self) -> socket.socket:
        login = Login(self._host)
        try:
            link = await login.open()
        except NeedsAnswer as error:
            login.close()
            raise MachineError(
                f"{self._host} asks something before it lets this console through",
                f"Log in to it once: ssh {self._host}.",
            ) from error
        on_lost(link, lambda _: login.close())
        try:
            await begin_session(link)
            return await self._beyond(link)
        except BaseException:
            link.abort()
            raise

    async def _beyond(self, link: asyncssh.SSHClientConnection) -> socket.socket:
        why = MachineError(f"{self._host} has no place to connect to")
        for one in self._places:
            host, _, port = one.rpartition(":")
            plain, ours = socket.socketpair()
            made = IndirectSocket(fileno=plain.detach())
            made.path = _HostPath(PeerPath(via=str(self._host), address=one))
            try:
                async with asyncio.timeout(DIAL_S):
                    await connect_beyond(link, ours, host.strip("[]"), int(port))
                return made
            except TimeoutError:
                why = MachineError(f"{self._host} reaches nobody at {one}")
            except asyncssh.ChannelOpenError as error:
                why = forwarding_failed(str(self._host), one, error)
            except BaseException:
                made.close()
                raise
            made.close()
        raise why


class _HostPath:
    def __init__(self, now: PeerPath) -> None:
        self.now = now


class LentConnection(Connection):
    """A connection to a worker that is lent: an agent, files, and ways to workers.

    While it goes by QUIC or through an SSH host, or has long been silent, it looks for
    another way.
    ``is_busy`` tells of what a move would break.
    """

    builds = False

    def __init__(self, name: str, dial: Dial, host_key: str, key_file: Path) -> None:
        self._ways = LentLogin(name, dial, host_key, key_file)
        super().__init__(name, Destination(host=name), login=lambda: self._ways)
        self.hello = WorkerHello(protocol=PROTOCOL)
        self.is_busy: Callable[[], bool] = lambda: False
        self.on_greeted: Callable[[], None] = lambda: None
        """Gets every login, once it is the one that is used."""
        self._shares = dial.shares

    @property
    def path(self) -> PeerPath | None:
        """The path now, by QUIC or an SSH host; None where it is of TCP."""
        return path.now if (path := self._indirect) is not None else None

    @property
    def place(self) -> str:
        """The address that it has been reached at; empty where that was by QUIC."""
        if (path := self.path) is not None:
            return path.address if path.via else ""
        end = self._link.get_extra_info("peername") if self._link is not None else None
        return place(*end[:2]) if end else ""

    def dial_by(self, dial: Dial, *, at_once: bool = False) -> None:
        """Dial it by another way from now on; the back-off stays as it is."""
        self._ways.dial = dial
        if at_once:
            self._poked.set()

    def _take(self, link: asyncssh.SSHClientConnection) -> None:
        super()._take(link)
        try:
            self.on_greeted()
        except MachineError as error:
            # The connection is good, whatever file cannot be written.
            log.warning("what %s has told is not kept: %s", self.name, error)

    @property
    def _indirect(self) -> SocketPath | None:
        path: SocketPath | None = None
        if self._link is not None:
            path = self._link.get_extra_info("path")
        return path

    # --- other ways -----------------------------------------------------------------

    async def _beat_until_it_breaks(self) -> None:
        looking = asyncio.create_task(self._look_about())
        try:
            await super()._beat_until_it_breaks()
        finally:
            await end_tasks(looking)

    def _tell(self, state: ConnectionState) -> None:
        was_silent = self._is_silent
        super()._tell(state)
        if self._is_silent and not was_silent:
            self._poked.set()

    async def _look_about(self) -> None:
        pause_s, due = FIRST_LOOK_S, 0.0
        while True:
            await wait_for(self._poked, LAST_LOOK_S if self._goes_well else pause_s)
            if self._goes_well and not self._poked.is_set():
                # It has held for long: the next look is not to be late.
                pause_s = FIRST_LOOK_S
            # One that is silent again soon may just have much to send.
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            self._poked.clear()
            if self._goes_well:
                continue
            pause_s = min(2 * pause_s, LAST_LOOK_S)
            if self._is_silent:
                due = time.monotonic() + pause_s
            try:
                await self._try_another_way()
            except (MachineError, OSError, asyncssh.Error) as error:
                log.debug("%s stays where it is: %s", self.name, error)

    @property
    def _is_silent(self) -> bool:
        return self.state.silent_for_s >= LEFT_AFTER_S

    @property
    def _goes_well(self) -> bool:
        return self._indirect is None and not self._is_silent

    async def _try_another_way(self) -> None:
        silent = self._is_silent
        if silent and self._files_users:
            raise MachineError("What is sent would break off")
        ways, path = self._ways, self.path
        link = await (ways.open() if silent else ways.open_better(path))
        try:
            await self._be_greeted(link)
            if not silent:
                await self._prove(link)
            recovered = silent and not self._is_silent
            if recovered or not self.connected or link.is_closed():
                raise connection_lost(self.name, None)
        except BaseException:
            link.abort()
            raise
        log.info("%s goes on by another way", self.name)
        self._move_to(link)

    async def _prove(self, link: asyncssh.SSHClientConnection) -> None:
        """See that it answers for a while; then wait until a move breaks nothing."""
        begun = time.monotonic()
        while True:
            async with asyncio.timeout(SUSPECT_AFTER_S):
                if await answer_ms(link) is None:
                    raise connection_lost(self.name, None)
            if self._is_silent:
                return
            proved_s = time.monotonic() - begun
            is_busy = bool(self._files_users) or self.is_busy()
            if proved_s >= PROVE_S and not is_busy:
                return
            if proved_s >= BUSY_MAX_S:
                raise MachineError("It is busy")
            await asyncio.sleep(PROVE_EVERY_S)

    async def _be_greeted(self, link: asyncssh.SSHClientConnection) -> None:
        try:
            told = await _first_line(link)
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
            raise self._withheld(self.hello.refusal)
        it = self.hello
        self.greeting = Greeting(
            os=it.os, arch=it.arch, libc=it.libc, helpers={it.relay: ""}
        )

    async def run(self, script: str, *args: str, **_: Any) -> ShellResult:
        raise MachineError(_NO_SHELL.format(name=self.name))

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
            raise await self._why_refused(link, error) from error

    async def _why_refused(
        self, link: asyncssh.SSHClientConnection, error: Exception
    ) -> MachineError:
        """The reason of its owner, who may have paused it just now."""
        try:
            await self._be_greeted(link)
        except Withheld as withheld:
            return withheld
        except MachineError:
            # Its last words, which tell why, may still be on their way.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await link.wait_closed()
            return self._broken(link, error)
        return MachineError(f"{self.name} refuses another session", "Try again later.")

    def _loss(self, error: Exception | None) -> PeerUnreachable:
        if isinstance(error, asyncssh.ServiceNotAvailable):
            return self._withheld(error.reason)
        return super()._loss(error)

    def _withheld(self, why: str) -> Withheld:
        return Withheld(f"{self.name} is not lent now: {why}")

    async def forward_back(self, beyond: LinkTransport, far: str = "") -> Tunnel:
        raise MachineError(
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


async def _first_line(link: asyncssh.SSHClientConnection) -> bytes:
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        process = await link.create_process(subsystem=HELLO, encoding=None)
        line = await read_line(process.stdout)
        process.close()
        return line


async def pair(
    token: Token, key_file: Path, name: str, dial: Dial | None = None
) -> str:
    """Hand our key to the worker of a token, by TCP or another way; its own name.

    Its host key is that of the token, or it is told nothing.
    """
    key = await asyncio.to_thread(own_key, key_file)
    dial = dial or Dialled(token.places)
    made = await dial.connected()
    try:
        async with reaching(token.name, dial.label, PAIR_S):
            link = await _logged_in(
                made,
                dial.otherwise,
                line_of_raw(token.key),
                username=USER_BY_SECRET,
                password=token.secret.hex(),
                client_keys=None,
            )
            try:
                process = await link.create_process(subsystem=PAIR, encoding=None)
                request = PairRequest(name=name, key=public_line(key))
                process.stdin.write(msgspec.json.encode(request) + b"\n")
                told = await read_line(process.stdout)
                answer = msgspec.json.decode(told, type=PairAnswer)
                if answer.problem:
                    raise MachineError(answer.problem)
                return answer.name
            finally:
                link.close()
    except asyncssh.PermissionDenied as error:
        raise MachineError(
            f"{token.name} does not know this token", "Ask for another one."
        ) from error
    except NOT_JSON as error:
        raise MachineError(f"{token.name} gave an answer without sense") from error
