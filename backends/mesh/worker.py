"""``dllm-tui worker``: listens, and dials the consoles that cannot."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import random
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import asyncssh
from msgspec.structs import replace

from backends.engine.install import all_engines
from backends.errors import DllmError, MachineError
from backends.machines.ssh.connection import answer_ms, wait_for
from backends.mesh.acceptor import Acceptor
from backends.mesh.dialling import (
    FIRST_LOOK_S,
    LAST_LOOK_S,
    Dialled,
    IndirectSocket,
    listening_at,
    reachable,
)
from backends.mesh.discovery import WORD_CHARS, announced, near
from backends.mesh.identity import line_of_raw, own_key, public_line, quic_seed, raw_of
from backends.mesh.messages import DIALLED
from backends.mesh.pairings import PairedConsole, usable, with_console
from backends.mesh.quic import QuicEndpoint, QuicSocket
from backends.mesh.quic_dial import QuicDialler
from backends.mesh.relay_access import RelayFile, try_relay
from backends.mesh.server import OPTIONS, WorkerServer
from backends.mesh.token import TokenKind, new_token, place
from backends.mesh.worker_status import StatusFile
from backends.printable import printable
from backends.state import FoundWorker
from backends.tasks import end_tasks, first_of

if TYPE_CHECKING:
    from backends.mesh.dialling import Dial
    from backends.mesh.pairings import PairingFile
    from backends.mesh.quic_place import QuicPlace
    from backends.mesh.relay_access import RelayAccess
    from backends.mesh.tenants import Tenants
    from backends.mesh.token import Token
    from backends.mesh.worker_status import WorkerStatus
    from backends.paths import Paths

LISTEN_PORT = 50080
LOOK_S = 1.0
FIRST_REDIAL_S = 1.0
LAST_REDIAL_S = 30.0
BEAT_S = 2.0
SILENT_S = 8.0
"""So long a console is silent before it is dialled anew, beside that connection."""
JOIN_S = 30.0
RELAY_S = 5.0
"""A relay that is up takes us sooner."""


class Worker:
    """Serves consoles over whatever sockets they come by."""

    def __init__(self, paths: Paths, pairings: PairingFile, tenants: Tenants) -> None:
        self.tenants = tenants
        self._pairings = pairings
        self._paths = paths
        self._key = own_key(paths.worker_key_file)
        self._dialling: dict[str, asyncio.Task[None]] = {}
        self._places: dict[str, tuple[tuple[str, ...], QuicPlace | None]] = {}
        self._joined_anew = asyncio.Event()
        self.acceptor = Acceptor(self._welcome, tenants.say)
        self._announces = False
        self._moved = asyncio.Event()
        self._address = ""
        self._listening: socket.socket | None = None
        self._quic: QuicEndpoint | None = None
        self._meeting: asyncio.Task[None] | None = None
        # Who dials needs no lasting node id; another worker here would have the same.
        self._dialler = QuicDialler(paths, secrets.token_bytes(32))
        self._held: int | None = None
        self._wrong = ""
        self._ways: list[str] = []
        self._status = StatusFile(paths.worker_status_file)

    # --- for its owner --------------------------------------------------------------

    @property
    def listens(self) -> bool:
        return self._listening is not None

    def invite(self, life_s: float) -> Token:
        return new_invitation(self._paths, self._pairings, life_s)

    def is_open(self, token: Token) -> bool:
        """True while a console may still use an invitation of ours."""
        try:
            usable(self.tenants.pairings, token.secret)
        except MachineError:
            return False
        return True

    def pause(self, paused: bool) -> None:
        self._pairings.pause(paused)

    def decide(self, digits: str, accepts: bool) -> None:
        self._pairings.decide(digits, accepts)

    @property
    def status(self) -> WorkerStatus:
        return self.tenants.status(self._ways)

    # --- its life -------------------------------------------------------------------

    def listen(self, address: str, port: int, *, announces: bool = False) -> None:
        """Begin to listen, and write down where.

        ``announces``: say so on the network, and pair with consoles by digits.
        """
        self._hold()
        self._listening, self._address = listening_at(address, port), address
        port = self._port
        own = {"name": self.tenants.name, "port": port}
        self._pairings.change(
            lambda pairings: replace(pairings, pid=os.getpid(), **own)
        )
        self._write_addresses()
        self.tenants.say(f"listening at {place(address, port)}")
        self._ways.append(f"TCP at {place(address, port)}")
        self.tenants.by_digits.is_open = self._announces = announces

    @property
    def _port(self) -> int:
        return int(self._listening.getsockname()[1]) if self._listening else 0

    def _write_addresses(self) -> None:
        """Write down the addresses of now, for consoles and tokens."""
        if self._listening is None:
            return
        addresses = tuple(reachable(self._address))
        if self.tenants.pairings.addresses != addresses:
            self._pairings.change(
                lambda pairings: replace(pairings, addresses=addresses)
            )
            self._moved.set()

    async def listen_quic(self, address: str, port: int) -> None:
        """Be reached by QUIC, too; without iroh that is said, and all else goes on."""
        seed = quic_seed(self._key)
        try:
            relay = RelayFile(self._paths.relays_file).own
            self._quic = await QuicEndpoint.bound(seed, address, port, relay)
        except MachineError as error:
            self.tenants.say(f"reached by TCP alone: {error}")
            return
        self.tenants.say("reached by QUIC, too")
        self._ways.append("QUIC")
        if relay is not None:
            self._meeting = asyncio.create_task(self._meet(self._quic, relay))

    async def _meet(self, quic: QuicEndpoint, relay: RelayAccess) -> None:
        """Say whether a relay takes us, and again once it does."""
        try:
            async with asyncio.timeout(RELAY_S):
                await quic.online()
        except TimeoutError:
            try:
                await try_relay(relay)
                why = "It answers, but takes us not."
            except MachineError as error:
                why = str(error)
            self.tenants.say(f"not reached by the relay yet: {why}")
            await quic.online()
        self.tenants.say(f"reached by the relay {relay.url}, too")
        self._ways.append(f"the relay {relay.url}")

    async def run(self) -> None:
        """Serve until cancelled; then everything that runs for others is ended."""
        self._hold()
        if not all_engines(None, self._paths):
            self.tenants.say("no llama.cpp is here yet: dllm-tui engine get")
        own: dict[str, Any] = {"pid": os.getpid(), "asking": None}
        if not self.listens:
            # As one that was killed has left it.
            own |= {"port": 0, "addresses": ()}
        self._pairings.change(lambda pairings: replace(pairings, **own))
        serving: list[asyncio.Task[None]] = []
        try:
            await self.tenants.begin()
            coming = (self._accept(), self._accept_quic(), self._announce())
            serving += map(asyncio.create_task, coming)
            while True:
                for taking in serving[:2]:
                    if taking.done():
                        taking.result()
                await self._look()
                await asyncio.sleep(LOOK_S)
        finally:
            await end_tasks(*serving, self._meeting, *self._dialling.values())
            if self._listening is not None:
                self._listening.close()
            await self.tenants.close()
            await self.acceptor.close()
            if self._quic is not None:
                await self._quic.close()
            await self._dialler.close()
            self._status.remove()
            gone: dict[str, Any] = {"pid": 0, "port": 0, "quic": None, "asking": None}
            self._pairings.change(lambda pairings: replace(pairings, **gone))
            if self._held is not None:
                os.close(self._held)

    async def _look(self) -> None:
        """See to everything; what goes wrong is said once, and tried again."""
        try:
            try:
                await self.tenants.look()
                await self._dial_all()
                self._write_quic()
                self._write_addresses()
            finally:
                self._status.write(self.status)
        except DllmError as error:
            if str(error) != self._wrong:
                self.tenants.say(str(error))
            self._wrong = str(error)
        else:
            self._wrong = ""

    def _hold(self) -> None:
        if self._held is None:
            self._held = self._pairings.hold()

    async def _announce(self) -> None:
        """Say where it listens; anew, once its addresses are others."""
        while self._announces:
            self._moved.clear()
            if not (heard_at := near(self.tenants.pairings.addresses)):
                await self._moved.wait()
                continue
            worker = FoundWorker(
                name=printable(self.tenants.name, WORD_CHARS),
                address=place(heard_at[0], self._port),
                version=version("dllm-tui"),
                id=self._key.get_fingerprint(),
            )
            try:
                async with announced(worker, heard_at):
                    await self._moved.wait()
            except MachineError as error:
                self.tenants.say(f"{error.what}: consoles need its address or a token")
                await self._moved.wait()

    def _write_quic(self) -> None:
        place = self._quic.place if self._quic else None
        if self.tenants.pairings.quic != place:
            self._pairings.change(lambda pairings: replace(pairings, quic=place))

    # --- those who come ---------------------------------------------------------------

    async def _accept(self) -> None:
        if self._listening is not None:
            await self.acceptor.run(self._listening)

    async def _accept_quic(self) -> None:
        if self._quic is not None:
            async for made, address in self._quic.come():
                self.acceptor.let_in(made, address)

    async def _welcome(
        self, made: socket.socket, address: str, known: Callable[[], None]
    ) -> None:
        owner = WorkerServer(
            self.tenants,
            _own_address(made),
            host_key=public_line(self._key),
            come_from=address,
        )
        link = await self.serve(made, owner)
        if link is not None:
            # Anybody may log in to be paired, and is a stranger still.
            if owner.is_paired:
                known()
            await link.wait_closed()

    async def serve(
        self, made: socket.socket, server: WorkerServer | None = None
    ) -> asyncssh.SSHServerConnection | None:
        """Serve a console over a socket, however it came about.

        Returns the connection once somebody has logged in; None if nobody did.
        """
        made.setblocking(False)
        owner = server or WorkerServer(self.tenants, _own_address(made))
        owner.path = made.path if isinstance(made, IndirectSocket) else None
        try:
            return await asyncssh.run_server(
                made,
                server_factory=lambda: owner,
                server_host_keys=[self._key],
                **OPTIONS,
            )
        except (OSError, asyncssh.Error):
            made.close()
            return None

    # --- those who are dialled --------------------------------------------------------

    async def _dial_all(self) -> None:
        consoles = self.tenants.pairings.consoles
        wanted = {c.key: (c.places, c.quic) for c in consoles if c.places}
        for key in set(self._dialling) - set(wanted):
            await end_tasks(self._dialling.pop(key))
            relays = [quic.relay for _, quic in wanted.values() if quic]
            await self._dialler.keep_relays(relays)
        if wanted != self._places:
            self._places = wanted
            self._joined_anew.set()
            self._joined_anew = asyncio.Event()
        for key in wanted:
            if key not in self._dialling:
                self._dialling[key] = asyncio.create_task(self._keep_dialled(key))

    async def _keep_dialled(self, key: str) -> None:
        """Dial a console again and again, with back-off and jitter.

        Joined anew, it is dialled at once where the new invitation says.
        """
        failures = 0
        while True:
            begun, anew = time.monotonic(), self._joined_anew
            with contextlib.suppress(DllmError):
                await self._serve_one_that_is_dialled(key)
            if time.monotonic() - begun > LAST_REDIAL_S or anew.is_set():
                failures = 0
            most_s = min(LAST_REDIAL_S, FIRST_REDIAL_S * 2**failures)
            failures = min(failures + 1, 8)
            await wait_for(anew, random.uniform(most_s / 4, most_s))

    def _dial_of(self, places: Sequence[str], quic: QuicPlace | None) -> Dial:
        hint = DIALLED + self._key.get_fingerprint().encode() + b"\n"
        tcp = Dialled(places, hint)
        return self._dialler.beside(tcp, quic, hint) if quic is not None else tcp

    async def _serve_one_that_is_dialled(self, key: str) -> None:
        """Until it has gone; by another way, where it falls silent or TCP goes."""
        made = await self._dial_of(*self._places[key]).connected()
        link, pause_s = await self.serve(made), FIRST_LOOK_S
        while link is not None and not link.is_closed():
            is_quic = isinstance(made, QuicSocket)
            silent = await _falls_silent(link, pause_s if is_quic else LAST_LOOK_S)
            if not link.is_closed() and (silent or is_quic):
                pause_s = min(2 * pause_s, LAST_LOOK_S)
                with contextlib.suppress(DllmError):
                    dial = self._dial_of(*self._places[key])
                    another = dial.connected() if silent else dial.better(None)
                    better = await another
                    if (other := await self.serve(better)) is not None:
                        # The console decides which of the two stays.
                        await first_of(link.wait_closed(), other.wait_closed())
                        if link.is_closed():
                            made, link = better, other

    def _not_joined(self, token: Token) -> MachineError:
        key = line_of_raw(token.key)
        if (known := self._pairings.read().by_key(key)) and known.places:
            return MachineError(f"This machine has joined {known.name} already")
        return MachineError(
            f"{token.name} did not log in here: it has another key than the token "
            "says, or knows nothing of it",
            "Ask for another token.",
        )

    async def join(self, token: Token) -> str:
        """Pair with the console of a token; its name here."""
        try:
            return await self._join(token)
        finally:
            # The worker that runs here, if there is one, dials from now on.
            await self._dialler.close()

    async def _join(self, token: Token) -> str:
        made = await self._dial_of(token.places, token.quic).connected()
        server = WorkerServer(self.tenants, "", token)
        try:
            async with asyncio.timeout(JOIN_S):
                link = await self.serve(made, server)
                if link is None:
                    raise self._not_joined(token)
                answer = await server.paired
        except TimeoutError as error:
            raise MachineError(
                f"{token.name} did not answer", "Is its dllm-tui still waiting?"
            ) from error
        if answer.problem:
            raise MachineError(answer.problem)
        console = PairedConsole(
            name=answer.name or token.name,
            key=line_of_raw(token.key),
            added_at=time.time(),
            places=token.places,
            quic=token.quic,
        )
        paired = self._pairings.change(lambda found: with_console(found, console))
        stored = paired.by_key(console.key)
        # It may have been revoked since.
        return stored.name if stored else console.name


async def _falls_silent(link: asyncssh.SSHServerConnection, within_s: float) -> bool:
    """Return true once it gives no answer; false at its end, or if all goes well."""
    until = time.monotonic() + within_s
    while not link.is_closed() and time.monotonic() < until:
        try:
            async with asyncio.timeout(SILENT_S):
                await answer_ms(link)
        except TimeoutError:
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BEAT_S):
                await link.wait_closed()
    return False


def _own_address(made: socket.socket) -> str:
    # Direct links may use the address at which a console reached us, too.
    with contextlib.suppress(ValueError, OSError, IndexError):
        address = ipaddress.ip_address(str(made.getsockname()[0]).partition("%")[0])
        plain = getattr(address, "ipv4_mapped", None) or address
        return str(plain)
    return ""


def new_invitation(paths: Paths, pairings: PairingFile, life_s: float) -> Token:
    """A token for a console, good once."""
    found = pairings.read()
    if not pairings.lent or not found.port:
        raise MachineError(
            "No worker listens here", "Start it first: dllm-tui worker [--headless]."
        )
    key = raw_of(own_key(paths.worker_key_file))
    named = found.name, found.addresses, found.port
    quic = found.quic
    if quic is not None:
        quic = quic.with_key(RelayFile(paths.relays_file))
    token = new_token(TokenKind.ADD, *named, key, life_s, quic)
    pairings.invite(token.secret, token.expires_at)
    return token
