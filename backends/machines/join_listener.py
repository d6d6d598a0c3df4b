"""Workers that dial us: who is awaited, and who may join by a token of ours."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import select
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import asyncssh
import msgspec

from backends.errors import DllmError, MachineError
from backends.machines.ssh.lent import client_over
from backends.mesh.acceptor import Acceptor
from backends.mesh.connection_limits import StrangerLog
from backends.mesh.dialling import listening_at, no_other_way, reachable
from backends.mesh.identity import key_of_line, own_key, public_line, raw_of
from backends.mesh.messages import (
    DIALLED,
    PAIR,
    USER_BY_KEY,
    PairAnswer,
    PairRequest,
    read_line,
)
from backends.mesh.quic import QuicSocket
from backends.mesh.token import ID_CHARS, Token, TokenKind, new_token, secret_hash
from backends.state import NOT_JSON
from backends.tasks import end_tasks
from backends.writing import write_private

if TYPE_CHECKING:
    from backends.mesh.quic_dial import QuicDialler
    from backends.mesh.quic_place import QuicPlace
    from backends.state import PeerPath

log = logging.getLogger(__name__)

ANYWHERE = "::"
HINT_S = 5.0
RETRY_S = 60.0
"""Until QUIC is tried again, where it does not go."""
HINT_BYTES_MAX = 128
PAIR_S = 15.0


class Awaited:
    """The dial of a worker that dials us: its socket.

    Anybody may say to be that worker: none takes the place of one that is there.
    """

    label = "which dials this console"
    shares = True
    otherwise = no_other_way

    def __init__(self, came: Callable[[], None], listen: Callable[[], None]) -> None:
        self._came = came
        self._listen = listen
        self._waiting: socket.socket | None = None
        self._is_there = asyncio.Event()

    async def connected(self) -> socket.socket:
        self._listen()
        while self._waiting is None:
            self._is_there.clear()
            await self._is_there.wait()
        return self._taken(self._waiting)

    async def better(self, path: PeerPath | None) -> socket.socket:
        made = self._waiting
        if made is None or isinstance(made, QuicSocket):
            raise MachineError("It has not dialled by TCP")
        return self._taken(made)

    def _taken(self, made: socket.socket) -> socket.socket:
        self._waiting = None
        return made

    def put(self, made: socket.socket) -> None:
        before = self._waiting
        if before is not None:
            # TCP is the better way.
            better = isinstance(before, QuicSocket) and not isinstance(made, QuicSocket)
            if _is_alive(before) and not better:
                made.close()
                return
            before.close()
        self._waiting = made
        self._is_there.set()
        self._came()


class JoinListener:
    """Listens, at a ``port``, once somebody is awaited or invited; by QUIC, too.

    ``joined`` is told of a worker that had a good token: the name it is to have, the
    one it has, and its host key. It returns the name that it got, or refuses by a
    ``DllmError``.

    Open invitations outlive it, in the ``kept`` file.
    """

    def __init__(
        self,
        key_file: Path,
        name: str,
        port: Callable[[], int],
        joined: Callable[[str, str, str], Awaitable[str]],
        kept: Path,
        quic: QuicDialler | None = None,
    ) -> None:
        self._key_file = key_file
        self._name = name
        self._port = port
        self._joined = joined
        self._quic = quic
        self._awaited: dict[str, Awaited] = {}
        self._kept = kept
        self._invited = _read(kept)
        self._joined_as: dict[str, str | MachineError] = {}
        """Empty while it joins; an error if it was refused."""
        self._listening: socket.socket | None = None
        self._accepting: list[asyncio.Task[None]] = []
        self._acceptor = Acceptor(self._welcome, log.warning)
        self._tell_of_failure = StrangerLog(log.warning)

    def awaited(self, host_key: str, came: Callable[[], None]) -> Awaited:
        one = Awaited(came, self.listen)
        self._awaited[key_of_line(host_key).get_fingerprint()] = one
        return one

    def forget(self, host_key: str) -> None:
        with contextlib.suppress(MachineError):
            self._awaited.pop(key_of_line(host_key).get_fingerprint(), None)

    def listen(self) -> None:
        """Begin to listen, unless it does."""
        if self._listening is not None:
            return
        made = listening_at(ANYWHERE, self._port())
        self._listening = made
        works = self._acceptor.run(made), self._accept_quic()
        self._accepting = [asyncio.create_task(work) for work in works]

    async def _accept_quic(self) -> None:
        while self._quic is not None:
            try:
                endpoint = await self._quic.waiting()
                async for made, address in endpoint.come():
                    self._acceptor.let_in(made, address)
            except Exception as error:
                log.info("machines join by TCP alone: %s", error)
            await asyncio.sleep(RETRY_S)

    async def close(self) -> None:
        await end_tasks(*self._accepting)
        await self._acceptor.close()
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    @property
    def invites(self) -> bool:
        """True while a token is good that nobody has used."""
        return any(until > time.time() for until, _ in self._invited.values())

    def joined_as(self, invitation: str) -> str:
        """The peer that has used an invitation; empty while it is good, or joins."""
        if invitation in self._joined_as:
            outcome = self._joined_as[invitation]
            if isinstance(outcome, MachineError):
                # Each who asks gets one of its own: a raised one grows.
                raise MachineError(outcome.what, outcome.hint)
            return outcome
        good = (h for h, (until, _) in self._invited.items() if until > time.time())
        if not any(hashed.startswith(invitation) for hashed in good):
            raise MachineError("Nobody joined in time", "Make another token.")
        return ""

    def invite(
        self,
        life_s: float,
        name: str,
        addresses: Sequence[str] = (),
        quic: QuicPlace | None = None,
    ) -> Token:
        """A token for one worker, which gets that name where one is given."""
        self.listen()
        assert self._listening is not None
        address, port = self._listening.getsockname()[:2]
        token = new_token(
            TokenKind.JOIN,
            self._name,
            tuple(addresses or reachable(address)),
            port,
            raw_of(own_key(self._key_file)),
            life_s,
            quic,
        )
        self._invited[secret_hash(token.secret)] = float(token.expires_at), name
        try:
            self._write()
        except OSError as error:
            log.warning("invitations are lost at the controller's end: %s", error)
        return token

    def _write(self) -> None:
        now = time.time()
        good = {h: one for h, one in self._invited.items() if one[0] > now}
        if good:
            write_private(self._kept, msgspec.json.encode(good))
        else:
            # A controller starts sooner where there is none.
            self._kept.unlink(missing_ok=True)

    async def _welcome(
        self, made: socket.socket, address: str, known: Callable[[], None]
    ) -> None:
        """Hear who it says it is; its login proves it, elsewhere."""
        made.setblocking(False)
        try:
            async with asyncio.timeout(HINT_S):
                hint = await _hint(made)
            if (one := self._awaited.get(hint)) is not None:
                one.put(made)
                return
            if not self.invites:
                made.close()
                return
            async with asyncio.timeout(PAIR_S):
                await self._pair(made)
        except (TimeoutError, OSError, asyncssh.Error, DllmError, *NOT_JSON) as error:
            self._tell_of_failure(
                f"a worker that dialled from {address} was not taken: {error}"
            )
            made.close()
        except BaseException:
            made.close()
            raise

    async def _pair(self, made: socket.socket) -> None:
        key = own_key(self._key_file)
        # Whoever it is: our key is proved to it first, then its secret says who.
        link = await client_over(made, None, username=USER_BY_KEY, client_keys=[key])
        async with link:
            host_key = link.get_server_host_key()
            process = await link.create_process(subsystem=PAIR, encoding=None)
            told = await read_line(process.stdout)
            asked = msgspec.json.decode(told, type=PairRequest)
            answer = PairAnswer(name=self._name)
            try:
                hashed, name = self._used(asked.secret)
                assert host_key is not None
                line = public_line(host_key)
                await self._join(hashed[:ID_CHARS], name, asked.name, line)
            except DllmError as error:
                answer = PairAnswer(problem=str(error))
            process.stdin.write(msgspec.json.encode(answer) + b"\n")
            await process.stdin.drain()
            await process.wait_closed()

    async def _join(self, invitation: str, name: str, its_name: str, line: str) -> None:
        self._joined_as[invitation] = ""
        broke = MachineError(
            f"{its_name} did not finish joining", "Make another token."
        )
        outcome: str | MachineError = broke
        try:
            outcome = await self._joined(name, its_name, line)
        except DllmError as error:
            outcome = MachineError(error.what, error.hint)
            raise
        finally:
            self._joined_as[invitation] = outcome

    def _used(self, secret: str) -> tuple[str, str]:
        """Use an invitation up; its hash, and the name that the peer is to have."""
        try:
            hashed = secret_hash(bytes.fromhex(secret))
        except ValueError:
            hashed = ""
        if hashed not in self._invited:
            raise MachineError(
                f"{self._name} does not know this token, or it was used already",
                "Ask for another one.",
            )
        until, name = invited = self._invited.pop(hashed)
        # Before it is good for anything: it is never good twice.
        try:
            self._write()
        except OSError as error:
            self._invited[hashed] = invited
            raise MachineError(
                f"{self._name} cannot write {self._kept} ({error.strerror})",
                "Use the token again once it can.",
            ) from error
        if until <= time.time():
            raise MachineError("This token has expired", "Ask for another one.")
        return hashed, name


def _read(kept: Path) -> dict[str, tuple[float, str]]:
    """The invitations that are still good, by the hashes of their secrets."""
    try:
        found = msgspec.json.decode(
            kept.read_bytes(), type=dict[str, tuple[float, str]]
        )
    except FileNotFoundError:
        return {}
    except (OSError, *NOT_JSON) as error:
        log.warning("the invitations in %s cannot be read: %s", kept, error)
        return {}
    now = time.time()
    good = {hashed: one for hashed, one in found.items() if one[0] > now}
    if not good:
        with contextlib.suppress(OSError):
            kept.unlink()
    return good


def _is_alive(made: socket.socket) -> bool:
    # Its banner waits to be read, so that reading would not tell of its end.
    ended = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)
    poll = select.poll()
    poll.register(made, ended)
    return not poll.poll(0)


async def _hint(made: socket.socket) -> str:
    """The fingerprint in the first line; byte by byte, for SSH follows."""
    loop, line = asyncio.get_running_loop(), b""
    while not line.endswith(b"\n"):
        data = await loop.sock_recv(made, 1)
        line += data
        if not data or len(line) > HINT_BYTES_MAX:
            raise MachineError("it does not speak as a worker")
    if not line.startswith(DIALLED):
        raise MachineError("it does not speak as a worker")
    return line.removeprefix(DIALLED).decode("ascii", "replace").strip()
