"""The SSH server of a worker: an agent, model files, and ways to its own workers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import asyncssh
import msgspec

from backends.errors import DllmError
from backends.link.transport import LOOPBACK
from backends.machines.agent_channel import (
    ANSWER_BYTES_MAX,
    REQUEST_BYTES_MAX,
    Lines,
    decode_line,
    encode_line,
)
from backends.mesh.identity import public_line
from backends.mesh.messages import (
    AGENT,
    HELLO,
    LENDS_NO,
    LINE_BYTES_MAX,
    NOISE,
    NOISE_BYTES,
    PAIR,
    PART,
    SERVER_VERSION,
    SFTP,
    USER_BY_DIGITS,
    USER_BY_KEY,
    USER_BY_SECRET,
    PairAnswer,
    PairRequest,
    read_line,
)
from backends.mesh.request_policy import AgentPolicy, Denied
from backends.mesh.token import SECRET_BYTES
from backends.tasks import first_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from backends.mesh.dialling import SocketPath
    from backends.mesh.tenants import Tenant, Tenants
    from backends.mesh.token import Token

log = logging.getLogger(__name__)

T = TypeVar("T")

LOGIN_S = 15.0
KEEPALIVE_S = 15.0
KEEPALIVE_MISSES = 4
PAIR_S = 10.0
SESSIONS_MAX = 32
LINKS_MAX = 16
"""Connections of one console."""
READ_BYTES_MAX = 4 << 20
LEFT_BYTES_MIN = 1 << 30
"""So much of a disk is left to its owner."""
_CHUNK_BYTES = 64 << 10
OPTIONS: dict[str, Any] = {
    "server_version": SERVER_VERSION,
    "login_timeout": LOGIN_S,
    "keepalive_interval": KEEPALIVE_S,
    "keepalive_count_max": KEEPALIVE_MISSES,
    "encoding": None,
    "config": None,
    "allow_pty": False,
    "line_editor": False,
    "allow_scp": False,
    "agent_forwarding": False,
    "x11_forwarding": False,
    "gss_host": None,
    "kbdint_auth": False,
    "host_based_auth": False,
    "compression_algs": None,
}

Process = asyncssh.SSHServerProcess[bytes]


class WorkerServer(asyncssh.SSHServer):
    """One connection of a console, or of somebody who wants to be one.

    ``joining``: the token of a console; no other is let in then, and to nothing but the
    pairing. Without ``host_key`` nobody is paired by digits.
    """

    def __init__(
        self,
        tenants: Tenants,
        address: str,
        joining: Token | None = None,
        *,
        host_key: str = "",
        come_from: str = "",
    ) -> None:
        self._tenants = tenants
        self._address = address
        self._joining = joining
        self._host_key = host_key
        self._come_from = come_from
        self._key = self._new_key = ""
        self._secret = b""
        self._sessions = 0
        self._pairs = self._is_sent_away = False
        self._tenant: Tenant | None = None
        self.link: asyncssh.SSHServerConnection
        self.path: SocketPath | None = None
        """Of a socket that is no TCP to the console itself."""
        self.paired: asyncio.Future[PairAnswer] = (
            asyncio.get_running_loop().create_future()
        )

    # --- the login ------------------------------------------------------------------

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self.link = conn

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.paired.done():
            self.paired.set_result(PairAnswer(problem="The console hung up"))
        self._tenants.by_digits.newcomers.pop(self, None)
        if self._tenant is not None:
            self._tenants.left(self._tenant, self.link)

    def begin_auth(self, username: str) -> bool:
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def password_auth_supported(self) -> bool:
        return self._joining is None

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        # The last one asked about is the one whose signature then counts.
        self._key, self._new_key, self._secret = "", "", b""
        if key.algorithm != b"ssh-ed25519":
            return False
        line = public_line(key)
        if username == USER_BY_DIGITS:
            by_digits = self._tenants.by_digits
            if self._host_key and by_digits.lets_in(self, self._come_from):
                self._new_key = line
        elif username == USER_BY_KEY and self._tenants.lets_in(line, self._joining):
            self._key = line
        return bool(self._key or self._new_key)

    def validate_password(self, username: str, password: str) -> bool:
        # A key that was only asked about proves nothing.
        self._key, self._new_key, self._secret = "", "", b""
        with contextlib.suppress(ValueError):
            secret = bytes.fromhex(password)
            is_one = username == USER_BY_SECRET and len(secret) == SECRET_BYTES
            if is_one and self._tenants.has_invited(secret):
                self._secret = secret
        return bool(self._secret)

    def auth_completed(self) -> None:
        if self._joining is not None:
            return
        if not self._key:
            asyncio.get_running_loop().call_later(PAIR_S, self._close_unless_it_pairs)
            return
        # It may have asked as somebody new before.
        self._tenants.by_digits.newcomers.pop(self, None)
        whose = self._key, self.link, self._address, self.path
        self._tenant = self._tenants.came(*whose)
        if len(self._tenant.links) > LINKS_MAX:
            self.link.disconnect(
                asyncssh.DISC_TOO_MANY_CONNECTIONS, "too many connections"
            )

    def _close_unless_it_pairs(self) -> None:
        if not self._pairs:
            self.link.close()

    @property
    def is_paired(self) -> bool:
        return self._tenant is not None

    # --- what it may do -------------------------------------------------------------

    def offers(self, subsystem: str) -> bool:
        if self._tenant is not None:
            if self._tenants.refusal:
                return subsystem == HELLO
            return subsystem in (HELLO, AGENT, SFTP, NOISE)
        return subsystem == PAIR

    def session_requested(self) -> Any:
        if self._sessions >= (SESSIONS_MAX if self._tenant is not None else 1):
            return False
        self._sessions += 1
        if self._tenant is not None:
            return _Session(self)
        # It gets no memory beyond a line.
        channel = self.link.create_server_channel(None, window=LINE_BYTES_MAX)
        return channel, _Session(self)

    def session_ended(self) -> None:
        self._sessions -= 1

    def refused(self, what: str) -> bool:
        told = f"asked for {what}: refused"
        if self._tenant is not None:
            self._tenants.say(f"{self._tenant.name} {told}")
        elif not self._is_sent_away:
            self._tenants.say_of_strangers(f"somebody who is not paired {told}")
            self._is_sent_away = True
            self.link.disconnect(asyncssh.DISC_BY_APPLICATION, "you are not paired")
        return False

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> Any:
        tenant, what = self._tenant, f"a way to {dest_host}:{dest_port}"
        lends = tenant is not None and not self._tenants.refusal
        if tenant is None or not lends or dest_host not in (LOOPBACK, "localhost"):
            self.refused(what)
            raise _forbidden(what)

        async def opened() -> Any:
            if not await tenant.listens(dest_port):
                self.refused(what)
                raise _forbidden(what)
            return await self.link.forward_connection(LOOPBACK, dest_port)

        return opened()

    def unix_connection_requested(self, dest_path: str) -> bool:
        return self.refused(f"a way to {dest_path}")

    def server_requested(self, listen_host: str, listen_port: int) -> bool:
        return self.refused("a port to listen at")

    def unix_server_requested(self, listen_path: str) -> bool:
        return self.refused("a socket to listen at")

    def files(self, channel: Any) -> asyncssh.SFTPServer:
        assert self._tenant is not None
        return ModelFiles(channel, self._tenant)

    async def serve(self, process: Process) -> None:
        """Answer one session; what goes wrong ends that alone."""
        try:
            match process.channel.get_subsystem():
                case "hello":
                    hello = self._tenants.hello()
                    process.stdout.write(msgspec.json.encode(hello) + b"\n")
                case "noise":
                    process.stdout.write(os.urandom(NOISE_BYTES))
                case "pair":
                    self._pairs = True
                    await self._pair(process)
                case "agent" if self._tenant is not None:
                    await _serve_agent(process, self._tenant, self.link)
            process.exit(0)
        except (OSError, ValueError, DllmError, asyncssh.Error) as error:
            log.info("a session ended: %s", error)
            with contextlib.suppress(OSError, asyncssh.Error):
                process.stderr.write(f"{error}\n".encode())
                process.exit(1)
        finally:
            if self._tenant is None and self._joining is None:
                self.link.close()

    async def _pair(self, process: Process) -> None:
        if self._new_key:
            ends = process.stdin, process.stdout
            keys = self._new_key, self._host_key
            await self._tenants.by_digits.serve(*ends, self._come_from, keys)
            return
        async with asyncio.timeout(PAIR_S):
            if self._joining is not None:
                request = PairRequest(
                    name=self._tenants.name, secret=self._joining.secret.hex()
                )
                process.stdout.write(msgspec.json.encode(request) + b"\n")
                told = await read_line(process.stdin)
                answer = msgspec.json.decode(told, type=PairAnswer)
                if not self.paired.done():
                    self.paired.set_result(answer)
                return
            asked = msgspec.json.decode(
                await read_line(process.stdin), type=PairRequest
            )
            answer = PairAnswer(name=self._tenants.name)
            try:
                self._tenants.pair(self._secret, asked)
            except DllmError as error:
                answer = PairAnswer(problem=str(error))
            process.stdout.write(msgspec.json.encode(answer) + b"\n")


class _Session(asyncssh.SSHServerProcess[bytes]):
    """A session that is a subsystem of ours, and nothing else."""

    def __init__(self, server: WorkerServer) -> None:
        super().__init__(server.serve, server.files, 3, False)
        self._server = server

    def pty_requested(self, *_: Any) -> bool:
        return False

    def shell_requested(self) -> bool:
        return self._server.refused("a shell")

    def exec_requested(self, command: str) -> bool:
        return self._server.refused("a command")

    def subsystem_requested(self, subsystem: str) -> bool:
        if self._server.offers(subsystem):
            return True
        return self._server.refused(f"the subsystem {subsystem[:20]!r}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.session_ended()
        super().connection_lost(exc)


def _forbidden(what: str) -> asyncssh.ChannelOpenError:
    text = LENDS_NO + what.removeprefix("a ")
    return asyncssh.ChannelOpenError(asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, text)


class ModelFiles(asyncssh.SFTPServer):
    """The model folders, to be read; half models may be added where that is lent."""

    _written: ClassVar[dict[int, tuple[int, int]]] = {}
    """By descriptor, of all consoles, the half models that are open to be written.

    None gets its name while it may be changed.
    """

    def __init__(self, channel: Any, tenant: Tenant) -> None:
        super().__init__(channel)
        self._tenant = tenant

    def map_path(self, path: bytes) -> bytes:
        """The path itself, if the owner lends it."""
        whole = os.fsdecode(path)
        if not whole.startswith("/") or not self._tenant.policy.may_read(whole):
            raise asyncssh.SFTPPermissionDenied("the owner does not lend that file")
        return os.fsencode(os.path.realpath(whole))

    def open(self, path: bytes, pflags: int, attrs: asyncssh.SFTPAttrs) -> Any:
        adds = self._tenant.policy.may_add(os.fsdecode(path))
        if pflags & ~asyncssh.FXF_READ and not adds:
            raise _only_read()
        here = os.fsdecode(path)
        if os.path.lexists(here) and not os.path.isfile(here):
            raise asyncssh.SFTPFailure("that is no file")
        if not pflags & ~asyncssh.FXF_READ:
            return super().open(path, pflags, attrs)
        if os.path.exists(here) and os.stat(here).st_nlink > 1:
            # A rename that broke off: this is a model already.
            raise _only_read()
        made: Any = super().open(path, pflags, attrs)
        self._written[made.fileno()] = _identity(os.fstat(made.fileno()))
        return made

    def close(self, file_obj: Any) -> None:
        self._written.pop(file_obj.fileno(), None)
        file_obj.close()

    # The disk's time is not the event loop's, and a console's figures are bounded.

    async def read(self, file_obj: Any, offset: int, size: int) -> bytes:
        size = min(size, READ_BYTES_MAX)
        return await self._apart(file_obj, lambda held: os.pread(held, size, offset))

    async def write(self, file_obj: Any, offset: int, data: bytes) -> int:
        return await self._apart(file_obj, lambda held: _write_at(held, data, offset))

    async def fsync(self, file_obj: Any) -> None:
        await self._apart(file_obj, os.fsync)

    async def _apart(self, file_obj: Any, work: Callable[[int], T]) -> T:
        """Work on a file in a thread, by a descriptor of its own.

        Those of a console it may close meanwhile, and another file has its number then.
        """
        held = os.dup(file_obj.fileno())
        if (identity := self._written.get(file_obj.fileno())) is not None:
            self._written[held] = identity

        def works() -> T:
            try:
                return work(held)
            finally:
                self._written.pop(held, None)
                os.close(held)

        running = asyncio.get_running_loop().run_in_executor(None, works)
        return await asyncio.shield(running)

    def open56(
        self, path: bytes, desired_access: int, flags: int, attrs: asyncssh.SFTPAttrs
    ) -> Any:
        raise _only_read()

    def setstat(self, *_: Any, **__: Any) -> None:
        raise _only_read()

    def rename(self, oldpath: bytes, newpath: bytes, *_: Any) -> None:
        """Give a model that has come its name, which no other may have."""
        old, new = os.fsdecode(oldpath), os.fsdecode(newpath)
        if not self._tenant.policy.may_add(old) or f"{new}{PART}" != old:
            raise _only_read()
        if _identity(os.stat(old)) in self._written.values():
            raise asyncssh.SFTPFailure("that file is still being written")
        os.link(old, new)
        os.unlink(old)

    fsetstat = lsetstat = remove = mkdir = rmdir = posix_rename = setstat
    symlink = link = lock = unlock = readlink = setstat  # type: ignore[assignment]


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _write_at(descriptor: int, data: bytes, offset: int) -> int:
    disk = os.fstatvfs(descriptor)
    if disk.f_bavail * disk.f_frsize < LEFT_BYTES_MIN:
        raise asyncssh.SFTPFailure("the disk of that machine is nearly full")
    written = 0
    while written < len(data):
        written += os.pwrite(descriptor, data[written:], offset + written)
    return written


def _only_read() -> asyncssh.SFTPError:
    return asyncssh.SFTPPermissionDenied("files of this machine can only be read")


async def _serve_agent(
    process: Process, tenant: Tenant, link: asyncssh.SSHServerConnection
) -> None:
    """Stand between a console and an agent of its own, and look at every line."""
    agent = await tenant.start_agent(link)
    policy = tenant.policy.for_session()
    assert agent.stdin is not None
    assert agent.stdout is not None
    to_agent, from_agent = agent.stdin, agent.stdout

    async def asked() -> None:
        lines = Lines(REQUEST_BYTES_MAX)
        while data := await process.stdin.read(_CHUNK_BYTES):
            for line in lines.add(data):
                try:
                    passed = policy.request(decode_line(line) or {})
                    to_agent.write(encode_line(passed))
                except Denied as denied:
                    process.stdout.write(_denial(line, denied))
            await to_agent.drain()
            await process.stdout.drain()

    async def told() -> None:
        lines = Lines(ANSWER_BYTES_MAX)
        while data := await from_agent.read(_CHUNK_BYTES):
            for line in lines.add(data):
                process.stdout.write(_passed(policy, tenant, line))
            await process.stdout.drain()

    try:
        await first_of(asked(), told())
    finally:
        to_agent.close()
        with contextlib.suppress(ProcessLookupError):
            agent.terminate()
        await agent.wait()


def _denial(line: bytes, denied: Denied) -> bytes:
    number = (decode_line(line) or {}).get("id")
    error = {"kind": "failed", "message": str(denied), "pids": []}
    return encode_line({"id": number, "error": error})


def _passed(policy: AgentPolicy, tenant: Tenant, line: bytes) -> bytes:
    message = decode_line(line)
    if message is None:
        return line + b"\n"
    told = policy.answer(message, tenant.lent_bytes())
    return line + b"\n" if told is message else encode_line(told)
