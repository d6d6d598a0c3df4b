"""The way to a host, through others where the ssh config says so."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import asyncssh

from backends.errors import HostError, NeedsAnswer, PeerUnreachable
from backends.machines.ssh.complaints import explain
from backends.machines.ssh.login import Client, Login
from backends.machines.ssh.settings import Settings, resolve
from backends.state import QuestionKind

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from backends.machines.ssh.destination import Destination

CONNECT_TIMEOUT_S = 15.0
CLOSE_TIMEOUT_S = 2.0
_MAX_JUMPS = 8
_SESSION_TIMEOUT_S = 3.0


@dataclass(frozen=True, repr=False)
class _Attempt:
    answers: Mapping[QuestionKind, str]
    bound: asyncio.Timeout


class Route:
    """Opens connections to a destination, and keeps the hosts in between open.

    When a question stops an attempt, hosts that let us in stay connected, so that the
    answer to one question is never needed again for the next.
    """

    def __init__(
        self,
        destination: Destination,
        config_file: Path | None = None,
        known_hosts: Path | None = None,
    ) -> None:
        """Describe it; :meth:`open` connects."""
        self._destination = destination
        self._config_file = config_file
        self._known_hosts = known_hosts
        self._hops: dict[tuple[str, ...], asyncssh.SSHClientConnection] = {}
        self._asker = str(destination)
        self._trusted: set[str] = set()

    async def open(
        self, answers: Mapping[QuestionKind, str] | None = None
    ) -> tuple[asyncssh.SSHClientConnection, Client]:
        """Connect and log in, within 15 s in all.

        ``answers`` go to whoever asked last, and to nobody else. Trusted fingerprints
        are kept as long as this object; nothing else is.

        Raises:
            NeedsAnswer: only the user knows how to go on.
            PeerUnreachable: it cannot be reached, with the reason.
        """
        given = dict(answers or {})
        if fingerprint := given.get(QuestionKind.HOST_KEY):
            self._trusted.add(fingerprint)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S) as bound:
                attempt = _Attempt(answers=given, bound=bound)
                return await self._reach(self._destination, attempt)
        except NeedsAnswer:
            raise
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Leave the hosts in between; at once."""
        for hop in self._hops.values():
            hop.abort()
        self._hops.clear()

    async def _reach(
        self,
        destination: Destination,
        attempt: _Attempt,
        tunnel: asyncssh.SSHClientConnection | None = None,
        chain: tuple[str, ...] = (),
    ) -> tuple[asyncssh.SSHClientConnection, Client]:
        settings = await asyncio.to_thread(
            resolve, destination, self._config_file, self._known_hosts
        )
        if tunnel is None:
            tunnel = await self._jump(settings, attempt, chain)
        try:
            return await self._log_in(settings, attempt.answers, tunnel)
        except NeedsAnswer:
            self._asker = str(destination)
            raise
        except HostError:
            raise
        except asyncio.CancelledError as error:
            # Cancelled by the bound around all: say which host was silent.
            if attempt.bound.expired():
                raise explain(TimeoutError(), settings, CONNECT_TIMEOUT_S) from error
            raise
        except Exception as error:
            raise explain(error, settings, CONNECT_TIMEOUT_S) from error

    async def _jump(
        self, settings: Settings, attempt: _Attempt, chain: tuple[str, ...]
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
                tunnel = await self._hop(jump, attempt, tunnel, chain)
        return tunnel

    async def _hop(
        self,
        jump: Destination,
        attempt: _Attempt,
        tunnel: asyncssh.SSHClientConnection | None,
        chain: tuple[str, ...],
    ) -> asyncssh.SSHClientConnection:
        known = self._hops.get(chain)
        if known is not None and not known.is_closed():
            return known
        connection, _ = await self._reach(jump, attempt, tunnel, chain)
        self._hops[chain] = connection
        await _make_prompt(connection)
        return connection

    async def _log_in(
        self,
        settings: Settings,
        answers: Mapping[QuestionKind, str],
        tunnel: asyncssh.SSHClientConnection | None,
    ) -> tuple[asyncssh.SSHClientConnection, Client]:
        is_asker = str(settings.destination) == self._asker
        login = Login(
            settings,
            trusted=self._trusted,
            # A password is for nobody but the host that asked for it.
            password=answers.get(QuestionKind.PASSWORD) if is_asker else None,
            passphrase=answers.get(QuestionKind.PASSPHRASE),
        )
        return await login.open(tunnel)


async def _make_prompt(connection: asyncssh.SSHClientConnection) -> None:
    # sshd sets TCP_NODELAY with the first session, whether or not it lets us run
    # anything; without, what goes through that host is delayed by up to 40 ms.
    with contextlib.suppress(TimeoutError, OSError, asyncssh.Error):
        async with asyncio.timeout(_SESSION_TIMEOUT_S):
            await connection.run("true", stdin=asyncssh.DEVNULL)
