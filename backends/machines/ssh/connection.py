"""A machine reached over SSH: one connection, kept up and shared."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import asyncssh
from msgspec.structs import replace

from backends.errors import (
    MachineError,
    NeedsAnswer,
    PeerUnreachable,
    Revoked,
    Withheld,
)
from backends.link.transport import LOOPBACK, LinkTransport
from backends.machines.shell import (
    RUN_TIMEOUT_S,
    Greeting,
    ShellResult,
    greeting_of,
    script,
)
from backends.machines.ssh.authentication import CLOSE_TIMEOUT_S, Login, on_lost
from backends.machines.ssh.config import Destination, resolve
from backends.machines.ssh.errors import connection_lost, no_commands
from backends.machines.ssh.files import start_sftp
from backends.machines.ssh.sessions import HeldSession, behind, hold, run_script
from backends.machines.ssh.tunnels import RemoteEnd, Tunnel
from backends.state import PeerQuestion, QuestionKind, Value
from backends.tasks import end_tasks

HEARTBEAT_S = 1.0
"""At most one message a second; asyncssh sends none of its own in between."""
SUSPECT_AFTER_S = 2.0
LOST_AFTER_S = 60.0
"""A pulled cable or a sleeping access point only pauses what runs, for a minute."""
PING_TIMEOUT_S = 90.0
"""More than the keepalives take to give a silent connection up."""
FIRST_RETRY_S = 1.0
LAST_RETRY_S = 60.0
FILES_IDLE_S = 60.0
_TICK_S = 0.5
_SETTLED_S = 30.0
"""A connection that held this long was a good one: the back-off starts anew."""
# sshd allows ten sessions on a connection (MaxSessions); one is held, some are being
# closed.
_SHORT_SESSIONS = 5
_LONG_SESSIONS = 3
_LONG_S = 60.0
_SLOT_TIMEOUT_S = 30.0
# A megabyte that a compressing connection cannot make much smaller.
NOISE = """\
block=$(od -An -v -tx1 -N 32768 /dev/urandom | tr -d ' \\n' | fold -w 4095)
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do printf '%s\\n' "$block"; done
"""
# sshd binds to no path that is taken, also by a socket that a broken connection left.
_REMOVE_SOCKET = '[ ! -S "$1" ] || rm -f -- "$1"'


class ConnectionPhase(StrEnum):
    CONNECTING = "connecting"
    CONNECTED = "connected"
    WAITING = "waiting"
    """For the next attempt: ``retry_at``."""
    ASKING = "asking"
    """For the user's answer to ``question``."""
    STOPPED = "stopped"


class ConnectionState(Value, frozen=True, kw_only=True):
    phase: ConnectionPhase = ConnectionPhase.STOPPED
    since: float = 0.0
    """Unix seconds at which this phase began; WAITING and CONNECTING after a failure
    keep the time since which the peer is unreachable: of its last answer, where it
    fell silent."""
    note: str = ""
    """The reason why it is not connected, in one sentence."""
    question: PeerQuestion | None = None
    rtt_ms: float | None = None
    """Of the newest heartbeat; None when not connected, and while suspect."""
    suspect: bool = False
    """No answer for two seconds, though the connection is not given up."""
    silent_for_s: float = 0.0
    """Seconds since the newest answer, while suspect."""
    retry_at: float | None = None
    """Unix seconds of the next attempt."""
    revoked: bool = False
    """True if it let us in no more, when it was tried last."""
    withheld: bool = False
    """True if its owner lent nothing then."""


class Opener(Protocol):
    """As ``Login`` does: opens connections to one machine, one attempt at a time."""

    async def open(
        self, answers: Mapping[QuestionKind, str] | None = None
    ) -> asyncssh.SSHClientConnection: ...

    def close(self) -> None: ...


class Connection:
    """Implements ``Shell``; and tunnels, files and heartbeats besides.

    From ``start`` to ``stop`` it connects, watches, and connects again, with back-off
    and full jitter; else after each ``connect`` until it breaks.
    """

    builds = True
    """True if programs can be built and installed there."""

    def __init__(
        self,
        name: str,
        destination: Destination,
        *,
        config_file: Path | None = None,
        known_hosts: Path | None = None,
        heartbeat_s: float = HEARTBEAT_S,
        lost_after_s: float = LOST_AFTER_S,
        login: Callable[[], Opener] | None = None,
    ) -> None:
        self.name = name
        self.state = ConnectionState()
        self.on_state: Callable[[ConnectionState], None] = lambda _: None
        """Gets every change of the state, the heartbeats among them."""
        self.lost: PeerUnreachable | None = None
        """The reason why there is no connection any more; None while there is one."""
        self.greeting = Greeting()
        """The answer of a shell at the beginning of this connection."""
        self._heartbeat_s = heartbeat_s
        self._lost_after_s = lost_after_s
        self._resolved = lambda: resolve(destination, config_file, known_hosts)
        new = login or (lambda: Login(destination, config_file, known_hosts))
        self._login, self._files_login = new(), new()
        self._link: asyncssh.SSHClientConnection | None = None
        self._files_link: asyncssh.SSHClientConnection | None = None
        self._files_opening = asyncio.Lock()
        self._files_users = 0
        self._files_idle: asyncio.TimerHandle | None = None
        self._tunnels: set[Tunnel] = set()
        self._short = asyncio.Semaphore(_SHORT_SESSIONS)
        self._long = asyncio.Semaphore(_LONG_SESSIONS)
        self._keeping: asyncio.Task[None] | None = None
        self._broke = asyncio.Event()
        self._poked = asyncio.Event()
        self._answered = asyncio.Event()
        self._answers: Mapping[QuestionKind, str] = {}
        self._failures = 0
        self._heard_at = 0.0

    @property
    def connected(self) -> bool:
        return self._link is not None and not self._link.is_closed()

    # --- keeping it up --------------------------------------------------------------

    def start(self) -> None:
        """Begin to keep it up; needs a running event loop. May be called again."""
        if self._keeping is None or self._keeping.done():
            self._keeping = asyncio.create_task(self._keep())

    async def wait(self) -> None:
        """Until it is stopped, or an error of ours ends it, which is raised."""
        if self._keeping is not None:
            await asyncio.shield(self._keeping)

    async def stop(self) -> None:
        await end_tasks(self._keeping)
        await self.close()
        self._tell(_fresh(ConnectionPhase.STOPPED))

    def poke(self) -> None:
        """Try again at once, instead of waiting or of asking the user.

        What was asked for may have changed: a key was loaded, a host key accepted.
        An attempt under way may not have seen it: if it fails, another follows.
        """
        self._failures = 0
        self._poked.set()
        self._answered.set()

    def answer(self, answers: Mapping[QuestionKind, str]) -> None:
        if self.state.phase is ConnectionPhase.ASKING:
            self._answers = dict(answers)
            self._answered.set()

    async def _keep(self) -> None:
        while True:
            answers, self._answers = self._answers, {}
            self._poked.clear()
            self._tell(self._unreached(ConnectionPhase.CONNECTING))
            try:
                await self.connect(answers)
            except NeedsAnswer as needed:
                self._answered.clear()
                question = needed.question
                asking = _fresh(ConnectionPhase.ASKING)
                self._tell(replace(asking, question=question, note=question.text))
                await self._answered.wait()
            except MachineError as error:
                await self._wait(str(error), error)
            else:
                await self._watch()

    async def _wait(self, note: str, error: MachineError | None = None) -> None:
        most_s = min(LAST_RETRY_S, FIRST_RETRY_S * 2**self._failures)
        self._failures = min(self._failures + 1, 16)
        delay_s = random.uniform(0, most_s)
        waiting = self._unreached(ConnectionPhase.WAITING)
        retry_at = time.time() + delay_s
        whose = {
            "revoked": isinstance(error, Revoked),
            "withheld": isinstance(error, Withheld),
        }
        self._tell(replace(waiting, note=note, retry_at=retry_at, **whose))
        await wait_for(self._poked, delay_s)

    async def _watch(self) -> None:
        self._poked.clear()
        self._tell(_fresh(ConnectionPhase.CONNECTED))
        start = self._heard_at = time.monotonic()
        with contextlib.suppress(MachineError):
            await self._beat_until_it_breaks()
        if time.monotonic() - start > _SETTLED_S:
            self._failures = 0
        note = str(self.lost or "")
        since = time.time() - self.state.silent_for_s
        gone = ConnectionState(phase=ConnectionPhase.WAITING, since=since, note=note)
        self._tell(gone)
        # A machine that lets everybody in and drops them must not be hammered either.
        await self._wait(note, self.lost)

    async def _beat_until_it_breaks(self) -> None:
        while not self._broke.is_set():
            await self._beat()
            await wait_for(self._broke, self._heartbeat_s)

    async def _beat(self) -> None:
        ping = asyncio.create_task(self.ping_ms())
        try:
            while not (await asyncio.wait({ping}, timeout=_TICK_S))[0]:
                silent_s = time.monotonic() - self._heard_at
                if silent_s > self._lost_after_s:
                    if (link := self._link) is not None:
                        silence = asyncssh.ConnectionLost("no answer to a keepalive")
                        self._on_lost(link, silence)
                        link.abort()
                elif silent_s >= SUSPECT_AFTER_S:
                    self._change(rtt_ms=None, suspect=True, silent_for_s=silent_s)
            rtt_ms = round(ping.result(), 1)
            self._heard_at = time.monotonic()
            self._change(rtt_ms=rtt_ms, suspect=False, silent_for_s=0.0)
        finally:
            await end_tasks(ping)

    def _unreached(self, phase: ConnectionPhase) -> ConnectionState:
        # Unreachable since the first failure, not since the newest attempt.
        before = self.state
        if before.phase in (ConnectionPhase.CONNECTING, ConnectionPhase.WAITING):
            return replace(_fresh(phase), since=before.since, note=before.note)
        return _fresh(phase)

    def _change(self, **changes: Any) -> None:
        self._tell(replace(self.state, **changes))

    def _tell(self, state: ConnectionState) -> None:
        if state != self.state:
            self.state = state
            for tunnel in self._tunnels:
                tunnel.heartbeat_ms = state.rtt_ms
            self.on_state(state)

    # --- the connection itself ------------------------------------------------------

    async def connect(self, answers: Mapping[QuestionKind, str] | None = None) -> None:
        """Connect, log in and be greeted; at most 15 s for the login.

        ``answers`` are used for this attempt only, and only by the host that asked: the
        fingerprint of a host key to trust (which is then remembered in known_hosts), a
        password, a passphrase.

        Raises:
            NeedsAnswer: only the user knows how to go on.
        """
        self._broke.clear()
        link = await self._login.open(answers)
        try:
            # Also a must before any tunnel: sshd sets TCP_NODELAY with the first
            # session, and without it every token may wait 40 ms.
            await self._be_greeted(link)
        except BaseException:
            link.abort()
            self._login.close()
            raise
        self._take(link)

    def _take(self, link: asyncssh.SSHClientConnection) -> None:
        on_lost(link, lambda error: self._on_lost(link, error))
        self._link, self.lost = link, None
        if link.is_closed():
            self._on_lost(link, None)

    def _move_to(self, link: asyncssh.SSHClientConnection) -> None:
        """Go on over another link to the same machine, and close the one before.

        Tunnels stay: what goes through them breaks, and connects again over this one.
        """
        before = self._link
        self._take(link)
        self._heard_at = time.monotonic()
        if before is not None:
            before.close()
        if self._files_users == 0:
            self._leave_files()

    async def close(self) -> None:
        link, self._link = self._link, None
        await asyncio.gather(*(tunnel.close() for tunnel in self._tunnels))
        self._tunnels.clear()
        self._stay()
        files, self._files_link = self._files_link, None
        if files is not None:
            files.abort()
            await files.wait_closed()
        self._files_login.close()
        if link is not None:
            link.close()
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await link.wait_closed()
            except TimeoutError:
                link.abort()
        self._login.close()

    async def ping_ms(self) -> float:
        """Milliseconds of a tiny round trip through the open connection.

        Takes as long as the peer is silent, up to a minute.
        """
        link = self._open_link()
        if (answered_ms := await answer_ms(link)) is not None:
            return answered_ms
        if link is not self._link and self.connected:
            # It was moved meanwhile.
            return await self.ping_ms()
        raise self.lost or connection_lost(self.name, None)

    @property
    def flows(self) -> bool:
        return any(tunnel.connections for tunnel in self._tunnels)

    async def _be_greeted(self, link: asyncssh.SSHClientConnection) -> None:
        try:
            result = await run_script(
                link, self.name, script("greet"), timeout_s=RUN_TIMEOUT_S
            )
            self.greeting = greeting_of(result.stdout)
            if self.greeting.os:
                return
            said = result.stdout + result.stderr
        except (MachineError, OSError, asyncssh.Error) as error:
            if link.is_closed():
                raise connection_lost(self.name, error) from error
            said = str(error)
        raise no_commands(await asyncio.to_thread(self._resolved), said)

    def _open_link(self) -> asyncssh.SSHClientConnection:
        if self._link is None or self._link.is_closed():
            raise self.lost or PeerUnreachable(f"{self.name} is not connected")
        return self._link

    def _broken(
        self, link: asyncssh.SSHClientConnection, error: Exception
    ) -> PeerUnreachable:
        if link is self._link or self._link is None:
            return self.lost or connection_lost(self.name, error)
        return connection_lost(self.name, error)

    def _on_lost(
        self, link: asyncssh.SSHClientConnection, error: Exception | None
    ) -> None:
        if link is not self._link:
            return
        self._link = None
        self.lost = self._loss(error)
        for tunnel in self._tunnels:
            tunnel.abort()
        self._tunnels.clear()
        self._login.close()
        self._broke.set()

    def _loss(self, error: Exception | None) -> PeerUnreachable:
        return connection_lost(self.name, error)

    # --- programs -------------------------------------------------------------------

    async def run(
        self,
        script: str,
        *args: str,
        timeout_s: float | None = RUN_TIMEOUT_S,
        check: bool = True,
        on_line: Callable[[str], None] | None = None,
    ) -> ShellResult:
        """Run a script: see ``Shell.run``; the login shell never sees any of it.

        A script prints at most 4 MB, or with ``on_line`` the result has the last 4 MB.
        """
        link = self._open_link()
        async with self._slot(timeout_s):
            try:
                result = await run_script(
                    link, self.name, script, args, timeout_s=timeout_s, on_line=on_line
                )
            except (OSError, asyncssh.Error) as error:
                raise self._broken(link, error) from error
        if check and result.code != 0:
            raise MachineError(
                f"A command on {self.name} ended with status {result.code}"
                + behind(result.stderr)
            )
        return result

    async def hold(self, line: str, *args: str) -> HeldSession:
        """Run a line of sh that ``exec``s a program, and keep its session open.

        The login shell sees nothing of it. To be read from before it is written to.
        """
        link = self._open_link()
        try:
            return await hold(link, self.name, line, args)
        except (OSError, asyncssh.Error) as error:
            raise self._broken(link, error) from error

    async def noise(self, heard: Callable[[int], None]) -> None:
        """Have a megabyte sent, and tell of each piece that comes."""
        await self.run(NOISE, on_line=lambda line: heard(len(line) + 1))

    @contextlib.asynccontextmanager
    async def _slot(self, timeout_s: float | None) -> AsyncIterator[None]:
        is_long = timeout_s is None or timeout_s > _LONG_S
        slots = self._long if is_long else self._short
        try:
            async with asyncio.timeout(_SLOT_TIMEOUT_S):
                await slots.acquire()
        except TimeoutError as error:
            raise MachineError(
                f"Too many commands run on {self.name} at once", "Try again later."
            ) from error
        try:
            yield
        finally:
            slots.release()

    # --- tunnels --------------------------------------------------------------------

    async def forward(self, far: int | str, near: Path | int = 0) -> Tunnel:
        """Listen here for a port of the peer's loopback, or a Unix socket of its.

        ``near`` is a Unix socket of ours (0600), or a port (0: any).
        """
        self._open_link()

        async def channel(factory: Callable[[], RemoteEnd]) -> Any:
            # It may have been moved.
            link = self._open_link()
            if isinstance(far, int):
                return await link.create_connection(factory, LOOPBACK, far)
            return await link.create_unix_connection(factory, far)

        tunnel = self._new_tunnel(f"port {far}" if isinstance(far, int) else far)
        await tunnel.listen_here(channel, near)
        return tunnel

    async def forward_back(self, beyond: LinkTransport, far: str = "") -> Tunnel:
        """Listen at the peer for what goes on by a way of ours.

        ``far`` is a path there for a Unix socket of its user alone; empty: a port of
        its loopback, chosen there.
        """
        link = self._open_link()
        tunnel = self._new_tunnel(f"our {beyond.endpoint}", beyond)
        if far:
            await self.run(_REMOVE_SOCKET, far)
        try:
            await tunnel.listen_there(link, far, beyond.endpoint)
        except (OSError, asyncssh.Error) as error:
            raise self._broken(link, error) from error
        return tunnel

    def _new_tunnel(self, what: str, beyond: LinkTransport | None = None) -> Tunnel:
        self._tunnels = {tunnel for tunnel in self._tunnels if tunnel.open}
        tunnel = Tunnel(self.name, what, beyond)
        tunnel.heartbeat_ms = self.state.rtt_ms
        self._tunnels.add(tunnel)
        return tunnel

    # --- files ----------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def files(self) -> AsyncIterator[asyncssh.SFTPClient]:
        """An SFTP client on a second connection, so that no token waits for a copy.

        The second connection ends when unused for a minute. Where it would take another
        answer of the user's (a password), files share the one connection.
        """
        shared = self._open_link()
        self._files_users += 1
        self._stay()
        try:
            sftp = await self._start_sftp(await self._files_over(shared))
            try:
                yield sftp
            finally:
                sftp.exit()
        finally:
            self._files_users -= 1
            if self._files_users == 0 and self._files_link is not None:
                loop = asyncio.get_running_loop()
                self._files_idle = loop.call_later(FILES_IDLE_S, self._leave_files)

    async def _files_over(
        self, shared: asyncssh.SSHClientConnection
    ) -> asyncssh.SSHClientConnection:
        async with self._files_opening:
            if self._files_link is None or self._files_link.is_closed():
                try:
                    self._files_link = await self._files_login.open()
                except NeedsAnswer:
                    self._files_login.close()
                    return shared
            return self._files_link

    async def _start_sftp(
        self, link: asyncssh.SSHClientConnection
    ) -> asyncssh.SFTPClient:
        try:
            return await start_sftp(link)
        except (TimeoutError, asyncssh.ChannelOpenError, asyncssh.SFTPError) as error:
            raise MachineError(
                f"{self.name} takes and gives no files: it offers no SFTP ({error})",
                "Set Subsystem sftp internal-sftp in its sshd_config.",
            ) from error
        except (OSError, asyncssh.Error) as error:
            raise connection_lost(self.name, error) from error

    def _stay(self) -> None:
        if self._files_idle is not None:
            self._files_idle.cancel()
            self._files_idle = None

    def _leave_files(self) -> None:
        link, self._files_link = self._files_link, None
        if link is not None:
            link.close()
        self._files_login.close()


def _fresh(phase: ConnectionPhase) -> ConnectionState:
    return ConnectionState(phase=phase, since=time.time())


async def answer_ms(
    link: asyncssh.SSHClientConnection | asyncssh.SSHServerConnection,
) -> float | None:
    """Milliseconds of a tiny round trip; None if it was closed, or silent for long."""
    start = time.monotonic()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PING_TIMEOUT_S):
            # What asyncssh's own keepalive sends; it has no public name for it.
            ping = link._make_global_request(b"keepalive@openssh.com")
            await asyncio.shield(ping)
            if not link.is_closed():
                return (time.monotonic() - start) * 1000
    return None


async def wait_for(event: asyncio.Event, timeout_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
