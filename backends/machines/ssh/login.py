"""Logging in to one host: its key, our keys, the questions in between."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asyncssh

from backends.errors import HostError, NeedsAnswer, PeerUnreachable
from backends.machines.ssh import complaints, known_hosts
from backends.machines.ssh.dial import dial
from backends.machines.ssh.keys import Keys, can_unlock
from backends.state import PeerQuestion, QuestionKind

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Collection, Sequence

    from backends.machines.ssh.known_hosts import KnownLine
    from backends.machines.ssh.settings import Settings

KEEPALIVE_S = 15.0
KEEPALIVE_MISSES = 4
"""For connections without a keeper; whose heartbeats are more frequent."""

# Prepended to what asyncssh prefers: half again as fast as its first choice.
_FAST_CIPHERS = "^aes128-gcm@openssh.com,aes256-gcm@openssh.com"
# Appended to the types of the known keys: a machine that now has only keys of other
# types is to be told from one that cannot talk to us.
_OTHER_HOST_KEYS = "+ssh-ed25519,ecdsa-sha2-*,rsa-sha2-*"


class Client(asyncssh.SSHClient):
    """What asyncssh asks us while logging in, and what we learn from that."""

    def __init__(
        self, lines: Sequence[KnownLine], trusted: Collection[str], password: str | None
    ) -> None:
        """``trusted``: fingerprints that may be taken for a host without known key."""
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
        """Take a key that known_hosts does not have only if the user said so."""
        self.offered = key
        return not self.lines and known_hosts.fingerprint(key) in self._trusted

    def public_key_auth_requested(self) -> None:
        """All keys were offered in vain."""
        self.tried.append("publickey")

    def password_auth_requested(self) -> str | None:
        """The password, once."""
        self.tried.append("password")
        return self._take_password()

    def kbdint_auth_requested(self) -> str | None:
        """Any method, if there is a password to answer with."""
        self.tried.append("keyboard-interactive")
        return None if self._password is None else ""

    def kbdint_challenge_received(
        self, name: str, instructions: str, lang: str, prompts: Any
    ) -> list[str] | None:
        """Answer the one question there is with the password."""
        if not prompts:
            return []
        password = self._take_password() if len(prompts) == 1 else None
        return None if password is None else [password]

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever uses the connection."""
        if self.on_lost is not None:
            self.on_lost(exc)

    def _take_password(self) -> str | None:
        password, self._password = self._password, None
        return password


class Login:
    """One attempt at one host."""

    def __init__(
        self,
        settings: Settings,
        *,
        trusted: Collection[str] = (),
        password: str | None = None,
        passphrase: str | None = None,
    ) -> None:
        """``trusted``: fingerprints of host keys the user said to trust."""
        self._settings = settings
        self._trusted = trusted
        self._password = password
        self._passphrase = passphrase

    async def open(
        self, tunnel: asyncssh.SSHClientConnection | None = None
    ) -> tuple[asyncssh.SSHClientConnection, Client]:
        """Connect (through ``tunnel``) and log in; the caller bounds the time.

        Raises:
            NeedsAnswer: the host key is unknown, or only a password or passphrase
                is left to log in with.
            PeerUnreachable: the host key changed, or the login was refused.
            OSError, asyncssh.Error: it did not come to that.
        """
        settings = self._settings
        lines = await asyncio.to_thread(known_hosts.known_lines, settings)
        match = await asyncio.to_thread(known_hosts.matcher, settings)
        keys = await asyncio.to_thread(Keys, settings.identities, self._passphrase)
        client = Client(lines, self._trusted, self._password)
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
        return connection, client

    async def _connect(
        self,
        client: Client,
        tunnel: asyncssh.SSHClientConnection | None,
        options: dict[str, Any],
    ) -> asyncssh.SSHClientConnection:
        settings = self._settings
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

    async def _remember(self, client: Client) -> None:
        # Only now: the host has proved that the key is its own.
        if client.offered is not None:
            await asyncio.to_thread(
                known_hosts.remember, self._settings, client.offered
            )

    def _distrusts(self, client: Client, error: Exception) -> HostError:
        settings = self._settings
        if client.lines:
            return complaints.host_key_changed(settings, client.lines)
        if client.offered is None:
            if "revoked" in str(error):
                return complaints.host_key_revoked(settings)
            return PeerUnreachable(
                f"The host key of {settings.label} cannot be checked ({error})"
            )
        return NeedsAnswer(_host_key_question(settings, client.offered))

    def _refused(self, client: Client, keys: Keys) -> HostError:
        settings = self._settings
        if keys.locked:
            return self._locked(keys.locked[0])
        if {"password", "keyboard-interactive"} & set(client.tried):
            refused = "" if self._password is None else "That password was refused. "
            text = f"{refused}Password of {settings.user} on {settings.label}?"
            return NeedsAnswer(PeerQuestion(kind=QuestionKind.PASSWORD, text=text))
        return complaints.login_refused(settings, client.tried)

    def _locked(self, path: str) -> HostError:
        if not can_unlock():
            return PeerUnreachable(
                f"{path} is locked with a passphrase, and bcrypt is not installed to "
                "unlock it",
                "Give the key to an agent: ssh-add " + path,
            )
        wrong = "" if self._passphrase is None else "That did not unlock it. "
        text = f"{wrong}Passphrase of {path}, the key for {self._settings.label}?"
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
        given["encryption_algs"] = _FAST_CIPHERS
    return given


def _host_key_question(settings: Settings, key: asyncssh.SSHKey) -> PeerQuestion:
    print_ = known_hosts.fingerprint(key)
    kind = known_hosts.key_type(key)
    return PeerQuestion(
        kind=QuestionKind.HOST_KEY,
        text=f"The host key of {settings.label} is not known yet: {kind} {print_}. "
        "Is it the right one?",
        fingerprint=print_,
        key_type=kind,
    )
