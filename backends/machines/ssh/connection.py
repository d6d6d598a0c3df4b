"""A machine reached over SSH: one connection, shared by all that goes there."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shlex
import signal
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import asyncssh

from backends.errors import HostError, PeerUnreachable
from backends.link.way import LOOPBACK
from backends.machines.shell import (
    RUN_TIMEOUT_S,
    Greeting,
    ShellResult,
    greeting_of,
    script,
)
from backends.machines.ssh.config import resolve
from backends.machines.ssh.errors import connection_lost, no_commands
from backends.machines.ssh.files import FilesLink
from backends.machines.ssh.login import CLOSE_TIMEOUT_S, SshRoute
from backends.machines.ssh.tunnels import Tunnel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from pathlib import Path

    from backends.machines.ssh.config import Destination
    from backends.machines.ssh.tunnels import RemoteEnd
    from backends.state import QuestionKind


STDOUT_LIMIT_BYTES = 4 << 20
STDERR_LIMIT_BYTES = 64 << 10
END_TIMEOUT_S = 5.0
"""Longest time a script may take to die when it is ended."""

_SESSION_RETRIES_S = (0.05, 0.2, 1.0)

# All that the login shell, whichever it is, ever sees.
_COMMAND = "exec /bin/sh -s"
_CHUNK_BYTES = 64 << 10
_MARK_BYTES = 1024 << 10
"""Most that a login shell may print before the start."""

# The braces make sh read all of it before it starts: the watcher then has the rest of
# stdin to itself. When that ends, because the script has ended, the channel was closed
# or the connection is gone, it kills all that is left of the script's process group; a
# session's command leads one of its own. What is to stay must have its own session.
_FRAME = r"""{{
LC_ALL=C; export LC_ALL
set -- {arguments}
exec 3<&0 </dev/null
(while read -r dllm_; do :; done; kill -s KILL -- -$$) <&3 >/dev/null 2>&1 &
exec 3<&-
printf '%s\n' {mark}; printf '%s\n' {mark} >&2
(eval {script})
exit $?
}}
"""

Connection = asyncssh.SSHClientConnection
Process = asyncssh.SSHClientProcess[bytes]


async def run_script(
    connection: Connection,
    name: str,
    script: str,
    args: Sequence[str] = (),
    *,
    timeout_s: float | None,
    on_line: Callable[[str], None] | None = None,
) -> ShellResult:
    """Run a script as ``Shell.run`` does, whatever status it ends with.

    With ``on_line`` only the last 4 MB of stdout are kept for the result.
    """
    mark = secrets.token_hex(16)
    text = _framed(name, script, args, mark)
    session = _Session(name, mark.encode(), on_line)
    try:
        async with asyncio.timeout(timeout_s):
            return await session.run(connection, text)
    except TimeoutError as error:
        raise HostError(
            f"A command on {name} took longer than {timeout_s:g} s"
            + session.last_words(),
            "The machine may be overloaded; try again.",
        ) from error


def _framed(name: str, script: str, args: Sequence[str], mark: str) -> bytes:
    if any("\0" in text for text in (script, *args)):
        raise HostError(f"A command for {name} contains a NUL character")
    text = _FRAME.format(
        arguments=" ".join(shlex.quote(arg) for arg in args),
        mark=mark,
        script=shlex.quote(script),
    )
    return text.encode("utf-8", "surrogateescape")


async def open_session(connection: Connection, name: str) -> Process:
    """A session whose standard input sh reads."""
    # A session that has just ended may still count for sshd's MaxSessions.
    for pause_s in (*_SESSION_RETRIES_S, None):
        try:
            return await connection.create_process(_COMMAND, encoding=None)
        except asyncssh.ChannelOpenError as error:
            if pause_s is None or connection.is_closed():
                raise HostError(
                    f"{name} opens no further session ({error.reason})",
                    "Raise MaxSessions in its sshd_config.",
                ) from error
            await asyncio.sleep(pause_s)
    raise AssertionError


class _Session:
    """One script from start to end."""

    def __init__(
        self, name: str, mark: bytes, on_line: Callable[[str], None] | None
    ) -> None:
        self._name = name
        self._stdout = _Output(mark, on_line)
        self._stderr = _Output(mark, None)
        self._follows = on_line is not None

    async def run(self, connection: Connection, text: bytes) -> ShellResult:
        process = await open_session(connection, self._name)
        try:
            process.stdin.write(text)
            return await self._follow(process)
        finally:
            await end_session(process)

    async def _follow(self, process: Process) -> ShellResult:
        readers = (
            asyncio.create_task(self._read_stdout(process)),
            asyncio.create_task(self._read_stderr(process)),
        )
        try:
            await asyncio.gather(*readers)
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
        await process.channel.wait_closed()
        return ShellResult(
            code=_code(process), stdout=self._stdout.text(), stderr=self._stderr.text()
        )

    async def _read_stdout(self, process: Process) -> None:
        while data := await process.stdout.read(_CHUNK_BYTES):
            self._stdout.add(data)
            if self._stdout.size > STDOUT_LIMIT_BYTES:
                if not self._follows:
                    raise HostError(
                        f"A command on {self._name} printed more than "
                        f"{STDOUT_LIMIT_BYTES >> 20} MB"
                    )
                self._stdout.trim(STDOUT_LIMIT_BYTES)
        self._stdout.finish()

    async def _read_stderr(self, process: Process) -> None:
        while data := await process.stderr.read(_CHUNK_BYTES):
            self._stderr.add(data)
            self._stderr.trim(STDERR_LIMIT_BYTES)

    def last_words(self) -> str:
        """The last line of stderr, to be put behind a message."""
        return last_line(self._stderr.text())


def last_line(stderr: str) -> str:
    """``: the last line``, or nothing."""
    lines = stderr.strip().splitlines()
    return f": {lines[-1].strip()}" if lines else ""


class _Output:
    """Output of one stream behind the mark, bounded."""

    def __init__(self, mark: bytes, on_line: Callable[[str], None] | None) -> None:
        self.size = 0
        self._mark: bytes | None = mark + b"\n"
        self._before = b""
        self._chunks: deque[bytes] = deque()
        self._on_line = on_line
        self._line = b""

    def add(self, data: bytes) -> None:
        if self._mark is not None:
            data = self._skip(self._mark, data)
        if data:
            self._chunks.append(data)
            self.size += len(data)
            if self._on_line is not None:
                self._tell(data, self._on_line)

    def trim(self, limit_bytes: int) -> None:
        while self.size > limit_bytes and len(self._chunks) > 1:
            self.size -= len(self._chunks.popleft())

    def finish(self) -> None:
        if self._line and self._on_line is not None:
            self._on_line(_decoded(self._line))
            self._line = b""

    def text(self) -> str:
        # Without a mark sh itself did not come up: all there is may say why.
        if self._mark is not None:
            return _decoded(self._before)
        return _decoded(b"".join(self._chunks))

    def _skip(self, mark: bytes, data: bytes) -> bytes:
        self._before += data
        before, found, after = self._before.partition(mark)
        if found:
            self._mark, self._before = None, b""
            return after
        self._before = before[-_MARK_BYTES:]
        return b""

    def _tell(self, data: bytes, on_line: Callable[[str], None]) -> None:
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            on_line(_decoded(line))
        if len(self._line) > _MARK_BYTES:
            on_line(_decoded(self._line))
            self._line = b""


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _code(process: Process) -> int:
    if process.exit_signal is not None:
        number = getattr(signal, f"SIG{process.exit_signal[0]}", None)
        return 128 + (int(number) if number is not None else 0)
    if process.exit_status is None:
        raise asyncssh.ConnectionLost("the session ended without a status")
    return process.exit_status


async def end_session(process: Process) -> None:
    """Close the session, which ends what still runs in it, and wait for that."""
    if process.channel.is_closing() and process.exit_status is not None:
        return
    process.stdin.write_eof()
    try:
        async with asyncio.timeout(END_TIMEOUT_S):
            await process.channel.wait_closed()
    except TimeoutError:
        process.channel.abort()
    except asyncio.CancelledError:
        process.channel.abort()
        raise


_WORDS_BYTES_MAX = 4096


class HeldSession:
    """Its standard input and output, until one of us ends it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._words = b""
        self._listening = asyncio.create_task(self._listen())

    async def read(self, most_bytes: int) -> bytes:
        try:
            return await self._process.stdout.read(most_bytes)
        except asyncssh.Error:
            return b""

    async def write(self, data: bytes) -> None:
        try:
            self._process.stdin.write(data)
            await self._process.stdin.drain()
        except asyncssh.Error as error:
            raise BrokenPipeError(str(error)) from error

    async def close(self) -> None:
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)
        await end_session(self._process)

    def last_words(self) -> str:
        text = self._words.decode(errors="replace").strip()
        return text.rpartition("\n")[2].removeprefix("dllm-relay: ")

    async def _listen(self) -> None:
        try:
            while data := await self._process.stderr.read(_WORDS_BYTES_MAX):
                self._words = (self._words + data)[-_WORDS_BYTES_MAX:]
        except asyncssh.Error:
            pass


async def hold(
    connection: asyncssh.SSHClientConnection, name: str, line: str, args: Sequence[str]
) -> HeldSession:
    """Run one line of POSIX sh with ``$1``… set; it is to ``exec`` a program.

    Nothing may be sent before that has printed something: what sh reads ahead is lost.
    """
    text = f"set -- {' '.join(map(shlex.quote, args))}; {line}"
    if any(ord(sign) < 32 for sign in text):
        raise HostError(f"A command for {name} contains a control character")
    process = await open_session(connection, name)
    session = HeldSession(process)
    await session.write(text.encode("utf-8", "surrogateescape") + b"\n")
    return session


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

    Connects on first use; a ``ConnectionSupervisor`` keeps it up.
    """

    def __init__(
        self,
        name: str,
        destination: Destination,
        *,
        config_file: Path | None = None,
        known_hosts: Path | None = None,
    ) -> None:
        self._name = name
        self.destination = destination
        self.on_lost: Callable[[PeerUnreachable], None] | None = None
        """Called once for each connection that broke without :meth:`close`."""
        self.greeting = Greeting()
        """The answer of a shell at the beginning of this connection."""
        self._places = (destination, config_file, known_hosts)
        self._route = SshRoute(*self._places)
        self._files = FilesLink(self._name, SshRoute(*self._places))
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
        return self._name

    @property
    def connected(self) -> bool:
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
        """True if somebody uses a tunnel through it now."""
        return any(tunnel.connections for tunnel in self._tunnels)

    async def rtt_ms(self) -> float:
        """Milliseconds of a tiny round trip through the open connection.

        Takes as long as the peer is silent, up to a minute.
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
        """
        link = await self._connected()
        try:
            return await hold(link, self.name, line, args)
        except (OSError, asyncssh.Error) as error:
            raise self._broken(link, error) from error

    async def forward(self, far: int | str, near: Path | int = 0) -> Tunnel:
        """Listen here for a port of the peer's loopback, or a Unix socket of its.

        ``near`` is a Unix socket of ours (0600), or a port (0: any).
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
            await self._be_greeted(link)
        except BaseException:
            link.abort()
            self._route.close()
            raise
        client.on_lost = lambda error: self._on_lost(link, error)
        self._link, self._lost = link, None
        if link.is_closed():
            self._on_lost(link, None)

    async def _be_greeted(self, link: asyncssh.SSHClientConnection) -> None:
        try:
            result = await run_script(
                link, self.name, script("greet"), timeout_s=RUN_TIMEOUT_S
            )
            self.greeting = greeting_of(result.stdout)
            if self.greeting.os:
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
