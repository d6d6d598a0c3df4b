"""A cluster that does what a test tells it: the console's seam, without processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from backends.config import Config
from backends.errors import DllmError, EngineError, ModelError
from backends.planning.proposal import propose
from backends.split.layout import with_counts
from backends.state import (
    DEFAULT_CLUSTER,
    Alternative,
    Ask,
    Bottleneck,
    ChatDelta,
    ChatRequest,
    ChatTimings,
    ClusterSnapshot,
    ClusterSpeeds,
    ClusterState,
    EngineProgress,
    EngineStage,
    Event,
    Fit,
    FoundWorkers,
    KnownMachine,
    Lab,
    LayerRange,
    LogChunk,
    MemorySource,
    ModelCatalogue,
    ModelFile,
    ModelInfo,
    Pass,
    Peer,
    PeerAnswer,
    PeerInvitation,
    PeerPairing,
    PeerState,
    Plan,
    PlanMemory,
    ProvisionMode,
    Transport,
    UsageReport,
)
from backends.state.models import (
    Delivered,
    Download,
    RemoteFile,
    RemoteModel,
    Removal,
    RemovedFile,
)
from backends.state.races import (
    Race,
    RaceDelta,
    RaceFigures,
    RacePiece,
    RaceRequest,
    RaceStage,
)
from backends.state.sweeps import Sweep, SweepPoint, SweepRequest
from tests.tui import scenes
from tests.tui.scripted_chats import ScriptedChats

ANSWER = (
    "Air scatters short wavelengths more strongly than long ones, so blue light "
    "reaches us from every part of the sky."
)
QUANTS = (
    RemoteModel(
        source="o/n:Q4_K_M",
        quant="Q4_K_M",
        size_bytes=4 << 30,
        files=(RemoteFile(name="m-Q4_K_M.gguf", size_bytes=4 << 30),),
        fit=Fit(
            ctx_size=32768,
            n_layer=32,
            layers=(LayerRange("local/CPU", 0, 20), LayerRange("mini/MTL0", 21, 32)),
            source=MemorySource.ENGINE,
            tok_per_s=20.6,
            low=18.9,
            high=22.4,
        ),
    ),
    RemoteModel(
        source="o/n:BF16",
        quant="BF16",
        size_bytes=60 << 30,
        files=(RemoteFile(name="m-BF16.gguf", size_bytes=60 << 30),),
        fit=Fit(why="all devices have 16.0 GiB"),
    ),
)
LOG = "".join(
    f"0.{n:02d}.000.000 I load_tensors: layer {n:3d} assigned to device RPC{n // 7}\n"
    for n in range(13)
)


class ScriptedCluster:
    """Implements ``tui.api.services.Cluster``; every call is kept in ``calls``."""

    def __init__(
        self,
        first: ClusterSnapshot | None = None,
        *,
        plans: dict[str, Plan] | None = None,
        models: dict[str, ModelInfo] | None = None,
        chats_folder: Path | None = None,
    ) -> None:
        self.now = first
        self.calls: list[tuple[str, Any]] = []
        self.plans = plans or {
            p.model: p for p in (scenes.DEMO_PLAN, scenes.HOMELAB_PLAN)
        }
        self.models = models or {m.path: m for m in (scenes.DEMO, scenes.GLM)}
        self.errors: dict[str, Exception] = {}
        """Raised by the call of that name."""
        self.answer: list[ChatDelta] = [
            *(ChatDelta(text=f"{word} ") for word in ANSWER.split()),
            ChatDelta(
                done=True,
                finish_reason="stop",
                timings=ChatTimings(
                    prompt_tokens=24,
                    prompt_ms=880,
                    tokens=21,
                    tok_per_s=21.3,
                    first_token_s=0.88,
                ),
            ),
        ]
        self.logs = {"llama-server": LOG, "worker1": LOG[:200], "worker2": LOG[:200]}
        self.gate = asyncio.Event()
        """Cleared, an answer waits before each piece but the first ``pieces_given``."""
        self.pieces_given = 0
        self.gate.set()
        self.downloads = asyncio.Event()
        """Cleared, a download waits after its first piece."""
        self.downloads.set()
        self.found = FoundWorkers()
        self.told: tuple[KnownMachine, ...] = ()
        """On this network."""
        self.pairing = PeerPairing()
        self.joined: Peer | None = None
        self.paired = asyncio.Event()
        """Set once the owner of a worker has compared digits."""
        self.provisioned_note = ""
        """What a peer's installation ends with."""
        self.quants = QUANTS
        self.story: list[Event] = []
        """What happened."""
        self.memories: Callable[[Plan], PlanMemory] | None = None
        """The engine's answers about memory."""
        self.pace: Callable[[Plan], ClusterSpeeds] | None = None
        """The speeds of a plan's devices and links."""
        self.searching = asyncio.Event()
        """Cleared, a search for the best plans waits."""
        self.searching.set()
        self.bottleneck: Bottleneck | None = None
        self.bests: Callable[[Plan], tuple[Alternative, ...]] = scenes.bests
        """A plan as it is, and the best ones."""
        self.reports: list[UsageReport] = []
        """What machines and processes use, one after the other; then no more comes."""
        self.cluster = first.cluster if first else DEFAULT_CLUSTER
        self.chats = ScriptedChats(self, self._answered, self._call, chats_folder)
        self.streams = 0
        """How often ``snapshots`` was called."""
        self._queues: list[asyncio.Queue[ClusterSnapshot | DllmError | None]] = []

    # --- what tests do -----------------------------------------------------------

    def push(self, snapshot: ClusterSnapshot) -> None:
        self.now = snapshot
        for queue in self._queues:
            queue.put_nowait(snapshot)

    def lose(self, error: DllmError | None = None) -> None:
        for queue in self._queues:
            queue.put_nowait(error)

    def called(self, name: str) -> list[Any]:
        return [argument for call, argument in self.calls if call == name]

    def use(self, cluster: str) -> None:
        self._call("use", cluster)
        self.cluster = cluster

    # --- the seam ------------------------------------------------------------------

    async def snapshots(self) -> AsyncGenerator[ClusterSnapshot, None]:
        """The present one, then whatever is pushed."""
        self.streams += 1
        self._fail("snapshots")
        queue: asyncio.Queue[ClusterSnapshot | DllmError | None] = asyncio.Queue()
        self._queues.append(queue)
        try:
            if self.now is not None:
                yield self.now
            while (snapshot := await queue.get()) is not None:
                if isinstance(snapshot, DllmError):
                    raise snapshot
                yield snapshot
        finally:
            self._queues.remove(queue)

    async def usages(self) -> AsyncGenerator[UsageReport, None]:
        self._call("usages", None)
        for report in self.reports:
            yield report
        await asyncio.Event().wait()

    async def restart_process(self, name: str, machine: str) -> ClusterSnapshot:
        self._call("restart_process", (name, machine))
        assert self.now is not None
        return self.now

    async def kill_process(
        self, name: str, machine: str, pid: int | None = None
    ) -> ClusterSnapshot:
        self._call("kill_process", (name, machine, pid))
        assert self.now is not None
        return self.now

    async def propose(self, ask: Ask) -> Plan:
        """The plan kept for that model."""
        self._call("propose", ask.model)
        line_up = (ask.workers, ask.peers, ask.head)
        if line_up != (None, None, None):
            self._call("propose_on", line_up)
            return self._proposed(ask)
        plan = self.plans[ask.model]
        if ask.counts is not None:
            split = with_counts(plan.split, ask.counts)
            plan = msgspec.structs.replace(plan, split=split)
        return plan

    def _proposed(self, request: Ask) -> Plan:
        machines = self.now.peers if self.now else ()
        model = self.models[request.model]
        return propose(request, model, Config(), machines, 8)

    # --- peers -----------------------------------------------------------------------

    def _peer(self, name: str) -> Peer:
        for peer in self.now.peers if self.now else ():
            if peer.name == name:
                return peer
        return Peer(name=name, state=PeerState.PROBING, transport=Transport.SSH)

    async def settings_taken(self) -> None:
        self._call("settings_taken", None)

    async def peers_to_pick(self) -> tuple[KnownMachine, ...]:
        self._call("peers_to_pick", None)
        aliases = (KnownMachine(name=n, address=n) for n in ("studio", "mini", "nuc"))
        return (*self.told, *aliases)

    async def add_peer(
        self,
        name: str,
        *,
        ssh: str | None = None,
        bare: str | None = None,
        token: str | None = None,
        trusted: Sequence[str] = (),
    ) -> Peer:
        self._call("add_peer", (name, token or ssh, bare, *trusted))
        return self._peer(name or "lent")

    async def invite_peer(self, name: str, *, life_s: float) -> PeerInvitation:
        self._call("invite_peer", (name, life_s))
        return PeerInvitation(
            id="1",
            token="dllm1-" + 66 * "aB3_",
            expires_at=int(scenes.NOW + life_s),
            addresses=("10.0.0.7",),
            port=50070,
        )

    async def joined_peer(self, invitation: str) -> Peer | None:
        self._call("joined_peer", invitation)
        return self.joined

    async def found_workers(self) -> FoundWorkers:
        return self.found

    async def begin_pairing(self, name: str, place: str) -> PeerPairing:
        self._call("begin_pairing", (name, place))
        return self.pairing

    async def decide_pairing(self, digits: str, *, agrees: bool) -> None:
        self._call("decide_pairing", (digits, agrees))

    async def pairing_outcome(self, digits: str) -> Peer:
        await self.paired.wait()
        self._call("pairing_outcome", digits)
        return self._peer("nuc")

    async def remove_peer(self, name: str) -> None:
        self._call("remove_peer", name)

    async def rename_peer(self, name: str, new: str) -> Peer:
        self._call("rename_peer", (name, new))
        return self._peer(name)

    async def probe_peer(self, name: str) -> Peer:
        self._call("probe_peer", name)
        return self._peer(name)

    async def answer_peer(self, name: str, answer: PeerAnswer) -> Peer:
        self._call("answer_peer", (name, answer))
        return self._peer(name)

    async def provision_peer(
        self, name: str, mode: ProvisionMode = ProvisionMode.AUTO
    ) -> Peer:
        self._call("provision_peer", (name, mode))
        return msgspec.structs.replace(self._peer(name), note=self.provisioned_note)

    async def clean_peer(self, name: str) -> int:
        self._call("clean_peer", name)
        return 17 << 20

    async def deliver(self, name: str, source: str) -> Delivered:
        self._call("deliver", (name, source))
        return Delivered(peer=name, path=f"/home/ada/.models/{Path(source).name}")

    async def cancel_work(self, name: str) -> Peer:
        self._call("cancel_work", name)
        return self._peer(name)

    async def launch(
        self, plan: Plan, *, replaces: int | None = None
    ) -> ClusterSnapshot:
        """Answer that it begins; the test pushes what follows."""
        self._call("launch", plan)
        self._call("replaces", replaces)
        now = self.now or ClusterSnapshot()
        return msgspec.structs.replace(
            now, plan=plan, state=ClusterState.STARTING, measured=None, links=()
        )

    async def stop(self) -> ClusterSnapshot:
        self._call("stop", None)
        return self.now or ClusterSnapshot()

    async def shutdown(self, *, only_if_idle: bool = False) -> None:
        self._call("shutdown", only_if_idle)

    async def inspect(self, path: str) -> ModelInfo:
        self._call("inspect", path)
        if path not in self.models:
            raise ModelError(f"{path} is not a GGUF file", "Pick another file.")
        return self.models[path]

    async def catalogue(self, *, refresh: bool = False) -> ModelCatalogue:
        """The models kept, and one that cannot be used."""
        self._call("catalogue", refresh)
        files = [
            ModelFile(
                path=m.path,
                name=m.name,
                size_bytes=m.size_bytes,
                source="models",
                arch=m.arch,
                file_type=m.file_type,
                n_layer=m.n_layer,
                n_ctx_train=m.n_ctx_train,
            )
            for m in self.models.values()
        ]
        broken = ModelFile(
            path="/models/broken.gguf",
            name="broken",
            size_bytes=12,
            source="models",
            problem="not a GGUF file",
        )
        return ModelCatalogue(
            models=(*files, broken), folders=("/models",), scanned_at=scenes.NOW
        )

    async def get_model(self, source: str) -> AsyncGenerator[Download, None]:
        self._call("get_model", source)
        size_bytes = 94 << 20
        for part in range(4):
            done_bytes = size_bytes * part // 4
            yield Download(file="m.gguf", done_bytes=done_bytes, size_bytes=size_bytes)
            await self.downloads.wait()
        yield Download(file="m", path="/models/m.gguf", verified_by="pinned SHA-256")

    async def removal(self, path: str, *, machine: str) -> Removal:
        self._call("removal", (machine, path))
        file = RemovedFile(path=path, size_bytes=17 << 30)
        return Removal(machine=machine, files=(file,))

    async def remove_model(self, path: str, *, machine: str) -> Removal:
        self._call("remove_model", (machine, path))
        return await self.removal(path, machine=machine)

    async def get_engine(self) -> AsyncGenerator[EngineProgress, None]:
        self._call("get_engine", None)
        note = "The release does not run here: building llama.cpp from source instead."
        size_bytes = 17 << 20
        for done_bytes in (0, size_bytes // 2):
            yield EngineProgress(
                stage=EngineStage.DOWNLOAD,
                fraction=done_bytes / size_bytes,
                done_bytes=done_bytes,
                size_bytes=size_bytes,
            )
        await self.downloads.wait()
        yield EngineProgress(stage=EngineStage.WAIT, text=note)
        yield EngineProgress(stage=EngineStage.DONE, engine=scenes.ENGINE)

    async def remote_models(
        self, source: str, peers: Sequence[str] | None = None
    ) -> AsyncGenerator[RemoteModel, None]:
        self._call("remote_models", source)
        for one in self.quants:
            yield msgspec.structs.replace(one, fit=None)
        for one in self.quants:
            await self.downloads.wait()
            yield one

    async def names_after(self, path: str) -> tuple[str, ...]:
        self._call("names_after", path)
        folder, _, part = path.rpartition("/")
        paths = [m for m in self.models if m.startswith(f"{folder}/")]
        rests = {m.removeprefix(f"{folder}/").partition("/") for m in paths}
        names = sorted(f"{name}{slash}" for name, slash, _ in rests)
        return tuple(name for name in names if name.startswith(part))

    async def read_log(
        self, name: str, offset: int, limit_bytes: int = 65536
    ) -> LogChunk:
        """Part of the log kept under that name."""
        raw = self.logs.get(name, "").encode()
        start = max(len(raw) + offset, 0) if offset < 0 else offset
        part = raw[start : start + limit_bytes]
        return LogChunk(
            name=name,
            text=part.decode(errors="replace"),
            offset=start,
            next_offset=start + len(part),
        )

    async def race(self, asked: RaceRequest) -> AsyncGenerator[Race, None]:
        """Each side says a word, waits at the gate, and has its figures."""
        self._call("race", asked)
        now = Race.of(asked)
        try:
            for side, contestant in enumerate(asked.contestants):
                stages = (
                    RaceDelta(side=side, plan=contestant.plan),
                    RaceDelta(
                        side=side,
                        stage=RaceStage.ANSWERING,
                        pieces=(RacePiece(0.1, "Air"), RacePiece(0.2, " scatters.")),
                    ),
                )
                for delta in stages:
                    now = now.after(delta)
                    yield now
                await self.gate.wait()
                figures = RaceFigures(
                    tok_per_s=10.0 + 2 * side,
                    tokens=2,
                    first_token_s=0.1,
                    trips_per_token=2.0,
                )
                ends = RaceDelta(side=side, stage=RaceStage.DONE, figures=figures)
                now = now.after(ends)
                yield now
        finally:
            self.calls.append(("race closed", asked))

    async def sweep(self, asked: SweepRequest) -> AsyncGenerator[Sweep, None]:
        """From the second step on it is half as fast, and waits at the gate."""
        self._call("sweep", asked)
        points = [
            SweepPoint(
                latency_ms=ms,
                predicted_tok_per_s=400 / (10 + ms),
                low=300 / (10 + ms),
                high=500 / (10 + ms),
            )
            for ms in asked.latencies_ms
        ]
        try:
            for at, point in enumerate(points):
                yield Sweep(
                    model="m", workers=("mini",), points=(*points,), measuring=at
                )
                if at:
                    await self.gate.wait()
                tok_per_s = point.predicted_tok_per_s / (2 if at else 1)
                points[at] = msgspec.structs.replace(point, tok_per_s=tok_per_s)
            yield Sweep(model="m", workers=("mini",), points=(*points,))
        finally:
            self.calls.append(("sweep closed", asked))

    async def set_lab(self, worker: str | None, lab: Lab | None) -> ClusterSnapshot:
        """Remember it, and push what a relay would report."""
        self._call("set_lab", (worker, lab))
        assert self.now is not None
        links = tuple(
            msgspec.structs.replace(link, lab=lab)
            if worker in {None, link.worker}
            else link
            for link in self.now.links
        )
        self.push(msgspec.structs.replace(self.now, links=links))
        return self.now

    async def events(self, *, after: int = 0) -> tuple[Event, ...]:
        self._call("events", after)
        return tuple(event for event in self.story if event.number > after)

    async def memory(self, plan: Plan) -> PlanMemory:
        self._call("memory", plan)
        if self.memories is None:
            raise EngineError("The scripted engine tells nothing of memory")
        return self.memories(plan)

    async def speeds(self, plan: Plan) -> ClusterSpeeds:
        self._call("speeds", plan)
        if self.pace is None:
            raise EngineError("The scripted cluster knows no speeds")
        return self.pace(plan)

    async def best(self, plan: Plan) -> tuple[Alternative, ...]:
        self._call("best", plan)
        await self.searching.wait()
        return self.bests(plan)

    async def why(self) -> Bottleneck:
        self._call("why", None)
        if self.bottleneck is None:
            raise EngineError("The scripted cluster measures nothing")
        return self.bottleneck

    async def passes(self) -> dict[str, tuple[Pass, ...]]:
        links = self.now.links if self.now else ()
        return {link.worker: link.passes for link in links}

    async def _answered(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        """The scripted answer, piece by piece while the gate is open."""
        self._call("chat", request)
        for index, delta in enumerate(self.answer):
            if index >= self.pieces_given:
                await self.gate.wait()
            yield delta
            await asyncio.sleep(0)

    def _call(self, name: str, argument: object) -> None:
        self.calls.append((name, argument))
        self._fail(name)

    def _fail(self, name: str) -> None:
        if name in self.errors:
            raise self.errors[name]


def homelab(snapshot: ClusterSnapshot | None = None) -> ScriptedCluster:
    """The homelab, with speeds."""
    cluster = ScriptedCluster(snapshot or scenes.homelab_serving())
    cluster.pace = scenes.pace
    return cluster
