"""A preparation finds everything once; a launch with its token nothing again."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
from msgspec.structs import replace

from backends.controller import best_plans, preparation
from backends.controller.best_plans import Option
from backends.controller.clusters import Clusters
from backends.controller.drafting import Drafting
from backends.controller.journal import Record
from backends.controller.launch_facts import Discovery, draft_path
from backends.controller.memory_usage import machines_now
from backends.controller.preparation import (
    LASTS_S,
    PROBE_POLL_S,
    PROBING_S,
    Preparations,
)
from backends.demo import MODEL_PATH
from backends.direct_address import DirectAddress
from backends.engine.ask import Engine
from backends.engine.versions import protocols_match
from backends.errors import ControllerError, MachineError, ModelError, PlanError
from backends.link.relay import worker_relay_argv
from backends.machines.agent import ProcessRecord
from backends.machines.local import local_agent_for_now
from backends.machines.local_inventory import LocalInventory
from backends.machines.machine import LocalMachine
from backends.models import layers
from backends.models.header import read_header
from backends.models.layers import read_model
from backends.paths import Paths
from backends.planning.cluster_file import EXAMPLE, read_cluster
from backends.speculation.methods import methods_of
from backends.split.layout import counts, with_counts
from backends.state import (
    AUTO_DRAFT,
    MTP_DRAFT,
    NGRAM_DRAFT,
    NO_DRAFT,
    Ask,
    ClusterState,
    Device,
    DeviceKind,
    Drafts,
    EngineInfo,
    EngineSource,
    LayerRange,
    ModelFile,
    ModelInfo,
    Objective,
    Peer,
    PeerFacts,
    PeerState,
    Plan,
    Preview,
    ProcessRole,
    ProcessState,
    ServerSettings,
    Speculation,
    Split,
    Transport,
)
from tests.kit.clusters import Stage
from tests.kit.machines import Cast, ScriptedMachine
from tests.kit.waiting import until
from tests.unit.models.ggufs import LLAMA, llama_tensors, write_gguf
from tests.unit.planning.machines import ADA, MODEL, ON_BOB, PLAIN, plan_for
from tests.unit.split.test_moved_experts import with_experts

# Whatever it is to do, this program ends at once.
ENGINE = EngineInfo(
    directory="/e",
    server_path="/bin/false",
    worker_path="/bin/false",
    source=EngineSource.CACHE,
    rpc_protocol="7.0.0",
)


class Bench:
    """The parts of a controller on this machine alone; what was asked of it counts."""

    def __init__(
        self, paths: Paths, agent: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.asked = Counter[str]()
        self.free_bytes: int | None = None
        inventory = LocalInventory(paths, agent)
        self.here = LocalMachine(agent, inventory, lambda _: paths.run_dir, list)
        self.peers: tuple[Peer, ...] = ()
        self.clusters = Clusters(inventory, paths)
        self.preparations = Preparations(
            self.clusters, cast("Any", self), inventory, self._no_models
        )
        memory, engine = agent.memory, self.here.engine

        async def surveyed(*args: Any) -> list[Peer]:
            self.asked["survey"] += 1
            return await machines_now(*args)

        async def free() -> Device:
            found: Device = await memory()
            n_bytes = self.free_bytes
            return found if n_bytes is None else replace(found, free_bytes=n_bytes)

        def header(path: Path, *args: Any, **more: Any) -> Any:
            self.asked[path.name] += 1
            return read_header(path, *args, **more)

        async def counted(*args: Any) -> Engine:
            self.asked["engine"] += 1
            return await engine(*args)

        async def of_ours(wanted: str | None = None) -> Engine:
            named = {"server_path": "/bin/newer", "rpc_protocol": "8.0.0"}
            info = replace(ENGINE, **named) if wanted else ENGINE
            return Engine(info=info, flags=frozenset())

        monkeypatch.setattr(preparation, "machines_now", surveyed)
        monkeypatch.setattr(agent, "memory", free)
        monkeypatch.setattr(layers, "read_header", header)
        monkeypatch.setattr(self.here, "engine", counted)
        monkeypatch.setattr(inventory, "engine", of_ours)

    async def _no_models(self) -> tuple[()]:
        return ()

    def get(self, name: str) -> LocalMachine:
        return self.here

    def all(self) -> list[LocalMachine]:
        return [self.here]

    def values(self) -> tuple[Peer, ...]:
        return self.peers

    async def reached(self, names: Iterable[str]) -> None:
        return

    async def prepared(self, model: Path = MODEL_PATH, **more: Any) -> Preview:
        ask = Ask(model=str(model), workers=2, **more)
        return await self.preparations.prepare(self.clusters.get(), ask)

    async def launched(self, token: str) -> None:
        cluster = self.clusters.get()
        plan, facts = await self.preparations.launchable(cluster, token)
        await cluster.want(plan, facts=facts)
        self.clusters.begin()
        await until(lambda: cluster.store.snapshot.state is ClusterState.FAILED)


@pytest.fixture
async def bench(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    async with local_agent_for_now(paths.run_dir) as agent:
        bench = Bench(paths, agent, monkeypatch)
        await bench.clusters.start(cast("Any", bench))
        bench.asked.clear()
        yield bench
        await bench.clusters.leave()


async def test_of_one_launch_everything_is_asked_once(bench: Bench) -> None:
    preview = await bench.prepared()
    await bench.launched(preview.token)
    assert bench.asked == {"survey": 1, MODEL_PATH.name: 1, "engine": 1}


async def test_a_plan_of_all_machines_waits_for_those_that_are_being_reached(
    bench: Bench,
) -> None:
    """Else the first launch of a fresh controller would silently leave them out."""
    own = Device(id="nuc/CPU", name="CPU", kind=DeviceKind.CPU, free_bytes=1 << 30)
    nuc = Peer(name="nuc", transport=Transport.SSH, devices=(own,))
    bench.peers = (replace(nuc, state=PeerState.PROBING, since=time.time()),)
    ask = Ask(model=str(MODEL_PATH))
    preparing = asyncio.create_task(
        bench.preparations.prepare(bench.clusters.get(), ask)
    )
    await asyncio.sleep(2 * PROBE_POLL_S)
    assert not preparing.done()
    assert not bench.asked["survey"]
    bench.peers = (nuc,)
    assert [worker.peer for worker in (await preparing).plan.workers] == ["nuc"]


async def test_a_plan_waits_long_for_a_machine_only_if_it_is_named(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asyncio, "sleep", AsyncMock(side_effect=OSError("waits")))
    since = time.time() - PROBING_S
    bench.peers = (Peer(name="nuc", state=PeerState.PROBING, since=since),)
    ask = Ask(model="m.gguf")
    await bench.preparations._peers_settled(ask)
    for named in (replace(ask, peers=("nuc",)), replace(ask, head="nuc")):
        with pytest.raises(OSError, match="waits"):
            await bench.preparations._peers_settled(named)


async def test_memory_is_looked_at_again(bench: Bench) -> None:
    preview = await bench.prepared()
    bench.free_bytes = 1 << 20
    with pytest.raises(PlanError, match="too small"):
        await bench.launched(preview.token)


async def test_a_changed_file_is_read_again(bench: Bench, tmp_path: Path) -> None:
    model = Path(shutil.copy(MODEL_PATH, tmp_path / "m.gguf"))
    preview = await bench.prepared(model)
    cluster = bench.clusters.get()
    os.utime(model, (1, 1))
    plan, _ = await bench.preparations.launchable(cluster, preview.token)
    assert plan == preview.plan
    assert bench.asked["m.gguf"] == 2
    preview = await bench.prepared(model)
    os.truncate(model, 4)
    with pytest.raises(ModelError):
        await bench.preparations.launchable(cluster, preview.token)


async def test_after_a_new_probe_of_a_peer_it_is_prepared_anew(bench: Bench) -> None:
    preview = await bench.prepared()
    here = Peer(name="local", devices=(await bench.here.agent.memory(),))
    bench.peers = (replace(here, facts=PeerFacts(at=5.0)),)
    cluster = bench.clusters.get()
    plan, facts = await bench.preparations.launchable(cluster, preview.token)
    assert facts is not None
    assert plan == preview.plan
    assert bench.asked == {"survey": 2, MODEL_PATH.name: 1, "engine": 2}


async def test_a_token_is_good_once_for_its_cluster_and_for_a_minute(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, now = bench.clusters.get(), time.monotonic()
    token = (await bench.prepared()).token
    with pytest.raises(ControllerError, match="too long ago"):
        await bench.preparations.launchable(bench.clusters.get("other"), token)
    await bench.preparations.launchable(cluster, token)
    with pytest.raises(ControllerError, match="too long ago"):
        await bench.preparations.launchable(cluster, token)
    token = (await bench.prepared()).token
    monkeypatch.setattr(time, "monotonic", lambda: now + 2 * LASTS_S)
    with pytest.raises(ControllerError, match="too long ago"):
        await bench.preparations.launchable(cluster, token)


# --- A draft that was settled once: its file, and the head's engine ---

PLAN = plan_for(PLAIN, ADA, peers=("ada",))


class Head:
    """Reads models, and has an engine with one method."""

    flags = frozenset({"--spec-type", "--spec-type ngram-simple"})

    async def model(self, path: str) -> ModelInfo:
        return read_model(path)

    async def engine(self, _wanted: str | None = None) -> Any:
        info = SimpleNamespace(rpc_protocol="7.0.0")
        return SimpleNamespace(flags=self.flags, info=info)

    async def rpc_protocol(self, _plan: Plan) -> str:
        return "7.0.0"

    async def reached(self, _names: object) -> None:
        """It is there."""

    async def models(self) -> tuple[()]:
        return ()

    def files(self, model: ModelInfo) -> list[str]:
        return [model.path]

    def get(self, _name: str) -> Any:
        return self


HEAD = cast("Any", Head())


def test_a_draft_whose_file_is_gone_is_called_the_draft(tmp_path: Path) -> None:
    method = Speculation(type="draft-simple", model=str(tmp_path / "gone.gguf"))
    plan = replace(PLAN, speculation=method)
    with pytest.raises(ModelError, match="The draft model cannot be used: ") as caught:
        asyncio.run(draft_path(plan, HEAD, HEAD))
    assert "--draft none" in caught.value.hint


def test_a_kept_plan_takes_the_method_of_the_present_engine() -> None:
    plan = replace(
        PLAN,
        server=ServerSettings(draft=NGRAM_DRAFT),
        speculation=Speculation(type="ngram-map-k"),
    )
    drafting = Drafting(HEAD, HEAD, HEAD, HEAD.models)
    settled = asyncio.run(drafting.require(plan, (PLAIN, ADA)))
    assert settled.speculation == Speculation(type="ngram-simple")


def test_auto_chooses_from_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Drafting, "candidates", nothing)
    monkeypatch.setattr(HEAD, "model", of_model, raising=False)
    drafting = Drafting(HEAD, HEAD, HEAD, HEAD.models)
    auto = replace(PLAN, server=ServerSettings(draft=AUTO_DRAFT))
    settled = asyncio.run(drafting.settled(auto, (PLAIN, ADA)))
    assert settled.speculation == Speculation(type="ngram-simple")
    assert asyncio.run(drafting.require(settled, (PLAIN, ADA))) == settled
    assert methods_of(settled) == (NO_DRAFT, NGRAM_DRAFT)


async def of_model(_path: str) -> ModelInfo:
    return MODEL


def test_auto_tries_layers_of_model_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    with_layers = replace(MODEL, arch="glm4moe", n_layer_nextn=1)

    async def model(_path: str) -> ModelInfo:
        return with_layers

    monkeypatch.setattr(Drafting, "candidates", nothing)
    monkeypatch.setattr(HEAD, "model", model, raising=False)
    monkeypatch.setattr(HEAD, "flags", HEAD.flags | {"--spec-type draft-mtp"})
    drafting = Drafting(HEAD, HEAD, HEAD, HEAD.models)
    auto = replace(PLAN, server=ServerSettings(draft=AUTO_DRAFT))
    settled = asyncio.run(drafting.settled(auto, (PLAIN, ADA)))
    assert methods_of(settled) == (NO_DRAFT, NGRAM_DRAFT, MTP_DRAFT)
    # Another split has other last layers.
    turned = replace(settled, split=split_of(settled.split, 13))
    anew = asyncio.run(drafting.require(turned, (PLAIN, ADA)))
    places = [one.speculation and one.speculation.device for one in (settled, anew)]
    assert places == ["ada/CPU", "local/CPU"]


def test_model_without_mtp_layers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HEAD, "model", of_model, raising=False)
    plan = replace(PLAN, server=ServerSettings(draft=MTP_DRAFT))
    drafting = Drafting(HEAD, HEAD, HEAD, HEAD.models)
    with pytest.raises(PlanError, match=r"m\.gguf has no layers of its own"):
        asyncio.run(drafting.settled(plan, (PLAIN, ADA)))


@pytest.mark.parametrize(
    ("knows", "why"),
    [(True, ""), (False, "This llama.cpp does not know the method draft-mtp")],
)
def test_layers_of_the_model_itself_are_listed_or_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, knows: bool, why: str
) -> None:
    file = tmp_path / "m.gguf"
    params = LLAMA | {"block_count": 3, "nextn_predict_layers": 1}
    write_gguf(file, params, llama_tensors(3), arch="glm4moe")
    more = {"--spec-type draft-mtp"} if knows else set()
    monkeypatch.setattr(HEAD, "flags", HEAD.flags | more)
    drafting = Drafting(HEAD, HEAD, HEAD, HEAD.models)
    found = asyncio.run(drafting.candidates(str(file), ()))
    assert found.heads == (("draft-mtp",) if knows else ())
    assert found.head_why_not == why


async def nothing(*_: object) -> Drafts:
    return Drafts(model="/m", size_bytes=100)


def split_of(split: Split, on_first: int) -> Split:
    return with_counts(split, (on_first, sum(counts(split)) - on_first))


# --- Which models the relay beside a worker is told of ---

BEFORE = "/models/before.gguf"


class Able(ScriptedMachine):
    def __init__(self, name: str, *seen: ProcessRecord) -> None:
        super().__init__(Cast(), name)
        self.searched = " in ~/.models"
        self.copies: tuple[str, ...] = ()
        self.place: DirectAddress | MachineError = DirectAddress(address="10.0.0.7")
        for one in seen:
            self.processes.put(one)

    async def direct_address(self) -> DirectAddress:
        if isinstance(self.place, MachineError):
            raise self.place
        return self.place

    async def copies_of(self, _: ModelInfo) -> tuple[str, ...]:
        return self.copies


def beside(model: str, direct: str = "") -> ProcessRecord:
    """The relay that runs beside bob's worker, with that model, and met there."""
    return ProcessRecord(
        name="default/worker-relay-bob",
        role=ProcessRole.WORKER_RELAY,
        state=ProcessState.RUNNING,
        pid=7,
        argv=worker_relay_argv(
            "/dllm-relay",
            worker="bob",
            listen_port=2,
            rpc_server="127.0.0.1:1",
            models=[model],
            key_file="/private",
            direct=direct,
        ),
        port=2,
    )


def discovery_of(
    folder: Path, machines: dict[str, Able], *, has_served: bool
) -> Discovery:
    context = Stage(folder, Record(server="7@1" if has_served else "")).context
    context.machines = cast("Any", SimpleNamespace(get=machines.__getitem__))
    return Discovery(context)


@pytest.mark.parametrize(
    ("copies", "has_served", "told", "why"),
    [
        ((), False, (), "bob has no copy of the model in ~/.models: its weights cross"),
        ((), True, (BEFORE,), "bob has the model on disk"),
        ((BEFORE,), True, (BEFORE,), "bob has the model on disk"),
        (("/new.gguf",), True, ("/new.gguf",), "bob has the model on disk"),
    ],
)
async def test_what_an_earlier_goal_s_relay_was_told_of_is_no_copy(
    tmp_path: Path,
    copies: tuple[str, ...],
    has_served: bool,
    told: tuple[str, ...],
    why: str,
) -> None:
    bob = Able("bob", beside(BEFORE))
    bob.copies = copies
    machines = {"local": Able("local"), "bob": bob}
    facts = await discovery_of(tmp_path, machines, has_served=has_served).facts(ON_BOB)
    pairing = facts.pairings["bob"]
    assert pairing.models == told
    assert pairing.why.startswith(why)


HERE = "[fd00::7]:4711"
NOWHERE = "its relay was started without another address"


@pytest.mark.parametrize(
    ("direct", "now", "found", "why"),
    [
        (HERE, DirectAddress(address="10.0.0.7"), HERE, ""),
        (HERE, DirectAddress(why="its sshd does not say"), HERE, ""),
        (HERE, MachineError("bob opens no further session"), HERE, ""),
        ("", DirectAddress(address="10.0.0.7"), "", NOWHERE),
        ("", DirectAddress(why="its sshd does not say"), "", "its sshd does not say"),
    ],
)
async def test_a_relay_that_serves_is_left_where_it_listens(
    tmp_path: Path, direct: str, now: DirectAddress | MachineError, found: str, why: str
) -> None:
    bob = Able("bob", beside(BEFORE, direct))
    bob.place = now
    machines = {"local": Able("local"), "bob": bob}
    facts = await discovery_of(tmp_path, machines, has_served=True).facts(ON_BOB)
    data = facts.pairings["bob"].data
    assert (data.endpoint(2), data.why) == (found, why)


async def test_a_goal_not_served_looks_where_relays_are_met(tmp_path: Path) -> None:
    bob = Able("bob", beside(BEFORE, HERE))
    machines = {"local": Able("local"), "bob": bob}
    facts = await discovery_of(tmp_path, machines, has_served=False).facts(ON_BOB)
    assert facts.pairings["bob"].data == DirectAddress(address="10.0.0.7")


def file(path: str, size_bytes: int = 9, problem: str = "") -> ModelFile:
    return ModelFile(
        path=path, name="m", size_bytes=size_bytes, source="models", problem=problem
    )


FOUND = (
    file("/b/m.gguf"),
    file("/a/m.gguf"),
    file("/a/other.gguf"),
    file("/c/m.gguf", size_bytes=8),
    file("/d/m.gguf", problem="it is truncated"),
)


async def test_this_machine_may_hold_what_is_read_at_a_peer() -> None:
    nothing = cast("Any", None)
    here = LocalMachine(nothing, nothing, nothing, lambda: FOUND)
    there = replace(MODEL, path="ada:/x/m.gguf", size_bytes=9)
    assert await here.copies_of(there) == ("/a/m.gguf", "/b/m.gguf")
    read = replace(MODEL, path="/x/m.gguf", size_bytes=9)
    assert await here.copies_of(read) == ("/x/m.gguf",)


@pytest.mark.parametrize(
    ("head", "worker", "match"),
    [
        ("8.1.0", "8.0.0", True),
        ("8.0.0", "8.1.0", False),
        ("8.0.0", "7.0.0", False),
        ("", "8.0.0", True),
        ("8.0.0", "", True),
    ],
)
def test_a_worker_speaks_what_the_head_takes_or_is_left_to_try(
    head: str, worker: str, match: bool
) -> None:
    assert protocols_match(head, worker) is match


async def test_a_best_split_is_prepared_and_predicted(bench: Bench) -> None:
    preview = await bench.prepared(objective=Objective.DECODE, pins=("worker1/CPU>=3",))
    assert {s.device: s.layers for s in preview.plan.split.shares}["worker1/CPU"] >= 3
    assert preview.forecast is not None
    assert preview.forecast.low < preview.forecast.tok_per_s < preview.forecast.high
    assert preview.speeds is not None
    with pytest.raises(PlanError, match="no device of the plan"):
        await bench.prepared(objective=Objective.DECODE, pins=("nuc/CPU>=3",))


async def test_a_draft_is_predicted_for_machines_that_are_not_there(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = frozenset({"--spec-type", "--spec-type ngram-simple"})
    engine = AsyncMock(return_value=Engine(info=ENGINE, flags=flags))
    monkeypatch.setattr(bench.here, "engine", engine)
    ask = Ask(model=str(MODEL_PATH), server=ServerSettings(draft=NGRAM_DRAFT))
    preview = await bench.preparations.imagine(read_cluster(EXAMPLE), ask)
    assert preview.plan.speculation == Speculation(type="ngram-simple")
    assert preview.forecast is not None
    assert preview.undrafted is not None
    assert preview.forecast.tok_per_s != preview.undrafted.tok_per_s


ANY_HEAD = replace(read_cluster(EXAMPLE), head="")


async def test_a_given_split_is_explained_with_heads_its_experts_cannot_have(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixture = with_experts(MODEL)
    monkeypatch.setattr(
        bench.preparations._inventory, "model", AsyncMock(return_value=mixture)
    )
    ask = Ask(
        model=MODEL.path,
        split={"studio/MTL0": 7, "mini/MTL0": 6},
        experts=(LayerRange("studio/CPU", 10, 11),),
    )
    preview = await bench.preparations.imagine(ANY_HEAD, ask, explain=True)
    assert preview.plan.experts == ask.experts
    named = {one.name: one for one in preview.alternatives}
    assert named["mini as the head"].experts == ()


async def test_a_head_that_cannot_draft_refuses_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    cannot = {"studio", "mini2"}

    async def settled(_: Drafting, plan: Plan, *_more: object) -> Plan:
        if plan.head in cannot:
            raise PlanError(f"{plan.head} cannot draft")
        return plan

    monkeypatch.setattr(Drafting, "settled", settled)
    ask = Ask(
        model=str(MODEL_PATH),
        objective=Objective.DECODE,
        server=ServerSettings(draft=NGRAM_DRAFT),
    )
    preview = await bench.preparations.imagine(ANY_HEAD, ask)
    assert preview.plan.head == "mini"
    cannot.add("mini")
    with pytest.raises(PlanError, match="studio cannot draft"):
        await bench.preparations.imagine(ANY_HEAD, ask)


async def test_a_model_that_fits_has_a_predicted_speed(bench: Bench) -> None:
    fit = await bench.preparations.fit(bench.clusters.get(), Ask(model=str(MODEL_PATH)))
    assert fit.tok_per_s
    assert fit.low < fit.tok_per_s < fit.high


async def test_memory_and_speed_are_those_of_the_plans_engine(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, plan = bench.clusters.get(), (await bench.prepared()).plan
    asked = []

    def kept(plan: Plan, *_: object, protocol: str) -> Plan:
        asked.append(protocol)
        return plan

    monkeypatch.setattr(preparation, "with_prompt_cache", kept)
    newer = replace(plan, engine="/newer")
    await bench.preparations.prepare(cluster, plan)
    await bench.preparations.prepare(cluster, newer)
    assert asked == ["7.0.0", "8.0.0"]
    speeds = await bench.preparations.speeds(cluster, newer)
    assert speeds.rpc_protocol == "8.0.0"


async def test_a_search_waits_for_the_one_that_was_given_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread cannot be cancelled; without this they would pile up."""
    cluster, plan = bench.clusters.get(), (await bench.prepared()).plan
    ends = [asyncio.Event(), asyncio.Event()]
    begun: list[asyncio.Event] = []

    async def searched(*_: object) -> tuple[()]:
        begun.append(ends[len(begun)])
        await begun[-1].wait()
        return ()

    monkeypatch.setattr(preparation, "best_plans", searched)
    first = asyncio.create_task(bench.preparations.best(cluster, plan))
    await until(lambda: len(begun) == 1)
    first.cancel()
    second = asyncio.create_task(bench.preparations.best(cluster, plan))
    surveys = bench.asked["survey"]
    await until(lambda: bench.asked["survey"] > surveys)
    await asyncio.sleep(0.1)
    assert len(begun) == 1
    ends[0].set()
    ends[1].set()
    assert await second == ()


async def test_a_search_that_was_given_up_goes_on_with_no_other_heads(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, plan = bench.clusters.get(), (await bench.prepared()).plan
    goes_on, begun, heads = threading.Event(), threading.Event(), []

    def searched(_: Option) -> tuple[()]:
        begun.set()
        goes_on.wait()
        return ()

    async def of_heads(options: Sequence[Option], _: object) -> tuple[()]:
        heads.append(options)
        return ()

    monkeypatch.setattr(best_plans, "_best_plans", searched)
    for module in (best_plans, preparation):
        monkeypatch.setattr(module, "heads_of", of_heads)
    given_up = asyncio.create_task(bench.preparations.best(cluster, plan))
    await until(begun.is_set)
    given_up.cancel()
    goes_on.set()
    assert await bench.preparations.best(cluster, plan) == ()
    assert len(heads) == 1


async def test_a_drawn_plan_has_speeds_and_a_best_split(bench: Bench) -> None:
    cluster, plan = bench.clusters.get(), (await bench.prepared()).plan
    speeds = await bench.preparations.speeds(cluster, plan)
    devices = {speed.device for speed in speeds.devices}
    assert devices == {share.device for share in plan.split.shares}
    pins = ("worker2/CPU>=4",)
    now, *others = await bench.preparations.best(cluster, plan, pins)
    assert now.counts == counts(plan.split)
    told = [aim for one in others for aim in one.objectives]
    assert sorted(told) == sorted({*Objective} - {Objective.THROUGHPUT})
    for one in others:
        if one.objectives:
            assert dict(zip(one.devices, one.counts, strict=True))["worker2/CPU"] >= 4
    assert "solo on local/CPU" in {one.name for one in others}
    with pytest.raises(PlanError, match="no device of the plan"):
        await bench.preparations.best(cluster, plan, ("x>=1",))
    moved = replace(plan, extra_args=("-ot", "blk=CPU"))
    with pytest.raises(PlanError, match="-ot says where tensors go"):
        await bench.preparations.best(cluster, moved)
    beyond = replace(plan, experts=(LayerRange("local/CPU", 0, 999),))
    with pytest.raises(PlanError, match="layers 0 to 999, and the model has"):
        await bench.preparations.best(cluster, beyond)
