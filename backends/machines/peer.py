"""A peer reached over SSH: processes, engine, models, tunnels, probes, long work."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import zlib
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from backends.direct_address import AUTO, DirectAddress, place_of
from backends.engine.ask import Engine
from backends.engine.versions import protocols_match
from backends.errors import (
    ControllerError,
    DllmError,
    EngineError,
    MachineError,
    ModelError,
    NeedsAnswer,
    PeerUnreachable,
)
from backends.link.transport import LinkTransport, TransportSpec
from backends.machine_names import at_peer
from backends.machines.agent import LEASE_S, AgentSession
from backends.machines.machine import Machine, called_alike, stand_ins
from backends.machines.model_files import read_there
from backends.machines.peer_downloads import Wanted, Way, deliver_model
from backends.machines.probing import Prober, state_of
from backends.machines.provisioning import clean, provision
from backends.machines.shell import AgentShell, Greeting, greet
from backends.machines.ssh.authentication import Login
from backends.machines.ssh.config import Destination
from backends.machines.ssh.connection import (
    Connection,
    ConnectionPhase,
    ConnectionState,
)
from backends.machines.ssh.sessions import HeldSession
from backends.machines.ssh.tunnels import Tunnel
from backends.models.identity import identity_of
from backends.models.layer_file import has_layers_of
from backends.models.search import named_folders
from backends.paths import SOCKET_PATH_BYTES_MAX, Paths, make_private, relay_binary
from backends.state import (
    ModelInfo,
    Peer,
    PeerAnswer,
    PeerData,
    PeerFacts,
    PeerState,
    PeerWork,
    ProvisionMode,
    Transport,
)
from backends.state.models import Delivered
from backends.tasks import end_tasks
from backends.units import format_age

if TYPE_CHECKING:
    from backends.config import PeerConfig
    from backends.machines.local_inventory import LocalInventory


log = logging.getLogger(__name__)

T = TypeVar("T")

ANY_USER = "any user of {machine} can reach the worker"

# Where a user's files go, by the XDG rules, on any Unix; nothing is made there yet.
_AGENT_LINE = (
    'exec "$1" agent --run-dir "${XDG_STATE_HOME:-$HOME/.local/state}/dllm-tui/run/$2"'
)
_MAKE_FOLDER = 'umask 077; mkdir -p -- "$1"'
# Others may write to /tmp too: a folder there is ours alone, or none of ours.
_OWN_FOLDER = """\
folder=/tmp/dllm-$(id -u)-$1
mkdir -m 700 -- "$folder" 2>/dev/null
if [ -L "$folder" ] || [ ! -O "$folder" ] || ! chmod 700 -- "$folder"; then
  echo "$folder belongs to somebody else: remove it there" >&2
  exit 1
fi
printf %s "$folder"
"""
_NUMBERED_BYTES = len("/12345678.sock")


PROBE_EVERY_S = 300.0
PROBE_SOON_S = 10.0
"""After a light probe: for what it left out, once nothing serves there."""
_NOT_REACHED = (PeerState.PROBING, PeerState.UNREACHABLE, PeerState.ASKING)


class SshPeer:
    """Implements ``Machine``, and keeps the peer reached and probed while it ``run``s.

    ``changed`` is told of news, ``settle`` that it has been reached (again).

    ``serves`` tells whether it takes part in a cluster now. ``head_id`` keeps our
    processes there apart from those of other heads. ``trusted``: fingerprints of host
    keys that nobody needs to be asked about.
    """

    transport = Transport.SSH

    def __init__(
        self,
        name: str,
        config: PeerConfig,
        *,
        paths: Paths,
        inventory: LocalInventory,
        head_id: str,
        changed: Callable[[], None],
        settle: Callable[[Machine], Awaitable[None]],
        serves: Callable[[str], bool],
        trusted: Collection[str] = (),
    ) -> None:
        self._paths = paths
        self._trusted = trusted
        self._inventory = inventory
        self._changed = changed
        self._settle = settle
        self._serves = serves
        self._light = False
        self.connection = self._connected_by(name, config)
        self.name = name
        self.facts = PeerFacts(at=0.0)
        self._head_id = head_id
        self._data = config.data
        self._relay = ""
        self._greeted: Greeting | None = None
        # The same one for every agent: others listen to what it tells.
        self._agent = AgentSession(
            name, self._open_agent, restarts=True, lease_s=LEASE_S
        )
        self._sockets = ""
        self._engines: tuple[Engine, ...] = ()
        self._prober = Prober(self.connection, config, paths)
        self.connection.on_state = self._on_state
        self._looking: asyncio.Task[None] | None = None
        self._work: asyncio.Task[Any] | None = None
        self._news = asyncio.Event()
        self._ready = asyncio.Event()
        self._state_changed = asyncio.Event()
        self.peer = Peer(
            name=name,
            state=PeerState.PROBING,
            since=time.time(),
            transport=self.transport,
            address=config.worker or str(Destination.parse(config.ssh or name)),
            data=PeerData(wanted=config.data or AUTO),
        )

    def _connected_by(self, name: str, config: PeerConfig) -> Connection:
        place = Destination.parse(config.ssh or name)
        login = partial(Login, place, trusted=self._trusted)
        return Connection(name, place, login=login)

    @property
    def _remedy(self) -> str:
        return f"Provision it: dllm-tui peers setup {self.name}."

    @property
    def connected(self) -> bool:
        return self._ready.is_set() and self.connection.connected

    async def run(self) -> None:
        self.connection.start()
        tasks = [
            asyncio.create_task(self.connection.wait()),
            asyncio.create_task(self._probe_loop()),
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            await end_tasks(*tasks)
            await self.cancel_work()
            await self.connection.stop()

    async def _probe_loop(self) -> None:
        while True:
            await self._wait_until_due()
            if self.connection.connected:
                with contextlib.suppress(DllmError):
                    await self.look()
                    # Heartbeats that came meanwhile are no further reason.
                    self._news.clear()

    async def _wait_until_due(self) -> None:
        """Wait for news of the peer, or until the last probe is old.

        A peer that serves is not probed for age alone: a probe slows it down.
        """
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(
                    PROBE_SOON_S if self._light else PROBE_EVERY_S
                ):
                    await self._news.wait()
                self._news.clear()
                return
            if not self._serves(self.peer.name):
                return

    async def settled(self) -> None:
        """Wait until it is reached and probed, cannot be reached, or asks."""
        waiting = self.connection.state.phase is ConnectionPhase.WAITING
        if waiting or self.peer.state is PeerState.UNREACHABLE:
            self.connection.poke()
        if waiting:
            await self._state_changed.wait()
        while (
            self.connection.state.phase is ConnectionPhase.CONNECTING
            or self.peer.state is PeerState.PROBING
        ):
            moved = self._state_changed
            await moved.wait()

    async def answering(self, patience_s: float) -> None:
        """While it is suspect, wait ``patience_s`` from its last sign of life."""
        with contextlib.suppress(TimeoutError):
            while (since := self.peer.silent_since) is not None:
                async with asyncio.timeout(since + patience_s - time.time()):
                    await self._state_changed.wait()

    def fail(self, note: str) -> None:
        self._become(PeerState.FAILED, note=note, rtt_ms=None)

    # --- being reached ------------------------------------------------------------

    def _on_state(self, state: ConnectionState) -> None:
        """The connection changed, or a heartbeat came."""
        self._notify_waiters()
        if state.phase is ConnectionPhase.CONNECTED:
            self._on_connected(state)
            return
        self._ready.clear()
        if state.phase is ConnectionPhase.ASKING:
            self._become(PeerState.ASKING, note=state.note, question=state.question)
        elif state.phase is ConnectionPhase.WAITING:
            gone: dict[str, Any] = {
                "rtt_ms": None,
                "silent_since": None,
                "since": state.since,
            }
            gone |= {"revoked": state.revoked, "withheld": state.withheld}
            self._become(PeerState.UNREACHABLE, note=state.note, **gone)
        elif self.peer.state is not PeerState.UNREACHABLE:
            self._become(PeerState.PROBING, note="")

    def _on_connected(self, state: ConnectionState) -> None:
        if self.peer.state in _NOT_REACHED:
            self._become(PeerState.PROBING, note="", revoked=False, withheld=False)
            self._news.set()
        if state.suspect:
            silent_s = state.silent_for_s
            since = self.peer.silent_since or round(time.time() - silent_s, 1)
            note = f"no answer for {format_age(silent_s)}"
            self._show(note=note, rtt_ms=None, silent_since=since)
        elif state.rtt_ms is not None:
            note = "" if self.peer.silent_since else self.peer.note
            self._show(rtt_ms=state.rtt_ms, note=note, silent_since=None)

    async def answer(self, answer: PeerAnswer) -> None:
        question = self.peer.question
        if question is None or question.kind is not answer.kind:
            raise ControllerError(f"{self.peer.name} does not ask for that now")
        self._become(PeerState.PROBING, note="")
        self.connection.answer({answer.kind: answer.text})

    # --- looking at it ------------------------------------------------------------

    async def look(self) -> None:
        """Probe it now; concurrent callers share one probe."""
        await self._reach()
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        await asyncio.shield(self._looking)

    async def model(self, path: str) -> ModelInfo:
        await self._reach()
        cache = self._paths.cache_dir / "headers"
        return await read_there(self.connection, path, cache)

    async def _look_anew(self) -> None:
        if self._looking is not None:
            await asyncio.wait([self._looking])
        await self.look()

    async def _reach(self) -> None:
        if self.connection.connected:
            return
        if self.connection.state.phase is ConnectionPhase.ASKING:
            # The question may be out of date: somebody logs in with ssh meanwhile.
            moved = self._state_changed
            self.connection.poke()
            await moved.wait()
        await self.settled()
        if self.peer.question is not None:
            raise NeedsAnswer(self.peer.question)
        if not self.connection.connected:
            raise PeerUnreachable(self.peer.note.rstrip(".") or "It cannot be reached")

    async def _look(self) -> None:
        try:
            self._light = self._serves(self.peer.name)
            facts = await self._probed()
            first = not self._ready.is_set()
            if first and facts.relay_version:
                await self._settle(self)
        except MachineError as error:
            if self.connection.connected:
                self._become(PeerState.FAILED, note=str(error))
            raise
        state, note = await self._judged(facts)
        self._ready.set()
        self._become(
            state, note=note, facts=facts, devices=facts.devices, question=None
        )

    async def _probed(self) -> PeerFacts:
        """The facts from its agent, or the few from a shell without one."""
        greeting = await self._greeting()
        facts = PeerFacts(
            at=time.time(),
            os=greeting.os,
            arch=greeting.arch,
            libc=greeting.libc,
            relay_path=greeting.newest,
        )
        engines: tuple[Engine, ...] = ()
        try:
            agent = await self.agent_at(facts.relay_path) if facts.relay_path else None
        except PeerUnreachable:
            raise
        except MachineError as error:
            facts, agent = replace(facts, problems=(error.what,)), None
        if agent is None:
            await self.end_agent()
        else:
            told, engines = await self._prober.look(
                agent, self.facts, light=self._light
            )
            facts = replace(told, relay_path=facts.relay_path)
        self.facts, self._engines = facts, engines
        return facts

    async def _greeting(self) -> Greeting:
        # The connection begins with one; an agent saves a shell.
        if self._greeted is not self.connection.greeting:
            self._greeted = self.connection.greeting
            return self._greeted
        agent = AgentShell(self._agent, self.connection)
        return await greet(agent if self._relay else self.connection)

    async def _judged(self, facts: PeerFacts) -> tuple[PeerState, str]:
        try:
            ours = (await self._inventory.engine()).info.rpc_protocol
        except DllmError:
            ours = ""
        return state_of(facts, ours, self._remedy)

    # --- long work ------------------------------------------------------------------

    async def provision(self, mode: ProvisionMode) -> str:
        """Install engine and helper; what may surprise about how, in one sentence."""
        await self._reach()
        engine = await self._inventory.engine()
        head = await self._inventory.agent.machine()
        done = await self._at_work(
            provision(
                self,
                head=head,
                engine=engine.info,
                helper=relay_binary(),
                paths=self._paths,
                report=self._report,
                mode=mode,
            )
        )
        # What was found before is out of date: "no engine" would be wrong.
        self._become(PeerState.PROBING, note="")
        await self._look_anew()
        return done.note

    async def deliver(
        self,
        wanted: Sequence[Wanted],
        ways: Sequence[Way],
        renew: Callable[[], Awaitable[None]] | None,
    ) -> Delivered:
        await self._reach()
        delivered = await self._at_work(
            deliver_model(
                self.connection, wanted, ways, report=self._report, renew=renew
            )
        )
        await self._look_anew()
        return delivered

    async def clean(self) -> int:
        await self._reach()
        agent = self.agent if self.facts.relay_version else None
        freed = await self._at_work(clean(self.connection, agent))
        await self._look_anew()
        return freed

    async def cancel_work(self) -> None:
        await end_tasks(self._work)

    async def _at_work(self, work: Coroutine[Any, Any, T]) -> T:
        if self._work is not None and not self._work.done():
            work.close()
            doing = self.peer.work.title if self.peer.work else "something else"
            raise ControllerError(
                f"{self.peer.name} is busy: {doing}", "Wait for it, or cancel it."
            )
        before = self.peer.state
        task: asyncio.Task[T] = asyncio.create_task(work)
        self._work = task
        try:
            return await task
        except asyncio.CancelledError:
            raise ControllerError(f"The work at {self.peer.name} was ended") from None
        finally:
            state = before if self.peer.state is PeerState.PROVISIONING else None
            self._become(state or self.peer.state, work=None)

    def _report(self, work: PeerWork) -> None:
        self._become(PeerState.PROVISIONING, work=work)

    # --- showing it -------------------------------------------------------------------

    def _become(self, state: PeerState, **changes: Any) -> None:
        since = self.peer.since if state is self.peer.state else time.time()
        asking = state is PeerState.ASKING
        kept = {"question": self.peer.question if asking else None}
        self._show(state=state, **{"since": since, **kept, **changes})

    def _show(self, **changes: Any) -> None:
        peer = replace(self.peer, **changes)
        if peer != self.peer:
            self.peer = peer
            self._changed()
            self._notify_waiters()

    def _notify_waiters(self) -> None:
        event, self._state_changed = self._state_changed, asyncio.Event()
        event.set()

    # --- the machine, for the cluster ------------------------------------------------

    async def agent_at(self, helper: str) -> AgentSession:
        if helper != self._relay:
            await self.end_agent()
            self._relay = helper
        try:
            await self._agent.connect()
            self._sockets = await self._socket_folder(self._agent.run_dir)
        except PeerUnreachable:
            raise
        except MachineError as error:
            if not self.connection.connected:
                raise self._gone() from error
            await self.end_agent()
            raise
        return self._agent

    async def _open_agent(self) -> HeldSession:
        if not self.connection.connected:
            raise self._gone()
        return await self.connection.hold(_AGENT_LINE, self._relay, self._head_id)

    async def end_agent(self) -> None:
        self._relay = ""
        await self._agent.close()

    @property
    def agent(self) -> AgentSession:
        if not self.connection.connected:
            raise self._gone()
        self.relay_program()
        return self._agent

    def _gone(self) -> PeerUnreachable:
        why = self.connection.lost
        return PeerUnreachable(
            why.what if why else f"There is no connection to {self.name}",
            "What still runs there is stopped when it comes back; launch again then.",
        )

    async def engine(self, wanted: str | None, rpc_protocol: str = "") -> Engine:
        engines = [e for e in self._engines if wanted in (None, e.info.directory)]
        for engine in engines:
            if protocols_match(rpc_protocol, engine.info.rpc_protocol):
                return engine
        hint = f"Install the head's: dllm-tui peers setup {self.name}."
        if not engines:
            raise EngineError(f"{self.name} has no llama.cpp with RPC", hint)
        spoken = ", ".join(engine.info.rpc_protocol for engine in engines)
        raise EngineError(
            f"The engine of {self.name} speaks RPC {spoken}, the head's {rpc_protocol}",
            hint,
        )

    async def model_path(self, model: ModelInfo) -> str:
        if there := at_peer(model.path):
            peer, path = there
            if peer == self.name:
                return path
            raise ModelError(
                f"{path} is on {peer}, and {self.name} has no copy of it",
                f"Make {peer} the head (--head {peer}).",
            )
        part, agent = Path(model.path), self.agent
        wanted = await asyncio.to_thread(identity_of, part)
        for found in self.facts.models:
            same_size = found.size_bytes == model.size_bytes
            # Asked anew: it may have changed since it was found.
            if same_size and await agent.identity(found.path) == wanted:
                return found.path
        raise ModelError(
            f"{self.name} has no copy of {part.name}{self.searched}",
            f"Copy it there: dllm-tui models copy {part} {self.name}.",
        )

    @property
    def searched(self) -> str:
        return named_folders(self.facts.model_dirs)

    async def copies_of(self, model: ModelInfo) -> tuple[str, ...]:
        there = at_peer(model.path)
        if there and there[0] == self.name:
            return (there[1],)
        if model.sparse:
            return stand_ins(model.sparse, model.path, self.facts.models)
        name = PurePosixPath(there[1] if there else model.path).name
        some = [
            file.path
            for file in self.facts.models
            if has_layers_of(PurePosixPath(file.path).name, name)
        ]
        return (*await self._whole_copies(model, there), *some)

    async def _whole_copies(
        self, model: ModelInfo, there: tuple[str, str] | None
    ) -> tuple[str, ...]:
        wanted = "" if there else await asyncio.to_thread(identity_of, Path(model.path))
        found = [f for f in self.facts.models if f.size_bytes == model.size_bytes]
        same = tuple(f.path for f in found if wanted and f.identity == wanted)
        return same[:1] or called_alike(model, found)

    def relay_program(self) -> str:
        if not self._relay:
            raise MachineError(
                f"The helper program dllm-relay is not on {self.name}",
                f"Install it: dllm-tui peers setup {self.name}.",
            )
        return self._relay

    async def direct_address(self) -> DirectAddress:
        if self._data not in (None, AUTO):
            return place_of(self._data, "")
        told = await self.agent.machine()
        return place_of(AUTO, told.variables.get("SSH_CONNECTION", ""))

    def relay_stats(self, worker: str) -> str:
        return self._socket_there(f"{worker}.sock")

    async def _socket_folder(self, run_dir: str) -> str:
        too_long = len(run_dir.encode()) + _NUMBERED_BYTES > SOCKET_PATH_BYTES_MAX
        if run_dir and not too_long:
            return run_dir
        return (await self.connection.run(_OWN_FOLDER, self._head_id)).stdout

    def _socket_there(self, name: str) -> str:
        path = f"{self._sockets}/{name}"
        if len(path.encode()) <= SOCKET_PATH_BYTES_MAX:
            return path
        return f"{self._sockets}/{zlib.crc32(name.encode()):08x}.sock"

    # --- ways -------------------------------------------------------------------------

    async def stats_way(self, worker: str) -> Tunnel:
        near = self._paths.relay_socket(worker)
        return await self.connection.forward(self.relay_stats(worker), near)

    async def api_way(self, port: int) -> Tunnel:
        return await self.connection.forward(port)

    async def way_to(self, port: int, spec: TransportSpec) -> Tunnel:
        if spec.tcp:
            tunnel = await self.connection.forward(port)
            tunnel.note = ANY_USER.format(machine="this machine")
            return tunnel
        near = self._paths.worker_socket(spec.cluster, spec.worker)
        make_private(near.parent)
        return await self.connection.forward(port, near)

    async def way_from(self, way: LinkTransport, spec: TransportSpec) -> Tunnel:
        note = ""
        if not spec.tcp:
            try:
                return await self._socket_back(way, spec)
            except PeerUnreachable:
                raise
            except MachineError as error:
                log.warning("%s: %s", self.name, error)
                note = f"The sshd of {self.name} makes no Unix sockets: "
        tunnel = await self.connection.forward_back(way)
        tunnel.note = note + ANY_USER.format(machine=self.name)
        return tunnel

    async def _socket_back(self, way: LinkTransport, spec: TransportSpec) -> Tunnel:
        # Nothing may have been started there yet.
        self._sockets = self._sockets or await self._socket_folder("")
        await self.connection.run(_MAKE_FOLDER, self._sockets)
        far = self._socket_there(f"{spec.cluster}-{spec.worker}.way")
        return await self.connection.forward_back(way, far)
