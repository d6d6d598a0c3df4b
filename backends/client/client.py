"""The controller and its chats, as the console and the commands use them."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, urlencode

from backends.client.calls import ControllerConnection
from backends.client.http import ASKING
from backends.client.start import wait_gone
from backends.controller.event_log import EventFiles, EventLog
from backends.errors import ControllerError, DllmError, UsageError, did_you_mean
from backends.machine_names import LOCAL
from backends.paths import Paths, user_paths
from backends.state import (
    DEFAULT_CLUSTER,
    SILENCE_MAX_S,
    Alternative,
    Ask,
    Bottleneck,
    ChatBrief,
    ChatChange,
    ChatDelta,
    ChatFrame,
    ChatListing,
    ChatRequest,
    ChatState,
    ClusterSnapshot,
    ClusterSpeeds,
    DraftRequest,
    Drafts,
    EngineProgress,
    Event,
    EventKind,
    FoundWorkers,
    GivenCluster,
    KnownMachine,
    Lab,
    LogChunk,
    ModelCatalogue,
    ModelInfo,
    Pass,
    Peer,
    PeerAnswer,
    PeerInvitation,
    PeerPairing,
    PeerState,
    Plan,
    PlanMemory,
    Preview,
    PromptCount,
    ProvisionMode,
    QuestionRequest,
    UsageReport,
)
from backends.state.chats import chat_applied, chat_framed
from backends.state.delta import Frame, applied, framed
from backends.state.health import MachineHealth, MeasuredWay
from backends.state.models import (
    Delivered,
    Download,
    Hashing,
    RemoteModel,
    Removal,
    Seeding,
    WorkerCache,
)
from backends.state.races import (
    Race,
    RaceDelta,
    RaceRequest,
    race_applied,
    race_framed,
)
from backends.state.sweeps import Sweep, SweepRequest

if TYPE_CHECKING:
    from backends.client.flight_recorder import FlightRecorder


T = TypeVar("T")


class NoSuchChat(DllmError):
    pass


class ChatsClient:
    """Asks, keeps and tells conversations; answers go on when nobody looks.

    Every call raises ``DllmError`` if the controller refuses or is unreachable.
    """

    def __init__(
        self, connection: ControllerConnection, cluster: Callable[[], str]
    ) -> None:
        self._connection = connection
        self._cluster = cluster

    async def listing(self) -> ChatListing:
        return await self._connection.get("/v1/chats", ChatListing)

    async def get(self, chat: str) -> ChatState:
        return await self._connection.get(_path(chat), ChatState)

    def states(self, model: str, *, chat: str = "") -> AsyncGenerator[ChatState, None]:
        """The current conversation with a model, or one by its id, as it changes."""
        target = self._of("/v1/chats/events", model=model, id=chat)
        return self._connection.followed(target, ChatFrame, chat_applied, chat_framed)

    async def begin(self, model: str) -> ChatState:
        return await self._post(self._of("/v1/chats"), {"model": model})

    async def open(self, chat: str, model: str) -> ChatState:
        return await self._post(self._of(_path(chat, "open")), {"model": model})

    async def ask(
        self, chat: str, question: str | None, *, turns: int, again: int | None = None
    ) -> ChatState:
        """Ask in a conversation of so many turns; ``again`` the question of that index.

        None asks it in the same words. Returns once it is kept; the answer comes as
        states, whoever looks.
        """
        asked = QuestionRequest(question=question, turns=turns, again=again)
        return await self._post(self._of(_path(chat, "ask")), asked)

    async def stop(self, chat: str) -> ChatState:
        return await self._post(_path(chat, "stop"))

    async def count(
        self, chat: str, question: str, *, again: int | None = None
    ) -> PromptCount:
        draft = DraftRequest(question=question, again=again)
        target = self._of(_path(chat, "count"))
        return await self._connection.post(target, PromptCount, draft)

    async def change(self, chat: str, change: ChatChange) -> ChatState:
        return await self._post(_path(chat, "change"), change)

    async def delete(self, chat: str) -> ChatListing:
        return await self._connection.call("DELETE", _path(chat), ChatListing)

    async def restore(self, chat: str) -> ChatState:
        return await self._post(_path(chat, "restore"))

    async def _post(self, target: str, asked: object = None) -> ChatState:
        return await self._connection.post(target, ChatState, asked)

    def _of(self, path: str, **query: str) -> str:
        return f"{path}?{urlencode({'cluster': self._cluster(), **query})}"


def find_chat(listing: ChatListing, wanted: str, *, whole: bool = False) -> ChatBrief:
    """The chat of that id, else of that name, else that begins with these words.

    ``whole`` leaves the last out, where a name may be meant for a chat to come.

    Raises:
        NoSuchChat: there is none.
        UsageError: there are several.
    """
    text = " ".join(wanted.split()).lower()
    chats = listing.chats if text else ()
    found = (
        [chat for chat in chats if chat.id == wanted.strip()]
        or [chat for chat in chats if " ".join(chat.name.split()).lower() == text]
        or [chat for chat in chats if not whole and chat.title.lower().startswith(text)]
    )
    if len(found) == 1:
        return found[0]
    if found:
        ids = ", ".join(chat.id for chat in found)
        raise UsageError(f"Several chats are called {wanted!r}", f"Give an id: {ids}.")
    guess = did_you_mean(wanted, [chat.title for chat in listing.chats])
    raise NoSuchChat(
        f"There is no chat {wanted!r}", f"{guess}dllm-tui chats list shows them."
    )


def _path(chat: str, verb: str = "") -> str:
    return f"/v1/chats/{quote(chat, safe='')}" + (f"/{verb}" if verb else "")


SETTLE_S = 4.0
SETTLE_POLL_S = 0.1
SETTINGS_S = 5.0
"""Changed settings are waited for so long: none of them is worth more."""


class ControllerClient:
    """One cluster of one user's controller, which is started when it is needed."""

    def __init__(
        self,
        paths: Paths | None = None,
        *,
        cluster: str = DEFAULT_CLUSTER,
        silence_s: float = SILENCE_MAX_S,
        connection: ControllerConnection | None = None,
    ) -> None:
        self._paths = paths or user_paths()
        self._connection = there = connection or ControllerConnection(
            self._paths, silence_s=silence_s
        )
        self._get, self._post, self._stream = there.get, there.post, there.post_stream
        self.cluster = cluster
        self.chats = ChatsClient(self._connection, lambda: self.cluster)
        self.models = ModelsClient(self._connection)

    def use(self, cluster: str) -> None:
        """Talk about another cluster from here on; streams begun stay as they are."""
        self.cluster = cluster

    @property
    def seen(self) -> ClusterSnapshot | None:
        """The newest snapshot of the cluster's stream, while that is followed."""
        target = self._of("/v1/snapshots", holder="")
        _, last = self._connection.followed_now.get(target, (None, None))
        return last if isinstance(last, ClusterSnapshot) else None

    def record(self, recorder: FlightRecorder | None) -> None:
        self._connection.record(recorder)

    @property
    def started_controller(self) -> bool:
        return self._connection.started

    async def running(self) -> bool:
        return await self._connection.running()

    def left_processes(self) -> bool:
        """True if a new controller would find something: here, or by its journal."""
        run_dir = self._paths.run_dir
        here = run_dir.is_dir() and any(run_dir.iterdir())
        return here or self._remembered()

    def _remembered(self) -> bool:
        return any(map(_wants, self._paths.clusters_dir.glob("*.json")))

    async def start(self) -> None:
        await self._connection.start()

    async def snapshot(self) -> ClusterSnapshot:
        return await self._get(self._of("/v1/snapshot"), ClusterSnapshot)

    def snapshots(self, *, holder: str = "") -> AsyncGenerator[ClusterSnapshot, None]:
        """Snapshots as they change, at most four a second.

        Ends when the controller goes away; calling it again starts a controller.

        With a ``holder``, a word of our own, what that launched ends when we do.
        """
        target = self._of("/v1/snapshots", holder=holder)
        return self._connection.followed(target, Frame, applied, framed)

    async def propose(self, ask: Ask) -> Plan:
        """A plan for a model, balanced by memory if ``ask`` names no layers.

        Paths among the arguments for llama-server must be whole.
        """
        return await self._post(self._of("/v1/propose"), Plan, ask)

    async def prepare(self, what: Ask | Plan, *, explain: bool = False) -> Preview:
        """The effects of a launch, and the token for it; starts nothing."""
        asked = {"ask" if isinstance(what, Ask) else "plan": what, "explain": explain}
        return await self._post(self._of("/v1/prepare"), Preview, asked)

    async def imagine(
        self, given: GivenCluster, ask: Ask, *, explain: bool = False
    ) -> Preview:
        """The plan for machines that need not be there; it has no token."""
        asked = {"ask": ask, "cluster": given, "explain": explain}
        return await self._post(self._of("/v1/prepare"), Preview, asked)

    async def launch(
        self,
        plan: Plan | Preview,
        *,
        replaces: int | None = None,
        holder: str = "",
        listed: bool = True,
        lab: Lab | None = None,
    ) -> ClusterSnapshot:
        """Make the cluster run a plan; the answer has the goal's generation.

        Progress arrives as snapshots. A plan that was prepared is launched by the token
        of its preview. ``replaces`` is the generation this is meant to replace: 0 for
        none, None for whatever is there. With the ``holder`` of a stream of snapshots
        that is open it ends with that. ``listed`` keeps it among the user's last
        launches. The plan loads behind the ``lab``.
        """
        wanted = {"plan": plan} if isinstance(plan, Plan) else {"token": plan.token}
        asked = {
            **wanted,
            "replaces": replaces,
            "holder": holder,
            "listed": listed,
            "lab": lab,
        }
        return await self._post(self._of("/v1/launch"), ClusterSnapshot, asked)

    async def stop(self) -> ClusterSnapshot:
        return await self._post(self._of("/v1/stop"), ClusterSnapshot)

    async def drain(self, *, on: bool = True) -> ClusterSnapshot:
        """Let what runs at the API end and what comes wait, or go on."""
        return await self._post(self._of("/v1/drain"), ClusterSnapshot, {"on": on})

    async def measure_drafts(self) -> ClusterSnapshot:
        """Have ``--draft auto`` compare all drafts anew at the next idle moment."""
        return await self._post(self._of("/v1/drafts/measure"), ClusterSnapshot)

    async def shutdown(self, *, only_if_idle: bool = False) -> None:
        """End the controller and all it runs; returns when that is done.

        With ``only_if_idle`` it stays for a cluster, for work at a peer, and for
        whoever else watches; its end is not waited for.
        What cannot be reached keeps the controller: it ends that when it can.
        """
        if not await self.running():
            return
        target = f"/v1/shutdown?only_if_idle={int(only_if_idle)}"
        try:
            last = await self._post(target, ClusterSnapshot)
        except ControllerError:
            # It may have ended by itself in the meantime, which is what is wanted.
            if await self.running() or self.left_processes():
                raise
            return
        # Work at other machines keeps it, too.
        works = any(peer.work is not None for peer in last.peers)
        if not only_if_idle and not works and not self._remembered():
            await wait_gone(self._paths, last.controller_pid)

    async def inspect(self, path: str) -> ModelInfo:
        return await self._get(f"/v1/inspect?{urlencode({'path': path})}", ModelInfo)

    async def catalogue(self, *, refresh: bool = False) -> ModelCatalogue:
        return await self._get(f"/v1/models?refresh={int(refresh)}", ModelCatalogue)

    def get_model(self, source: str) -> AsyncGenerator[Download, None]:
        from backends.models.download import hub_settings

        asked = {"source": source, "settings": hub_settings()}
        return self._stream("/v1/models/get", Download, asked)

    async def removal(self, path: str, *, machine: str = LOCAL) -> Removal:
        asked = {"path": path, "machine": machine}
        return await self._post("/v1/models/removal", Removal, asked)

    async def remove_model(self, path: str, *, machine: str = LOCAL) -> Removal:
        asked = {"path": path, "machine": machine}
        return await self._post("/v1/models/remove", Removal, asked)

    def get_engine(self) -> AsyncGenerator[EngineProgress, None]:
        return self._stream("/v1/engine/get", EngineProgress)

    def remote_models(
        self, source: str, peers: Sequence[str] | None = None
    ) -> AsyncGenerator[RemoteModel, None]:
        """The models of a repository or URL: first their sizes, then what would fit."""
        from backends.models.download import hub_settings

        asked = {"source": source, "peers": peers, "settings": hub_settings()}
        return self._stream("/v1/models/remote", RemoteModel, asked)

    async def names_after(self, path: str) -> tuple[str, ...]:
        """Completions of the last part of a whole path: folders and models there."""
        target = f"/v1/paths?{urlencode({'path': path})}"
        return await self._get(target, tuple[str, ...])

    async def read_log(
        self, name: str, offset: int, limit_bytes: int = 65536
    ) -> LogChunk:
        """Part of a process log; a negative offset counts from the end."""
        log = f"/v1/logs/{quote(name, safe='')}"
        target = self._of(log, offset=offset, limit=limit_bytes)
        return await self._get(target, LogChunk)

    async def usage(self) -> UsageReport:
        """Return the usage of machines and processes, with the last minutes."""
        return await self._get(self._of("/v1/usage"), UsageReport)

    def usages(self) -> AsyncGenerator[UsageReport, None]:
        """The same, again with every second."""
        target = self._of("/v1/usage/stream")
        after = UsageReport.after
        return self._connection.followed(target, UsageReport, after, _as_told)

    async def restart_process(self, name: str, machine: str) -> ClusterSnapshot:
        """Have the controller start a process again, and what depends on it."""
        asked = {"name": name, "machine": machine}
        target = self._of("/v1/processes/restart")
        return await self._post(target, ClusterSnapshot, asked)

    async def kill_process(
        self, name: str, machine: str, pid: int | None = None
    ) -> ClusterSnapshot:
        """End a process at once; the controller starts anew what it needs of it.

        With a ``pid`` another process of that name is refused.
        """
        asked = {"name": name, "machine": machine, "pid": pid}
        target = self._of("/v1/processes/kill")
        return await self._post(target, ClusterSnapshot, asked)

    async def set_lab(self, worker: str | None, lab: Lab | None) -> ClusterSnapshot:
        """Put a worse network on one link (or all), or take it away."""
        asked = {"worker": worker, "lab": lab}
        return await self._post(self._of("/v1/lab"), ClusterSnapshot, asked)

    def race(self, asked: RaceRequest) -> AsyncGenerator[Race, None]:
        """Race two plans; closing it goes back to what served before."""

        def after(delta: RaceDelta, race: Race | None) -> Race:
            return race_applied(delta, race or Race.of(asked))

        target = self._of("/v1/race")
        return self._connection.followed(target, RaceDelta, after, race_framed, asked)

    def sweep(self, asked: SweepRequest) -> AsyncGenerator[Sweep, None]:
        """Slow links step by step and measure; closing it puts the lab back."""
        target = self._of("/v1/sweep")
        return self._connection.followed(target, Sweep, _as_told, _as_told, asked)

    async def events(self, *, after: int = 0) -> tuple[Event, ...]:
        """The events of the last days, beyond an event's number, oldest first."""
        if await self.running():
            return await self._get(f"/v1/events?after={after}", tuple[Event, ...])
        kept = EventFiles(self._paths.events_dir).read()
        return tuple(event for event in kept if event.number > after)

    async def tell_built(self, what: str) -> None:
        """Add to the event log that an engine was built; starts no controller."""
        if await self.running():
            await self._post("/v1/events", tuple[Event, ...], {"text": what})
            return
        # Imported here because only a build outside of any controller needs it.
        from backends.controller.http_server import actor

        log = EventLog(EventFiles(self._paths.events_dir))
        by = actor(ASKING.get().program, os.getpid())
        log.tell(EventKind.ENGINE, what, by=by)

    async def settings_taken(self) -> None:
        """Wait until a running controller goes by what ``config.toml`` says now.

        Starts none: the next one reads it anyway.
        """
        try:
            async with asyncio.timeout(SETTINGS_S):
                if await self.running():
                    await self._post("/v1/settings", dict[str, str])
        except TimeoutError as error:
            raise ControllerError(
                f"It did not answer within {SETTINGS_S:g} s",
                "It follows by itself as soon as it can.",
            ) from error

    async def memory(self, plan: Plan) -> PlanMemory:
        """The memory of a plan on each device, by the engine if it can be asked."""
        return await self._post("/v1/memory", PlanMemory, plan)

    async def speeds(self, plan: Plan) -> ClusterSpeeds:
        """The speeds for ``split.cost``, of a plan and of any split of its devices."""
        return await self._post(self._of("/v1/speeds"), ClusterSpeeds, plan)

    async def best(
        self, plan: Plan, pins: Sequence[str] = ()
    ) -> tuple[Alternative, ...]:
        """A plan as it is, the best ones of its devices for all aims, and others."""
        asked = {"plan": plan, "pins": pins}
        return await self._post(self._of("/v1/best"), tuple[Alternative, ...], asked)

    async def why(self) -> Bottleneck:
        """The parts of a token's time, and the change predicted to gain most."""
        return await self._get(self._of("/v1/why"), Bottleneck)

    async def passes(self) -> dict[str, tuple[Pass, ...]]:
        return await self._get(self._of("/v1/passes"), dict[str, tuple[Pass, ...]])

    async def peers(self) -> tuple[Peer, ...]:
        return await self._get("/v1/peers", tuple[Peer, ...])

    async def settled_peers(self) -> tuple[Peer, ...]:
        """The same, once none is being reached any more (or after 4 s)."""
        peers = await self.peers()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                while any(peer.state is PeerState.PROBING for peer in peers):
                    await asyncio.sleep(SETTLE_POLL_S)
                    peers = await self.peers()
        return peers

    async def peers_to_pick(self) -> tuple[KnownMachine, ...]:
        """Machines of the ssh config, and those that other consoles have told of."""
        return await self._get("/v1/peers-to-pick", tuple[KnownMachine, ...])

    async def add_peer(
        self,
        name: str,
        *,
        ssh: str | None = None,
        bare: str | None = None,
        token: str | None = None,
        via: str | None = None,
        trusted: Sequence[str] = (),
    ) -> Peer:
        """Add a machine by what one gives to ``ssh``, a bare ``host:port``, or a token.

        The worker of a token may name itself: then ``name`` is empty. It is reached
        ``via`` an SSH host where no other way goes. Host keys of ``trusted``
        fingerprints need no answer.

        Returns at once; a question or a failure comes as snapshots.
        """
        way = {"ssh": ssh, "bare": bare, "token": token, "via": via}
        asked = {"name": name, **way, "trusted": trusted}
        return await self._post("/v1/peers", Peer, asked)

    async def invite_peer(
        self, name: str, *, life_s: float, addresses: Sequence[str] = ()
    ) -> PeerInvitation:
        """Make a token for a machine that is to dial this one."""
        asked = {"name": name, "life_s": life_s, "addresses": addresses}
        return await self._post("/v1/invitations", PeerInvitation, asked)

    async def joined_peer(self, invitation: str) -> Peer | None:
        """The peer that has used an invitation; None yet, an error if it is too late.

        ``invitation``: its ``id``.
        """
        found = await self._get(f"/v1/invitations/{invitation}", tuple[Peer, ...])
        return found[0] if found else None

    async def found_workers(self) -> FoundWorkers:
        """The workers that announce themselves on this network, as far as is known."""
        return await self._get("/v1/found", FoundWorkers)

    async def settled_workers(self) -> FoundWorkers:
        """The same, once those that are there have had time to answer."""
        while True:
            found = await self.found_workers()
            if found.settled:
                return found
            await asyncio.sleep(SETTLE_POLL_S)

    async def begin_pairing(self, name: str, place: str) -> PeerPairing:
        """Agree on digits with the worker at a place; without where there is none.

        The machine may name itself: then ``name`` is empty.
        """
        return await self._post(
            "/v1/pairings", PeerPairing, {"name": name, "place": place}
        )

    async def decide_pairing(self, digits: str, *, agrees: bool) -> None:
        """Tell whether both screens show the same digits."""
        path = f"/v1/pairings/{digits}"
        await self._post(path, tuple[Peer, ...], {"agrees": agrees})

    async def pairing_outcome(self, digits: str) -> Peer:
        """The new peer, once both sides have agreed; an error tells who did not."""
        return await self._get(f"/v1/pairings/{digits}", Peer)

    async def remove_peer(self, name: str) -> None:
        await self._connection.call("DELETE", _peer(name), tuple[Peer, ...])

    async def rename_peer(self, name: str, new: str) -> Peer:
        return await self._post(_peer(name, "rename"), Peer, {"name": new})

    async def probe_peer(self, name: str) -> Peer:
        return await self._post(_peer(name, "probe"), Peer)

    async def answer_peer(self, name: str, answer: PeerAnswer) -> Peer:
        return await self._post(_peer(name, "answer"), Peer, answer)

    async def provision_peer(
        self, name: str, mode: ProvisionMode = ProvisionMode.AUTO
    ) -> Peer:
        return await self._post(_peer(name, "provision"), Peer, {"mode": mode})

    async def clean_peer(self, name: str) -> int:
        """Remove what was installed there; the bytes freed."""
        answer = await self._post(_peer(name, "clean"), dict[str, int])
        return answer["freed_bytes"]

    async def deliver(self, name: str, source: str, layers: str = "") -> Delivered:
        from backends.models.download import hub_settings

        asked = {"source": source, "layers": layers, "settings": hub_settings()}
        return await self._post(_peer(name, "deliver"), Delivered, asked)

    async def cancel_work(self, name: str) -> Peer:
        """End what goes on at a machine; the next time it resumes."""
        return await self._post(_peer(name, "cancel"), Peer)

    async def health(self) -> tuple[MachineHealth, ...]:
        return await self._post("/v1/doctor/health", tuple[MachineHealth, ...])

    async def ways(self) -> tuple[MeasuredWay, ...]:
        return await self._post("/v1/doctor/ways", tuple[MeasuredWay, ...])

    def chat(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        return self._stream(self._of("/v1/chat"), ChatDelta, request)

    def _of(self, path: str, **query: object) -> str:
        return f"{path}?{urlencode({'cluster': self.cluster, **query})}"


def _wants(journal: Path) -> bool:
    # Imported here because no console needs it before its end.
    from backends.controller.journal import Journal

    try:
        record = Journal(journal).load()
    except ControllerError:
        return True
    return record.goal.plan is not None or bool(record.leftovers)


def _peer(name: str, verb: str = "") -> str:
    return f"/v1/peers/{quote(name, safe='')}" + (f"/{verb}" if verb else "")


class ModelsClient:
    """Asks machines about models; closing the stream of long work ends the work.

    Every call raises ``DllmError`` if the controller refuses or is unreachable.
    """

    def __init__(self, there: ControllerConnection) -> None:
        self._get, self._post, self._stream = there.get, there.post, there.post_stream

    def hashing(
        self, path: str, *, machine: str = LOCAL
    ) -> AsyncGenerator[Hashing, None]:
        asked = {"path": path, "machine": machine}
        return self._stream("/v1/models/hash", Hashing, asked)

    def seeding(
        self, path: str, *, machine: str, directory: str = "", dry: bool = False
    ) -> AsyncGenerator[Seeding, None]:
        """Fill the cache of a stock worker there from a model there."""
        asked = {"path": path, "machine": machine, "directory": directory, "dry": dry}
        return self._stream("/v1/models/seed", Seeding, asked)

    async def drafts(self, path: str) -> Drafts:
        return await self._get(f"/v1/drafts?path={quote(path, safe='')}", Drafts)

    async def cache(self, *, machine: str, directory: str = "") -> WorkerCache:
        asked = {"machine": machine, "directory": directory}
        return await self._post("/v1/models/cache", WorkerCache, asked)

    async def leftovers(self, *, machine: str, older_than_s: float) -> Removal:
        """The files that interrupted downloads left there, and those nobody uses."""
        asked = {"machine": machine, "older_than_s": older_than_s}
        return await self._post("/v1/models/leftovers", Removal, asked)

    async def clean(self, found: Removal, *, older_than_s: float) -> Removal:
        """Delete leftovers that were found; what was deleted."""
        asked = {
            "machine": found.machine,
            "older_than_s": older_than_s,
            "paths": [file.path for file in found.files],
        }
        return await self._post("/v1/models/clean", Removal, asked)

    async def prune(
        self, names: Sequence[str], *, machine: str, directory: str = ""
    ) -> int:
        asked = {"machine": machine, "directory": directory, "names": names}
        answer = await self._post("/v1/models/prune", dict[str, int], asked)
        return answer["freed_bytes"]


def _as_told(told: T, _: object) -> T:
    return told
