"""A machine reached over SSH: one connection, shared by all that goes there."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import asyncssh

from backends.errors import HostError, PeerUnreachable
from backends.link.way import LOOPBACK
from backends.machines.shell import RUN_TIMEOUT_S, ShellResult
from backends.machines.ssh.complaints import connection_lost, no_commands
from backends.machines.ssh.files import FilesLink
from backends.machines.ssh.held import HeldSession, hold
from backends.machines.ssh.route import CLOSE_TIMEOUT_S, Route
from backends.machines.ssh.script import last_line, run_script
from backends.machines.ssh.settings import resolve
from backends.machines.ssh.tunnels import Tunnel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

    from backends.machines.ssh.destination import Destination
    from backends.machines.ssh.pipes import RemoteEnd
    from backends.state import QuestionKind

PING_TIMEOUT_S = 90.0
"""More than the keepalives take to give a silent connection up."""

# sshd allows ten sessions on a connection (MaxSessions); one is held, some are being
# closed.
_SHORT_SESSIONS = 5
_LONG_SESSIONS = 3
_LONG_S = 60.0
_SLOT_TIMEOUT_S = 30.0
# sshd binds to no path that is taken, also by a socket that a broken connection left.
_REMOVE_SOCKET = '[ ! -S "$1" ] || rm -f -- "$1"'


class SshConnection:
    """Implements ``Shell``; and tunnels, files and heartbeats besides.

    Connects on first use; :class:`backends.machines.ssh.keeper.Keeper` keeps it up.
    """

    def __init__(
        self,
        name: str,
        destination: Destination,
        *,
        config_file: Path | None = None,
        known_hosts: Path | None = None,
    ) -> None:
        """Describe it; nothing is opened yet. None: the files OpenSSH would use."""
        self._name = name
        self.destination = destination
        self.on_lost: Callable[[PeerUnreachable], None] | None = None
        """Called once for each connection that broke without :meth:`close`."""
        self._places = (destination, config_file, known_hosts)
        self._route = Route(*self._places)
        self._files = FilesLink(self._name, Route(*self._places))
        self._link: asyncssh.SSHClientConnection | None = None
        self._lost: PeerUnreachable | None = None
        self._attempt: asyncio.Task[None] | None = None
        self._abandoned: asyncio.Task[None] | None = None
        self._waiting = 0
        self._tunnels: set[Tunnel] = set()
        self._short = asyncio.Semaphore(_SHORT_SESSIONS)
        self._long = asyncio.Semaphore(_LONG_SESSIONS)

    @property
    def name(self) -> str:
        """The peer's name, for messages."""
        return self._name

    @property
    def connected(self) -> bool:
        """Whether the connection is up, as far as anybody can know."""
        return self._link is not None and not self._link.is_closed()

    @property
    def lost(self) -> PeerUnreachable | None:
        """Why there is no connection any more; None while there is one."""
        return self._lost

    # -- The connection itself -----------------------------------------------------

    async def connect(self, answers: Mapping[QuestionKind, str] | None = None) -> None:
        """Connect, log in and see that commands run; at most 15 s for the login.

        Whoever calls this meanwhile shares the attempt. ``answers`` are used for this
        attempt only, and only by the host that asked: the fingerprint of a host key to
        trust (which is then remembered in known_hosts), a password, a passphrase.

        Raises:
            NeedsAnswer: only the user knows how to go on.
            PeerUnreachable: it cannot be reached, with the reason and what to do.
            HostError: the ssh config cannot be used.
        """
        while not self.connected:
            if self._attempt is None:
                self._attempt = asyncio.create_task(
                    self._connect(answers or {}, self._abandoned)
                )
                answers = None
            attempt = self._attempt
            self._waiting += 1
            try:
                await asyncio.shield(attempt)
            except asyncio.CancelledError:
                if not attempt.cancelled() or _is_being_cancelled():
                    raise
                raise PeerUnreachable(f"{self.name} was closed meanwhile") from None
            except Exception:
                # Somebody else's attempt, made without our answers, does not count.
                if not answers:
                    raise
            finally:
                self._waiting -= 1
                if not self._waiting and not attempt.done():
                    attempt.cancel()
                    self._abandoned = attempt
                if self._attempt is attempt and (attempt.done() or not self._waiting):
                    self._attempt = None

    async def wait_closed(self) -> PeerUnreachable | None:
        """Wait for the connection's end and say why; None: we closed it ourselves."""
        if self._link is not None:
            await self._link.wait_closed()
        return self._lost

    async def close(self) -> None:
        """End the connection with its tunnels; a later call of ours connects anew."""
        link, self._link = self._link, None
        for attempt in (self._attempt, self._abandoned):
            if attempt is not None:
                attempt.cancel()
                await asyncio.gather(attempt, return_exceptions=True)
        await asyncio.gather(*(tunnel.close() for tunnel in self._tunnels))
        self._tunnels.clear()
        await self._files.close()
        if link is not None:
            await _end(link)
        self._route.close()

    def give_up(self) -> None:
        """Break a connection that has been silent for too long; at once."""
        link = self._link
        if link is not None:
            self._on_lost(link, asyncssh.ConnectionLost("no answer to a keepalive"))
            link.abort()

    @property
    def flows(self) -> bool:
        """Whether somebody uses a tunnel through it now."""
        return any(tunnel.connections for tunnel in self._tunnels)

    async def rtt_ms(self) -> float:
        """Milliseconds of a tiny round trip through the open connection.

        Takes as long as the peer is silent, up to a minute.

        Raises:
            PeerUnreachable: there is no connection, or it broke meanwhile.
        """
        link = self._link
        if link is None or link.is_closed():
            raise self._lost or PeerUnreachable(f"{self.name} is not connected")
        start = time.monotonic()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PING_TIMEOUT_S):
                await asyncio.shield(_ping(link))
                if not link.is_closed():
                    return (time.monotonic() - start) * 1000
        raise self._lost or connection_lost(self.name, None)

    # -- What it is for --------------------------------------------------------------

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

        Raises:
            NeedsAnswer: connecting needs the user.
        """
        link = await self._connected()
        async with self._slot(timeout_s):
            try:
                result = await run_script(
                    link, self.name, script, args, timeout_s=timeout_s, on_line=on_line
                )
            except (OSError, asyncssh.Error) as error:
                raise self._broken(link, error) from error
            except HostError as error:
                if link.is_closed():
                    raise self._broken(link, error) from error
                raise
        if check and result.code != 0:
            raise HostError(
                f"A command on {self.name} ended with status {result.code}"
                + last_line(result.stderr)
            )
        return result

    async def hold(self, line: str, *args: str) -> HeldSession:
        """Run a line of sh that ``exec``s a program, and keep its session open.

        The login shell sees nothing of it. To be read from before it is written to.

        Raises:
            NeedsAnswer: connecting needs the user.
            HostError: there is no session to be had.
            PeerUnreachable: there is no connection, or it broke.
        """
        link = await self._connected()
        try:
            return await hold(link, self.name, line, args)
        except (OSError, asyncssh.Error) as error:
            raise self._broken(link, error) from error

    async def forward(self, far: int | str, near: Path | int = 0) -> Tunnel:
        """Listen here for a port of the peer's loopback, or a Unix socket of its.

        ``near`` is a Unix socket of ours (0600), or a port (0: any).

        Raises:
            HostError: the near end cannot be made.
            PeerUnreachable: there is no connection.
        """
        link = await self._connected()

        async def channel(factory: Callable[[], RemoteEnd]) -> Any:
            if isinstance(far, int):
                return await link.create_connection(factory, LOOPBACK, far)
            return await link.create_unix_connection(factory, far)

        tunnel = self._new_tunnel(f"port {far}" if isinstance(far, int) else far)
        await tunnel.listen_here(channel, near)
        return tunnel

    async def forward_back(self, endpoint: str, far: str = "") -> Tunnel:
        """Listen at the peer for an endpoint of ours.

        ``far`` is a path there for a Unix socket of its user alone; empty: a port of
        its loopback, chosen there.

        Raises:
            HostError: its sshd forbids that.
            PeerUnreachable: there is no connection, or it broke.
        """
        link = await self._connected()
        tunnel = self._new_tunnel(f"our {endpoint}")
        if far:
            await self.run(_REMOVE_SOCKET, far)
        try:
            await tunnel.listen_there(link, far, endpoint)
        except (OSError, asyncssh.Error) as error:
            raise self._broken(link, error) from error
        return tunnel

    @contextlib.asynccontextmanager
    async def files(self) -> AsyncIterator[asyncssh.SFTPClient]:
        """An SFTP client on a second connection, so that no token waits for a copy.

        The second connection ends when unused for a minute. Where it would take another
        answer of the user's (a password), files share the one connection.

        Raises:
            HostError: the peer offers no SFTP.
            PeerUnreachable: there is no connection.
        """
        link = await self._connected()
        async with self._files.client(link) as client:
            yield client

    # -- Inside ----------------------------------------------------------------------

    async def _connect(
        self, answers: Mapping[QuestionKind, str], before: asyncio.Task[None] | None
    ) -> None:
        if before is not None:
            # It may still be closing what this attempt will open.
            await asyncio.gather(before, return_exceptions=True)
        link, client = await self._route.open(answers)
        try:
            # Also a must before any tunnel: sshd sets TCP_NODELAY with the first
            # session, and without it every token may wait 40 ms.
            await self._see_that_commands_run(link)
        except BaseException:
            link.abort()
            self._route.close()
            raise
        client.on_lost = lambda error: self._on_lost(link, error)
        self._link, self._lost = link, None
        if link.is_closed():
            self._on_lost(link, None)

    async def _see_that_commands_run(self, link: asyncssh.SSHClientConnection) -> None:
        try:
            result = await run_script(
                link, self.name, "echo ok", timeout_s=RUN_TIMEOUT_S
            )
            if result.stdout == "ok\n":
                return
            said = result.stdout + result.stderr
        except (HostError, OSError, asyncssh.Error) as error:
            if link.is_closed():
                raise connection_lost(self.name, error) from error
            said = str(error)
        raise no_commands(await asyncio.to_thread(resolve, *self._places), said)

    async def _connected(self) -> asyncssh.SSHClientConnection:
        await self.connect()
        if self._link is None:
            raise self._lost or connection_lost(self.name, None)
        return self._link

    def _new_tunnel(self, what: str) -> Tunnel:
        self._tunnels = {tunnel for tunnel in self._tunnels if tunnel.is_open}
        tunnel = Tunnel(self.name, what)
        self._tunnels.add(tunnel)
        return tunnel

    @contextlib.asynccontextmanager
    async def _slot(self, timeout_s: float | None) -> AsyncIterator[None]:
        is_long = timeout_s is None or timeout_s > _LONG_S
        slots = self._long if is_long else self._short
        try:
            async with asyncio.timeout(_SLOT_TIMEOUT_S):
                await slots.acquire()
        except TimeoutError as error:
            raise HostError(
                f"Too many commands run on {self.name} at once", "Try again later."
            ) from error
        try:
            yield
        finally:
            slots.release()

    def _broken(
        self, link: asyncssh.SSHClientConnection, error: Exception
    ) -> PeerUnreachable:
        if link is self._link or self._link is None:
            return self._lost or connection_lost(self.name, error)
        return connection_lost(self.name, error)

    def _on_lost(
        self, link: asyncssh.SSHClientConnection, error: Exception | None
    ) -> None:
        if link is not self._link:
            return
        self._link = None
        self._lost = connection_lost(self.name, error)
        for tunnel in self._tunnels:
            tunnel.abort()
        self._tunnels.clear()
        self._route.close()
        if self.on_lost is not None:
            self.on_lost(self._lost)


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _ping(link: asyncssh.SSHClientConnection) -> None:
    # What asyncssh's own keepalive sends; it has no public name for it.
    await link._make_global_request(b"keepalive@openssh.com")


async def _end(link: asyncssh.SSHClientConnection) -> None:
    link.close()
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await link.wait_closed()
    except TimeoutError:
        link.abort()
