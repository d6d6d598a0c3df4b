"""Every other machine of the settings: kept connected, probed, changed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from functools import cached_property
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from backends.config import (
    PeerConfig,
    check_peer_name,
    drop_peer,
    move_peer,
    put_peer,
    rename_peer,
)
from backends.errors import (
    ControllerError,
    DllmError,
    MachineError,
    NeedsAnswer,
    PeerUnreachable,
    UsageError,
    unknown_peer,
)
from backends.machine_names import LOCAL, is_place, suggested_name
from backends.machines.bare import BarePeer
from backends.mesh.quic_place import parse_quic_place
from backends.mesh.token import TokenKind, read_token
from backends.state import PeerPairing, Transport
from backends.tasks import TaskSet, end_tasks
from backends.writing import write_private

if TYPE_CHECKING:
    from backends.machines.join_listener import JoinListener
    from backends.machines.local_inventory import LocalInventory
    from backends.machines.machine import Machine
    from backends.machines.peer import SshPeer
    from backends.mesh.dialling import Dial
    from backends.mesh.digits import DigitsPairing
    from backends.mesh.discovery import Browser
    from backends.mesh.quic_dial import QuicDialler
    from backends.mesh.quic_place import QuicPlace
    from backends.mesh.token import Token
    from backends.paths import Paths
    from backends.state import FoundWorkers, Peer

    KnownPeer = SshPeer | BarePeer


log = logging.getLogger(__name__)

REACH_TIMEOUT_S = 30.0
SHOW_EVERY_S = 0.25
SILENT_PATIENCE_S = 5.0
"""Longest wait for a suspect peer, from its last sign of life."""
RESTART_PAUSES_S = (1.0, 4.0, 15.0, 60.0)
"""After errors of ours in looking after a peer."""


class Peers:
    """All machines: ours and those of the settings.

    Nothing is reached before ``start``.

    ``show`` is told how all peers are. ``serves`` tells whether a machine takes
    part in a cluster that runs, starts or stops.
    """

    def __init__(
        self,
        local: Machine,
        inventory: LocalInventory,
        paths: Paths,
        *,
        show: Callable[[tuple[Peer, ...]], None],
        serves: Callable[[str], bool],
    ) -> None:
        self._local = local
        self._inventory = inventory
        self._paths = paths
        self._show_all = show
        self._serves = serves
        self._settle: Callable[[Machine], Awaitable[None]]
        self._known: dict[str, KnownPeer] = {}
        self._configs: dict[str, PeerConfig] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._showing: asyncio.TimerHandle | None = None
        self._head_id = ""
        self._pairing: tuple[DigitsPairing, asyncio.Task[Peer]] | None = None
        self._pairing_turn = asyncio.Lock()
        self._moves = TaskSet()
        self._move_turn = asyncio.Lock()

    def get(self, name: str) -> Machine:
        if name == LOCAL:
            return self._local
        return self.ssh(name)

    def all(self) -> Iterable[Machine]:
        yield self._local
        # A copy: who goes through them may wait while peers come and go.
        for known in list(self._known.values()):
            if not isinstance(known, BarePeer) and known.connected:
                yield known

    def of_owner(self) -> list[SshPeer]:
        """Our owner's machines: those that are reached by SSH, and by nothing else."""
        return [
            known
            for known in self._known.values()
            if not isinstance(known, BarePeer) and known.transport is Transport.SSH
        ]

    async def reached(self, names: Iterable[str]) -> None:
        await asyncio.gather(*(self._reached(name) for name in names if name != LOCAL))

    async def _reached(self, name: str) -> None:
        known = self.ssh(name)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REACH_TIMEOUT_S):
                await known.settled()
        await known.answering(SILENT_PATIENCE_S)
        peer = known.peer
        if peer.question is not None:
            raise NeedsAnswer(peer.question)
        if not known.connected or peer.silent_since:
            raise PeerUnreachable(f"{name} cannot be reached ({peer.note})")

    def start(self, settle: Callable[[Machine], Awaitable[None]]) -> None:
        """Look after every peer of the settings; returns at once.

        ``settle`` is told of a machine that has just been reached (again).
        """
        self._settle = settle
        wrong: DllmError | None = None
        if self._paths.invitations_file.exists() and self._join_listener.invites:
            try:
                self._join_listener.listen()
            except DllmError as error:
                wrong = error
        for name, config in self._inventory.settings().peers.items():
            try:
                self._take(name, config)
            except DllmError as error:
                wrong = wrong or error
        if wrong is not None:
            raise wrong

    async def follow(self, wanted: Mapping[str, PeerConfig]) -> bool:
        """Look after the peers of changed settings, and after no others.

        A peer that works for a cluster keeps its old settings until that has ended. As
        long as there is one, the answer is False, and the caller asks again later.
        """
        changed = [n for n, config in self._configs.items() if wanted.get(n) != config]
        for name in changed:
            if not self._serves(name):
                await self._release(name)
        for name, config in wanted.items():
            if name not in self._known:
                try:
                    self._take(name, config)
                except DllmError as error:
                    log.warning("peer %s is left out: %s", name, error)
        if "_quic" in self.__dict__:
            await self._leave_relays()
        self._changed()
        return not any(map(self._serves, changed))

    async def close(self) -> None:
        for name in list(self._tasks):
            await self._release(name)
        await self._moves.end()
        await self._end_pairing()
        if "_join_listener" in self.__dict__:
            await self._join_listener.close()
        if "_browser" in self.__dict__:
            await self._browser.close()
        if "_quic" in self.__dict__:
            await self._quic.close()

    def _take(
        self, name: str, config: PeerConfig, trusted: Collection[str] = ()
    ) -> None:
        known = self._made(name, config, trusted)
        self._known[name] = known
        self._configs[name] = config
        self._tasks[name] = asyncio.create_task(self._supervise(known))
        self._changed()

    def _made(
        self, name: str, config: PeerConfig, trusted: Collection[str] = ()
    ) -> KnownPeer:
        if config.bare:
            return BarePeer(name, config, self._inventory, self._changed, self._serves)
        # Importing asyncssh takes longer than all the rest of a controller's start.
        from backends.machines.lent_peer import LentPeer
        from backends.machines.peer import SshPeer

        known: dict[str, Any] = {
            "paths": self._paths,
            "inventory": self._inventory,
            "head_id": self.own_id(),
            "changed": self._changed,
            "settle": self._settle,
            "serves": self._serves,
        }
        if not config.worker:
            return SshPeer(name, config, **known, trusted=trusted)
        known |= {"awaited": self._join_listener.awaited, "quic": self._quic}
        known |= {"moved": self._moved, "announced": self._announced_at}
        return LentPeer(name, config, **known)

    # --- invitations ------------------------------------------------------------------

    @cached_property
    def _join_listener(self) -> JoinListener:
        from backends.machines.join_listener import JoinListener

        return JoinListener(
            self._paths.console_key_file,
            socket.gethostname(),
            self._join_port,
            self._joined,
            self._paths.invitations_file,
            self._quic,
        )

    def _join_port(self) -> int:
        return self._inventory.settings().join_port

    @cached_property
    def _quic(self) -> QuicDialler:
        from backends.mesh.quic_dial import QuicDialler

        return QuicDialler(self._paths, port=self._join_port)

    async def invite(self, name: str, life_s: float, addresses: Sequence[str]) -> Token:
        """A token for a machine that can dial us, though we cannot dial it."""
        if name and not self._is_lent(name):
            self._require_new(name)
        quic = await self._quic.own_place()
        return self._join_listener.invite(life_s, name, addresses, quic)

    def joined(self, invitation: str) -> Peer | None:
        """The peer that has used an invitation; None while it is good.

        ``invitation``: as the token's ``id``.
        """
        name = self._join_listener.joined_as(invitation)
        if name and name not in self._known:
            raise MachineError(
                f"{name} has joined, and was removed or renamed since",
                "See dllm-tui peers.",
            )
        return self._known[name].peer if name else None

    async def _joined(self, name: str, its_name: str, host_key: str) -> str:
        from backends.machines.lent_peer import DIALS

        config = PeerConfig(worker=DIALS, host_key=host_key)
        return (await self._add_lent(name, its_name, config)).name

    async def add_by_token(self, name: str, text: str, via: str | None = None) -> Peer:
        """Pair with the worker of a token, and add it.

        ``via``: an SSH host to go through, where no other way goes.
        """
        from backends.machines.ssh.lent import ThroughHost, pair
        from backends.mesh.dialling import Dialled
        from backends.mesh.identity import line_of_raw

        token = read_token(text, TokenKind.ADD)
        host_key = line_of_raw(token.key)
        if name and not self._named(host_key):
            self._require_new(name)
        dial: Dial = Dialled(token.places)
        if token.quic is not None:
            dial = self._quic.beside(dial, token.quic)
        if via:
            dial = ThroughHost(dial, via, token.places)
        try:
            await pair(token, self._paths.console_key_file, socket.gethostname(), dial)
        except BaseException:
            await self._leave_relays()
            raise
        places = " ".join(token.places)
        quic = token.quic.text if token.quic else None
        config = PeerConfig(worker=places, host_key=host_key, quic=quic, via=via)
        # Before it is dialled: its relay wants the key.
        if token.quic is not None:
            await self._quic.learn(token.quic)
        return await self._add_lent(name, token.name, config)

    def _moved(self, name: str, config: PeerConfig, quic: QuicPlace | None) -> None:
        """Keep the places that a lent machine has told, in the settings, too."""
        if name not in self._configs:
            return
        before = self._configs[name]
        places = {"worker": config.worker, "quic": config.quic}
        # Before it is written: so what follows the settings sees no change.
        self._configs[name] = moved = replace(before, **places)
        self._moves.start(self._keep_move(name, before, moved, quic))

    async def _keep_move(
        self, name: str, before: PeerConfig, moved: PeerConfig, quic: QuicPlace | None
    ) -> None:
        places = {"worker": moved.worker, "quic": moved.quic}
        try:
            async with self._move_turn:
                if self._configs.get(name) is not moved:
                    return
                # Another program may hold its lock for a while.
                await asyncio.to_thread(move_peer, self._paths, name, places)
        except DllmError as error:
            log.warning("the new place of %s is not kept: %s", name, error)
            if self._configs.get(name) is moved:
                self._configs[name] = before
            return
        try:
            if quic is not None:
                await self._quic.learn(quic, heard=True)
        except DllmError as error:
            log.warning("the relay of %s is not kept: %s", name, error)

    async def _announced_at(self, host_key: str) -> tuple[str, ...]:
        from backends.mesh.identity import key_of_line

        return await self._browser.places_of(key_of_line(host_key).get_fingerprint())

    # --- found here, and paired by digits ---------------------------------------------

    @cached_property
    def _browser(self) -> Browser:
        from backends.mesh.discovery import Browser

        return Browser()

    def found(self) -> FoundWorkers:
        """The workers on this network that announce themselves, ours among them."""
        ours = self._names_by_key
        found = self._browser.found()
        workers = [replace(one, peer=ours.get(one.id, "")) for one in found.workers]
        return replace(found, workers=tuple(workers))

    async def begin_pairing(self, name: str, place: str) -> PeerPairing:
        """Agree on digits with the worker at a place; an earlier pairing ends."""
        from backends.mesh.digits import begin_pairing

        if not is_place(place):
            raise UsageError(f"{place!r} is no place", "Write it like 10.0.0.7:50080.")
        key_file, own = self._paths.console_key_file, socket.gethostname()
        async with self._pairing_turn:
            await self._end_pairing()
            made = await begin_pairing(place, key_file, own)
            if made is None:
                return PeerPairing()
            if name and not self._named(made.host_key):
                try:
                    self._require_new(name)
                except DllmError:
                    made.close()
                    raise
            outcome = asyncio.create_task(self._paired(name, made))
            # Who asked may have gone.
            outcome.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._pairing = made, outcome
        return PeerPairing(name=made.name, digits=made.digits)

    async def _paired(self, name: str, made: DigitsPairing) -> Peer:
        try:
            await made.outcome()
            config = PeerConfig(worker=made.place, host_key=made.host_key)
            return await self._add_lent(name, made.name, config)
        finally:
            made.close()

    def decide_pairing(self, digits: str, agrees: bool) -> None:
        self._pairing_of(digits)[0].decide(agrees)

    async def pairing_outcome(self, digits: str) -> Peer:
        """The new peer, once both sides have compared the digits."""
        outcome = self._pairing_of(digits)[1]
        await asyncio.wait([outcome])
        if outcome.cancelled():
            raise _over()
        return outcome.result()

    def _pairing_of(self, digits: str) -> tuple[DigitsPairing, asyncio.Task[Peer]]:
        if self._pairing is None or self._pairing[0].digits != digits:
            raise _over()
        return self._pairing

    async def _end_pairing(self) -> None:
        if self._pairing is not None:
            await end_tasks(self._pairing[1])
            self._pairing = None

    async def _supervise(self, known: KnownPeer) -> None:
        """Run a peer; after an error of ours, show it and run the peer again."""
        for pause_s in chain(RESTART_PAUSES_S, repeat(RESTART_PAUSES_S[-1])):
            try:
                await known.run()
            except Exception as error:
                log.exception("peer %s is looked after again", known.peer.name)
                known.fail(
                    f"Looking after it failed ({type(error).__name__}: {error}): tried "
                    f"again in {pause_s:g} s; controller.log has the details"
                )
            await asyncio.sleep(pause_s)

    async def _release(self, name: str) -> None:
        task = self._tasks.get(name)
        if task is None:
            return
        # A second cancellation would interrupt what it does about the first.
        if not task.cancelling():
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if self._tasks.get(name) is task:
            del self._tasks[name], self._known[name], self._configs[name]

    def own_id(self) -> str:
        """The name under which other machines keep what is ours."""
        file = self._paths.head_id_file
        if not self._head_id and file.exists():
            self._head_id = file.read_text().strip()
        if not self._head_id:
            self._head_id = secrets.token_hex(4)
            write_private(file, self._head_id.encode())
        return self._head_id

    def _changed(self) -> None:
        if self._showing is None:
            loop = asyncio.get_running_loop()
            self._showing = loop.call_later(SHOW_EVERY_S, self._show)

    def _show(self) -> None:
        self._showing = None
        self._show_all(self.values())

    @property
    def busy(self) -> bool:
        return any(peer.work is not None for peer in self.values())

    @property
    def invites(self) -> bool:
        """Return true while it pairs, or a token is good that it alone knows."""
        if self._pairing is not None and not self._pairing[1].done():
            return True
        return "_join_listener" in self.__dict__ and self._join_listener.invites

    def values(self) -> tuple[Peer, ...]:
        return tuple(known.peer for known in self._known.values())

    def _require_new(self, name: str) -> None:
        check_peer_name(name)
        if name in self._known:
            raise ControllerError(
                f"There is a peer {name} already",
                f"Remove it first (dllm-tui peers remove {name}) or take another name.",
            )

    def add(self, name: str, config: PeerConfig, trusted: Collection[str] = ()) -> Peer:
        """Keep a peer in the settings, and look after it.

        ``trusted``: fingerprints of host keys that nobody needs to be asked about.
        """
        self._require_new(name)
        self._made(name, config)
        put_peer(self._paths, name, config)
        self._take(name, config, trusted)
        return self._known[name].peer

    @property
    def _names_by_key(self) -> dict[str, str]:
        from backends.mesh.identity import key_of_line

        found: dict[str, str] = {}
        for name, config in self._configs.items():
            # One that is no key is of that peer alone.
            with contextlib.suppress(MachineError):
                key = key_of_line(config.host_key or "")
                found[key.get_fingerprint()] = name
        return found

    def _named(self, host_key: str) -> str:
        from backends.mesh.identity import key_of_line

        return self._names_by_key.get(key_of_line(host_key).get_fingerprint(), "")

    def _is_lent(self, name: str) -> bool:
        return name in self._configs and bool(self._configs[name].host_key)

    async def _add_lent(self, name: str, its_name: str, config: PeerConfig) -> Peer:
        """Keep a lent machine; one that is known by its key gets its new place only."""
        host_key = config.host_key or ""
        known = self._named(host_key)
        if not known:
            new = suggested_name(its_name, self._known)
            # A name of signs that no peer's may have suggests none.
            new = new or suggested_name("peer", self._known)
            return self.add(name or new, config)
        before = self._configs[known]
        via = config.via or before.via
        config = replace(before, worker=config.worker, quic=config.quic, via=via)
        put_peer(self._paths, known, config)
        if not self._serves(known):
            self._join_listener.forget(host_key)
            await asyncio.shield(self._take_anew(known, known, config))
        return self._known[known].peer

    async def _take_anew(self, name: str, new: str, config: PeerConfig) -> None:
        # To be shielded: in between nobody looks after it.
        await self._release(name)
        # The settings may have been followed meanwhile.
        if new not in self._known:
            self._take(new, config)

    async def rename(self, name: str, new: str) -> Peer:
        """Give a peer another name, in the settings, too."""
        config = self._configs[self.known(name).peer.name]
        self._require_new(new)
        self._require_idle(name)
        rename_peer(self._paths, name, new)
        await asyncio.shield(self._take_anew(name, new, config))
        return self._known[new].peer

    def _require_idle(self, name: str) -> None:
        if self._serves(name):
            raise ControllerError(
                f"{name} is part of the cluster",
                "Launch without it first, or stop the cluster: dllm-tui down.",
            )

    async def remove(self, name: str) -> None:
        host_key = self._configs[self.known(name).peer.name].host_key
        self._require_idle(name)
        drop_peer(self._paths, name)
        await self._release(name)
        if host_key is not None:
            self._join_listener.forget(host_key)
        await self._leave_relays()
        self._changed()
        await self._quic.forget_relays_but(self._relays)

    @property
    def _relays(self) -> list[str]:
        places = [c.quic for c in self._configs.values() if c.quic]
        return [parse_quic_place(place).relay for place in places]

    async def _leave_relays(self) -> None:
        await self._quic.keep_relays(self._relays)

    def known(self, name: str) -> KnownPeer:
        if name not in self._known:
            raise MachineError(*unknown_peer(name, self._known))
        return self._known[name]

    def ssh(self, name: str) -> SshPeer:
        known = self.known(name)
        if isinstance(known, BarePeer):
            raise MachineError(
                f"{name} is a bare rpc-server: nothing can be done there but use it",
                "Add the machine by its SSH name for more.",
            )
        return known


def _over() -> MachineError:
    return MachineError("This pairing is over", "Begin again.")
