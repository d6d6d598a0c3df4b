"""Logging in: host keys, our keys, the questions in between, hosts on the way."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import socket
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh
from aiohappyeyeballs import start_connection

from backends.errors import MachineError, NeedsAnswer, PeerUnreachable
from backends.machines.ssh import errors
from backends.machines.ssh.config import Destination, KnownLine, Settings, resolve
from backends.machines.ssh.errors import connect_error
from backends.state import PeerQuestion, QuestionKind
from backends.writing import append_line

Trusted = tuple[list[asyncssh.SSHKey], list[asyncssh.SSHKey], list[asyncssh.SSHKey]]


def fingerprint(key: asyncssh.SSHKey) -> str:
    """As OpenSSH prints it: ``SHA256:…``."""
    return key.get_fingerprint()


def key_type(key: asyncssh.SSHKey) -> str:
    return key.algorithm.decode("ascii")


def matcher(settings: Settings) -> Callable[[str, str, int | None], Trusted]:
    """Trusted, certifying and revoked keys of a host, in the form asyncssh asks for.

    Only the name counts, never the address: else a name that was redirected to another
    known machine would be let through. Reads the files at once; blocks.
    """
    known = asyncssh.SSHKnownHosts()
    for _, _, line in _lines(settings):
        _load(known, line)

    def match(host: str, _address: str, port: int | None) -> Trusted:
        named_port = None if settings.alias else port
        found = known.match(host.lower(), "", named_port)
        return list(found[0]), list(found[1]), list(found[2])

    return match


def known_lines(settings: Settings) -> list[KnownLine]:
    """List the other keys of exactly this name; blocks."""
    found = []
    for path, number, line in _lines(settings):
        one = asyncssh.SSHKnownHosts()
        _load(one, line)
        found += [
            KnownLine(path=str(path), number=number, algorithm=key_type(key))
            for key in one.match(settings.known_name, "", None)[0]
        ]
    return found


def remember(settings: Settings, key: asyncssh.SSHKey) -> None:
    if not settings.known_hosts:
        return
    path = settings.known_hosts[0]
    public = key.export_public_key("openssh").decode("ascii").split()
    line = f"{settings.known_name} {public[0]} {public[1]}"
    try:
        append_line(path, line.encode())
    except OSError as error:
        raise MachineError(
            f"The host key of {settings.label} cannot be remembered: {path} cannot be "
            f"written ({error.strerror})",
            "Make the file writable, or add the key with ssh itself.",
        ) from error


def _lines(settings: Settings) -> Iterator[tuple[Path, int, str]]:
    for path in settings.known_hosts:
        try:
            text = path.read_text(errors="replace")
        except OSError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            yield path, number, line


def _load(known: asyncssh.SSHKnownHosts, line: str) -> None:
    # A line that OpenSSH would pass over must not lock anybody out, whatever a broken
    # key makes its decoder raise (OverflowError, UnsupportedAlgorithm, …).
    with contextlib.suppress(Exception):
        known.load(line)


class Keys:
    """Key pairs to log in with, and which of them would need a passphrase.

    A locked key whose public half is readable is offered like any other; only when the
    peer would take it, its passphrase is wanted, as with ``ssh``.
    """

    def __init__(self, identities: Iterable[Path], passphrase: str | None) -> None:
        self._passphrase = passphrase
        self.locked: list[str] = []
        """Files that could be used if they were unlocked."""
        self.pairs: list[asyncssh.SSHKeyPair] = []
        self.public: list[bytes] = []
        """Public halves, for an agent that is to offer nothing else."""
        for path in identities:
            public = _public_half(path)
            self.public += public
            # It may also name a public key whose private half an agent holds.
            with contextlib.suppress(OSError):
                if b"PRIVATE KEY" in path.read_bytes():
                    self._load(path, public)

    def _load(self, path: Path, public: Sequence[bytes]) -> None:
        # A key without readable public half cannot be offered: unlock it first.
        passphrase = self._unlock if public else self._passphrase
        try:
            pairs = asyncssh.load_keypairs(
                str(path),
                passphrase,  # type: ignore[arg-type]
                ignore_encrypted=True,
            )
        except asyncssh.KeyEncryptionError:
            self.locked.append(str(path))
        except (OSError, ValueError):
            # Broken, or unreadable for us: like ssh, go on with the others.
            pass
        else:
            self.pairs += pairs
            if not pairs:
                self.locked.append(str(path))

    def _unlock(self, filename: str) -> str | None:
        # Called from a worker thread, when the peer has said that it takes the key.
        self.locked.insert(0, filename)
        return self._passphrase


def can_unlock() -> bool:
    """True if OpenSSH's own format of locked keys can be read here."""
    return importlib.util.find_spec("bcrypt") is not None


def _public_half(path: Path) -> Sequence[bytes]:
    for candidate in (Path(f"{path}.pub"), path):
        with contextlib.suppress(OSError, ValueError):
            return [asyncssh.read_public_key(candidate).public_data]
    return []


_STAGGER_S = 0.25
"""Head start of each address over the next (RFC 8305)."""


async def dial(host: str, port: int, family: int = socket.AF_UNSPEC) -> socket.socket:
    """Connect to the first address that answers; the caller bounds the time."""
    made = await start_connection(
        await lookup(host, port, family), happy_eyeballs_delay=_STAGGER_S, interleave=1
    )
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


async def lookup(host: str, port: int, family: int) -> list[Any]:
    """Look a name up with ``getaddrinfo``.

    In a thread of its own: dozens of names that nobody answers for would fill the
    event loop's pool, and exiting would wait for them.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[list[Any]] = loop.create_future()

    def look() -> None:
        try:
            found = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            _report(loop, done, error)
        else:
            _report(loop, done, found)

    threading.Thread(target=look, daemon=True, name="ssh-lookup").start()
    return await done


def _report(
    loop: asyncio.AbstractEventLoop,
    done: asyncio.Future[list[Any]],
    outcome: list[Any] | Exception,
) -> None:
    def settle() -> None:
        if done.done():
            return
        if isinstance(outcome, UnicodeError):
            done.set_exception(socket.gaierror(socket.EAI_NONAME, str(outcome)))
        elif isinstance(outcome, Exception):
            done.set_exception(outcome)
        else:
            done.set_result(outcome)

    # The loop may be gone by now, and with it whoever asked.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(settle)


KEEPALIVE_S = 15.0
KEEPALIVE_MISSES = 4
"""For connections without a keeper; whose heartbeats are more frequent."""

# Prepended to what asyncssh prefers: half again as fast as its first choice.
FAST_CIPHERS = "^aes128-gcm@openssh.com,aes256-gcm@openssh.com"
# Appended to the types of the known keys: a machine that now has only keys of other
# types is to be told from one that cannot talk to us.
_OTHER_HOST_KEYS = "+ssh-ed25519,ecdsa-sha2-*,rsa-sha2-*"


class LoginClient(asyncssh.SSHClient):
    """Answers asyncssh's questions of a login, and keeps what they tell.

    ``trusted``: fingerprints that may be taken for a host without known key.
    """

    def __init__(
        self, lines: Sequence[KnownLine], trusted: Collection[str], password: str | None
    ) -> None:
        self.lines = lines
        self.tried: list[str] = []
        self.offered: asyncssh.SSHKey | None = None
        """The host key, when it is in no known_hosts file."""
        self.on_lost: Callable[[Exception | None], None] | None = None
        self._trusted = trusted
        self._password = password

    def validate_host_public_key(
        self, host: str, addr: str, port: int, key: asyncssh.SSHKey
    ) -> bool:
        self.offered = key
        return not self.lines and fingerprint(key) in self._trusted

    def public_key_auth_requested(self) -> None:
        self.tried.append("publickey")

    def password_auth_requested(self) -> str | None:
        self.tried.append("password")
        return self._take_password()

    def kbdint_auth_requested(self) -> str | None:
        self.tried.append("keyboard-interactive")
        return None if self._password is None else ""

    def kbdint_challenge_received(
        self, name: str, instructions: str, lang: str, prompts: Any
    ) -> list[str] | None:
        if not prompts:
            return []
        password = self._take_password() if len(prompts) == 1 else None
        return None if password is None else [password]

    def connection_lost(self, exc: Exception | None) -> None:
        if self.on_lost is not None:
            self.on_lost(exc)

    def _take_password(self) -> str | None:
        password, self._password = self._password, None
        return password


@dataclass(frozen=True, repr=False)
class _Attempt:
    """One attempt at one host; a password is for nobody but the host that asked."""

    settings: Settings
    trusted: Collection[str]
    """Fingerprints of host keys that the user said to trust."""
    password: str | None
    passphrase: str | None

    async def open(
        self, tunnel: asyncssh.SSHClientConnection | None = None
    ) -> asyncssh.SSHClientConnection:
        """Connect (through ``tunnel``) and log in; the caller bounds the time.

        Raises:
            NeedsAnswer: the host key is unknown, or only a password or passphrase
                is left to log in with.
        """
        settings = self.settings
        lines = await asyncio.to_thread(known_lines, settings)
        match = await asyncio.to_thread(matcher, settings)
        keys = await asyncio.to_thread(Keys, settings.identities, self.passphrase)
        client = LoginClient(lines, self.trusted, self.password)
        options = {**_options(settings, keys), "known_hosts": match}
        if lines and not settings.has_host_key_algorithms:
            options["server_host_key_algs"] = _OTHER_HOST_KEYS
        try:
            connection = await self._connect(client, tunnel, options)
        except asyncssh.HostKeyNotVerifiable as error:
            raise self._distrusts(client, error) from error
        except asyncssh.PermissionDenied as error:
            await self._remember(client)
            raise self._refused(client, keys) from error
        await self._remember(client)
        return connection

    async def _connect(
        self,
        client: LoginClient,
        tunnel: asyncssh.SSHClientConnection | None,
        options: dict[str, Any],
    ) -> asyncssh.SSHClientConnection:
        settings = self.settings
        made: socket.socket | None = None
        if tunnel is None and settings.is_dialled:
            made = await dial(settings.host, settings.port, settings.family)
        try:
            return await asyncssh.connect(
                settings.destination.host,
                tunnel=tunnel,
                sock=made,
                client_factory=lambda: client,
                **options,
            )
        except BaseException:
            if made is not None:
                made.close()
            raise

    async def _remember(self, client: LoginClient) -> None:
        # Only now: the host has proved that the key is its own.
        if client.offered is not None:
            await asyncio.to_thread(remember, self.settings, client.offered)

    def _distrusts(self, client: LoginClient, error: Exception) -> MachineError:
        settings = self.settings
        if client.lines:
            return errors.host_key_changed(settings, client.lines)
        if client.offered is None:
            if "revoked" in str(error):
                return errors.host_key_revoked(settings)
            return PeerUnreachable(
                f"The host key of {settings.label} cannot be checked ({error})"
            )
        known, kind = fingerprint(client.offered), key_type(client.offered)
        text = f"The host key of {settings.label} is not known yet: {kind} {known}. "
        question = PeerQuestion(
            kind=QuestionKind.HOST_KEY,
            text=f"{text}Is it the right one?",
            fingerprint=known,
            key_type=kind,
        )
        return NeedsAnswer(question)

    def _refused(self, client: LoginClient, keys: Keys) -> MachineError:
        settings = self.settings
        if keys.locked:
            return self._locked(keys.locked[0])
        if {"password", "keyboard-interactive"} & set(client.tried):
            refused = "" if self.password is None else "That password was refused. "
            text = f"{refused}Password of {settings.user} on {settings.label}?"
            return NeedsAnswer(PeerQuestion(kind=QuestionKind.PASSWORD, text=text))
        return errors.login_refused(settings, client.tried)

    def _locked(self, path: str) -> MachineError:
        if not can_unlock():
            return PeerUnreachable(
                f"{path} is locked with a passphrase, and bcrypt is not installed to "
                "unlock it",
                "Give the key to an agent: ssh-add " + path,
            )
        wrong = "" if self.passphrase is None else "That did not unlock it. "
        text = f"{wrong}Passphrase of {path}, the key for {self.settings.label}?"
        return NeedsAnswer(PeerQuestion(kind=QuestionKind.PASSPHRASE, text=text))


def _options(settings: Settings, keys: Keys) -> dict[str, Any]:
    given: dict[str, Any] = {
        "config": [str(path) for path in settings.config],
        "username": settings.user,
        "port": settings.port,
        "client_keys": keys.pairs,
        "keepalive_interval": KEEPALIVE_S,
        "keepalive_count_max": KEEPALIVE_MISSES,
        # Nothing of ours is to go there but what we ask for.
        "agent_forwarding": False,
        "x11_forwarding": False,
        "command": None,
        "env": None,
        "send_env": None,
        "gss_host": None,
    }
    if settings.identities_only:
        given["agent_identities"] = keys.public or [b""]
    if not settings.has_ciphers:
        given["encryption_algs"] = FAST_CIPHERS
    return given


CONNECT_TIMEOUT_S = 15.0
CLOSE_TIMEOUT_S = 2.0
_MAX_JUMPS = 8
_SESSION_TIMEOUT_S = 3.0


class Login:
    """Opens connections to a destination, and keeps the hosts in between open.

    Hosts that let us in stay connected while a question is open: no answer is needed
    twice.

    ``trusted``: fingerprints of host keys that need no answer.
    """

    def __init__(
        self,
        destination: Destination,
        config_file: Path | None = None,
        known_hosts: Path | None = None,
        trusted: Collection[str] = (),
    ) -> None:
        self._destination = destination
        self._files = (config_file, known_hosts)
        self._hops: dict[tuple[str, ...], asyncssh.SSHClientConnection] = {}
        self._asker = str(destination)
        self._trusted = set(trusted)
        self._answers: Mapping[QuestionKind, str] = {}
        self._bound: asyncio.Timeout

    async def open(
        self, answers: Mapping[QuestionKind, str] | None = None
    ) -> asyncssh.SSHClientConnection:
        """Connect and log in, within 15 s in all; one attempt at a time.

        ``answers`` go to whoever asked last, and to nobody else. Trusted fingerprints
        are kept as long as this object; nothing else is.

        Raises:
            NeedsAnswer: only the user knows how to go on.
        """
        self._answers = answers or {}
        if fingerprint := self._answers.get(QuestionKind.HOST_KEY):
            self._trusted.add(fingerprint)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S) as self._bound:
                return await self._reach(self._destination)
        except NeedsAnswer:
            raise
        except BaseException:
            self.close()
            raise
        finally:
            self._answers = {}

    def close(self) -> None:
        """Leave the hosts in between; at once."""
        for hop in self._hops.values():
            hop.abort()
        self._hops.clear()

    async def _reach(
        self,
        destination: Destination,
        tunnel: asyncssh.SSHClientConnection | None = None,
        chain: tuple[str, ...] = (),
    ) -> asyncssh.SSHClientConnection:
        settings = await asyncio.to_thread(resolve, destination, *self._files)
        if tunnel is None:
            tunnel = await self._jump(settings, chain)
        password = self._answers.get(QuestionKind.PASSWORD)
        attempt = _Attempt(
            settings,
            self._trusted,
            password if str(destination) == self._asker else None,
            self._answers.get(QuestionKind.PASSPHRASE),
        )
        try:
            return await attempt.open(tunnel)
        except NeedsAnswer:
            self._asker = str(destination)
            raise
        except MachineError:
            raise
        except asyncio.CancelledError as error:
            # Cancelled by the bound around all: say which host was silent.
            if self._bound.expired():
                raise connect_error(
                    TimeoutError(), settings, CONNECT_TIMEOUT_S
                ) from error
            raise
        except Exception as error:
            raise connect_error(error, settings, CONNECT_TIMEOUT_S) from error

    async def _jump(
        self, settings: Settings, chain: tuple[str, ...]
    ) -> asyncssh.SSHClientConnection | None:
        if len(chain) > _MAX_JUMPS:
            raise PeerUnreachable(
                f"ProxyJump of {settings.destination.host} goes round in circles",
                "Mend your ssh config.",
            )
        tunnel: asyncssh.SSHClientConnection | None = None
        for jump in settings.jumps:
            # `Host *` with a ProxyJump is not meant for that host itself.
            if jump.host != settings.destination.host:
                chain = (*chain, str(jump))
                tunnel = await self._hop(jump, tunnel, chain)
        return tunnel

    async def _hop(
        self,
        jump: Destination,
        tunnel: asyncssh.SSHClientConnection | None,
        chain: tuple[str, ...],
    ) -> asyncssh.SSHClientConnection:
        known = self._hops.get(chain)
        if known is not None and not known.is_closed():
            return known
        connection = await self._reach(jump, tunnel, chain)
        self._hops[chain] = connection
        await begin_session(connection)
        return connection


async def begin_session(connection: asyncssh.SSHClientConnection) -> None:
    """Have the sshd of a host in between set TCP_NODELAY.

    It does so with the first session, whether or not it lets us run anything. Without,
    what goes through that host is delayed by up to 40 ms.
    """
    with contextlib.suppress(TimeoutError, OSError, asyncssh.Error):
        async with asyncio.timeout(_SESSION_TIMEOUT_S):
            await connection.run("true", stdin=asyncssh.DEVNULL)


def on_lost(
    connection: asyncssh.SSHClientConnection, told: Callable[[Exception | None], None]
) -> None:
    """Let be told of the end of a connection of a ``Login``, with its cause."""
    client = connection.get_owner()
    # One that is closed has no owner any more.
    if isinstance(client, LoginClient):
        client.on_lost = told
