"""Runs that are measured, and the file that keeps what they say."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from backends.config import Config
from backends.controller.calibration_store import (
    CalibrationStore,
    RunRecorder,
    RunWatch,
    ground_of,
    model_key,
)
from backends.controller.snapshot_store import SnapshotStore
from backends.planning.speeds import (
    NOTHING,
    PASSES_MIN,
    ServerRun,
    WorkerRun,
    run_says,
    speeds_of,
)
from backends.server_settings import BY_TENSOR
from backends.split.calibration import Calibration
from backends.split.cost import Work, forecast, lab_ms
from backends.state import (
    ClusterState,
    DeviceKind,
    EngineInfo,
    Generation,
    Lab,
    Layer,
    Link,
    ModelInfo,
    Pass,
    Peer,
    PeerFacts,
    Speed,
    SpeedSource,
)
from tests.unit.planning import machines
from tests.unit.planning.machines import device, here, plan_for

if TYPE_CHECKING:
    from pathlib import Path

    from backends.state import Plan

MODEL = ModelInfo(
    path="/m.gguf",
    arch="llama",
    n_layer=12,
    n_embd=64,
    n_vocab=1000,
    n_ctx_train=4096,
    layers=tuple(
        Layer(index=i, bytes=10_000_000, quants={"Q4_0": 10_000_000}) for i in range(12)
    ),
    output_bytes=10_000_000,
)
MACHINES = [here(replace(device("local", "CPU", 1 << 36), kind=DeviceKind.CPU))]
HEAD_MS, LAYER_MS, RTT_MS = 2.0, 1.0, 0.5
LAB = Lab(latency_ms=10)


def engine(version: str = "b1") -> EngineInfo:
    return replace(machines.engine("e").info, version=version)


def plan_of(*counts: int) -> Plan:
    return plan_for(*MACHINES, model=MODEL, workers=2, counts=counts, worker_threads=1)


def test_a_cpu_that_never_ran_is_taken_to_compute_on_its_cores() -> None:
    def told(cores: int, threads: int | None = None) -> float:
        cpu = replace(device("local", "CPU", 1 << 36), cores=cores)
        plan = plan_for(here(cpu), model=MODEL, workers=0)
        plan = replace(plan, server=replace(plan.server, threads=threads))
        ground = ground_of(plan, MODEL, [here(cpu)], engine())
        return forecast(MODEL, plan, speeds_of(Calibration(), ground)).tok_per_s

    assert told(2) == told(8, threads=2) < told(4) == told(0)


def passes(layers: int, others_ms: float, lab: Lab | None = None) -> list[Pass]:
    """Twenty passes of a worker whose layers take 3 ms each."""
    way_ms = RTT_MS + lab_ms(lab, 1, 0)
    own_ms = layers * LAYER_MS
    return [
        Pass(
            at_ms=100.0 * number,
            round_trips=1,
            bytes_up=3000,
            bytes_down=1000,
            head_ms=HEAD_MS + others_ms,
            up_ms=way_ms / 2,
            compute_ms=own_ms,
            down_ms=way_ms / 2,
        )
        for number in range(1, 21)
    ]


def two(first: int, second: int, lab: Lab | None = None) -> dict[str, list[Pass]]:
    way_ms = RTT_MS + lab_ms(lab, 1, 0)
    return {
        "worker1": passes(first, second * LAYER_MS + way_ms, lab),
        "worker2": passes(second, first * LAYER_MS + way_ms, lab),
    }


def link(worker: str, lab: Lab | None = None) -> Link:
    return Link(worker=worker, rtt_ms=RTT_MS, lab=lab, generation=Generation())


def run(plan: Plan, first: int, second: int, lab: Lab | None = None) -> object:
    return run_says(
        ground_of(plan, MODEL, MACHINES, engine()),
        {
            name: WorkerRun(of, RTT_MS, lab)
            for name, of in two(first, second, lab).items()
        },
        ServerRun(depth=100, tokens=20, tok_per_s=None, prompt_tok_per_s=None),
        at=1.0,
    )


async def test_runs_of_two_splits_predict_a_third(tmp_path: Path) -> None:
    calibrations = CalibrationStore(tmp_path / "speeds.json")
    for first, second in ((4, 9), (8, 5)):
        plan = plan_of(first, second)
        says = run(plan, first, second, LAB)
        await calibrations.keep(ground_of(plan, MODEL, MACHINES, engine()), says)  # type: ignore[arg-type]
    plan = plan_of(1, 12)
    ground = ground_of(plan, MODEL, MACHINES, engine())
    told = forecast(MODEL, plan, calibrations.speeds(ground))
    assert told.pass_ms == pytest.approx(HEAD_MS + 13 * LAYER_MS + 2 * RTT_MS, rel=0.05)
    assert told.source is SpeedSource.MEASURED
    again = CalibrationStore(tmp_path / "speeds.json")
    assert again.calibration == calibrations.calibration
    other = ground_of(plan, MODEL, MACHINES, engine("b2"))
    assert forecast(MODEL, plan, calibrations.speeds(other)).source is SpeedSource.PRIOR


async def test_a_run_that_is_being_kept_is_renamed_too(tmp_path: Path) -> None:
    calibrations = CalibrationStore(tmp_path / "speeds.json")
    plan = plan_of(6, 7)
    ground = ground_of(plan, MODEL, MACHINES, engine())
    keeping = calibrations.keep(ground, run(plan, 6, 7))  # type: ignore[arg-type]
    await asyncio.gather(keeping, calibrations.rename("local", "box"))
    kept = calibrations.calibration.observations
    assert {key.split("|")[0] for one in kept for key in one.work} == {"box"}


def test_the_heads_protocol_decides_about_graphs(tmp_path: Path) -> None:
    calibrations, plan = CalibrationStore(tmp_path / "speeds.json"), plan_of(6, 7)
    here = replace(engine(), rpc_protocol="8.0.0")
    known = ground_of(plan, MODEL, MACHINES, here)
    assert calibrations.speeds(known).rpc_protocol == "8.0.0"
    unknown = ground_of(plan, MODEL, MACHINES, None)
    assert calibrations.speeds(unknown).rpc_protocol == ""
    away = ground_of(replace(plan, head="nobody"), MODEL, MACHINES[:1], here)
    assert away.rpc_protocol == ""


async def test_the_residual_of_a_run_is_kept(tmp_path: Path) -> None:
    calibrations = CalibrationStore(tmp_path / "speeds.json")
    plan = plan_of(6, 7)
    ground = ground_of(plan, MODEL, MACHINES, engine())
    assert calibrations.speeds(ground).residual is None
    for _ in range(3):
        await calibrations.keep(ground, run(plan, 6, 7))  # type: ignore[arg-type]
    residual = calibrations.speeds(ground).residual
    assert residual is not None
    assert abs(residual) < 0.05
    other = replace(MODEL, n_embd=128)
    assert (
        calibrations.speeds(ground_of(plan, other, MACHINES, engine())).residual is None
    )


def test_an_unreadable_book_begins_anew(tmp_path: Path) -> None:
    file = tmp_path / "speeds.json"
    for content in (b"", b"[]", b'{"format": 99}', b"\xff"):
        file.write_bytes(content)
        assert CalibrationStore(file).calibration.observations == ()


def test_short_runs_say_nothing() -> None:
    plan = plan_of(6, 7)
    short = {
        name: WorkerRun(of[: PASSES_MIN - 1], RTT_MS, None)
        for name, of in two(6, 7).items()
    }
    server = ServerRun(depth=9, tokens=9, tok_per_s=None, prompt_tok_per_s=None)
    ground = ground_of(plan, MODEL, MACHINES, engine())
    assert run_says(ground, short, server, at=0).observations == ()
    only_one = {"worker1": WorkerRun(two(6, 7)["worker1"], RTT_MS, None)}
    assert run_says(ground, only_one, server, at=0).observations == ()


def test_parts_of_tensors_say_nothing() -> None:
    by_tensor = replace(plan_of(6, 7), extra_args=BY_TENSOR)
    assert run(by_tensor, 6, 7) == NOTHING


def test_a_head_alone_is_measured_by_the_servers_rates() -> None:
    plan = plan_for(*MACHINES, model=MODEL, workers=0)
    ground = ground_of(plan, MODEL, MACHINES, engine())
    server = ServerRun(132, 32, tok_per_s=20, prompt_tok_per_s=200, prompt_tokens=100)
    decode, prompt = run_says(ground, {}, server, at=0).observations
    assert decode.ms == pytest.approx(50)
    assert prompt.ms == pytest.approx(500)


def test_tokens_in_the_cache_are_no_prompt_that_was_read() -> None:
    plan = plan_for(*MACHINES, model=MODEL, workers=0)
    ground = ground_of(plan, MODEL, MACHINES, engine())
    server = ServerRun(632, 32, tok_per_s=20, prompt_tok_per_s=200, prompt_tokens=20)
    assert run_says(ground, {}, server, at=0).observations[1].ms == pytest.approx(100)


def prompts_of(
    *batches: int, lab: Lab | None = None
) -> list[tuple[object, list[str], float]]:
    """What a prompt of 500 ms says: each time, who took it, and in how many passes.

    The lab is on the link of the last worker.
    """
    plan = plan_of(6, 7)
    prompt = [
        Pass(
            at_ms=50 + at,
            batch=batch,
            generated=False,
            round_trips=1,
            compute_ms=2.0 * batch,
            wait_ms=900,
            up_ms=batch / 100,
        )
        for at, batch in enumerate(batches)
    ]
    earlier = [replace(prompt[0], batch=99), *passes(6, 0)]
    runs = {
        name: WorkerRun([*earlier, *prompt, *of], RTT_MS, None)
        for name, of in two(6, 7).items()
    }
    runs["worker2"] = runs["worker2"]._replace(lab=lab)
    rate = sum(batches) / 0.5
    server = ServerRun(
        depth=20 + sum(batches), tokens=20, tok_per_s=None, prompt_tok_per_s=rate
    )
    ground = ground_of(plan, MODEL, MACHINES, engine())
    found: list[tuple[object, list[str], float]] = []
    for one in run_says(ground, runs, server, at=0).observations:
        if any(Work(*row).gops for row in one.work.values()) or one.ms > 90:
            kinds = ("worker" if "|worker|" in key else "head" for key in one.work)
            parts = sorted(kinds)
            steps = max(Work(*row).passes for row in one.work.values())
            found.append((pytest.approx(one.ms), parts, steps))
    return found


def test_a_prompt_of_one_pass_is_an_equation_of_its_own() -> None:
    # Both workers, and the head with what is left of 500 ms.
    worker = (200, ["worker"], 1)
    assert prompts_of(100) == [worker, worker, (98, ["head"], 1)]


def test_of_several_passes_the_last_worker_is_seen_with_the_head() -> None:
    """It answers only in the last one."""
    first, both = (200, ["worker"], 2), (298, ["head", "worker"], 2)
    assert prompts_of(90, 10) == [first, both]
    slow = (259, ["head", "worker"], 2)
    assert prompts_of(90, 10, lab=LAB) == [first, slow], "two trips of 20 ms"
    # Where the parts of a long prompt overlap, nothing is known of both.
    assert prompts_of(60, 40) == [first]


def test_a_pass_that_took_no_longer_than_its_way_says_nothing_of_a_device() -> None:
    way = [replace(one, compute_ms=0.0) for one in passes(6, 20.0)]
    runs = {
        name: WorkerRun(of, RTT_MS, None)
        for name, of in (two(6, 7) | {"worker1": way}).items()
    }
    server = ServerRun(depth=100, tokens=20, tok_per_s=None, prompt_tok_per_s=None)
    ground = ground_of(plan_of(6, 7), MODEL, MACHINES, engine())
    says = run_says(ground, runs, server, at=1.0)
    assert min(one.ms for one in says.observations) > 0


def reading(tokens: int, *, active: int = 0) -> Speed:
    return Speed(tokens=tokens, requests_active=active, ctx_used=100, slots=1)


def test_a_run_is_taken_once_when_it_ends() -> None:
    watch, links = RunWatch(), (link("worker1"), link("worker2"))
    assert watch.look(reading(0), links, {"worker1": []}) is None
    assert watch.look(reading(20, active=1), links, two(6, 7)) is None
    ended = watch.look(reading(20), links, two(6, 7))
    assert ended is not None
    workers, server = ended
    assert (len(workers["worker1"].passes), server.tokens) == (20, 20)
    assert watch.look(reading(20), links, two(6, 7)) is None


def test_a_link_that_is_told_of_late_hides_no_run() -> None:
    """Quick answers may be over before the second reading after a launch."""
    watch = RunWatch()
    watch.look(reading(0), (), {})
    ended = watch.look(reading(20), (link("worker1"), link("worker2")), two(6, 7))
    assert ended is not None
    assert len(ended[0]["worker1"].passes) == 20


def test_a_changed_lab_begins_anew() -> None:
    """Passes from before a change are of another network."""
    watch = RunWatch()
    watch.look(reading(0), (link("worker1"),), {})
    slowed = (link("worker1", LAB),)
    assert watch.look(reading(20), slowed, two(6, 7)) is None
    assert watch.look(reading(20), slowed, two(6, 7)) is None


def test_a_lab_that_changed_while_a_link_was_not_told_of_begins_anew() -> None:
    watch = RunWatch()
    watch.look(reading(0), (link("worker1"),), {})
    watch.look(reading(0), (), {})
    slowed = (link("worker1", LAB),)
    assert watch.look(reading(20), slowed, two(6, 7)) is None


async def test_a_plain_link_says_nothing(tmp_path: Path) -> None:
    calibrations = CalibrationStore(tmp_path / "speeds.json")

    async def found() -> list[Peer]:
        return MACHINES

    def recorder(mode: str) -> tuple[RunRecorder, tuple[Link, ...]]:
        links = tuple(replace(link(w), mode=mode) for w in ("worker1", "worker2"))
        store = SnapshotStore(Config)
        store.update(
            state=ClusterState.SERVING,
            plan=plan_of(6, 7),
            model=MODEL,
            engine=engine(),
            links=links,
        )
        stores.append(store)
        return RunRecorder(calibrations, store, lambda: two(6, 7), found), links

    stores: list[SnapshotStore] = []
    plain, _ = recorder("plain")
    metered, _ = recorder("metered")
    for one in (plain, metered):
        calibrations.calibration = type(calibrations.calibration)()
        one.begin()
        # What is there at the beginning is an earlier controller's.
        one.look(reading(0))
        assert calibrations.calibration.observations == ()
    fresh, links = recorder("metered")
    watch = RunWatch()
    watch.look(reading(0), links, {})
    fresh._watch = watch
    fresh.look(reading(20))
    await fresh.settled()
    assert len(calibrations.calibration.observations) == 3
    last = stores[-1].snapshot.last_run
    residual = calibrations.calibration.residuals[-1]
    assert last is not None
    assert [part.name for part in last.parts] == ["local", "worker1", "worker2"]
    assert last.measured_ms == pytest.approx(residual.measured_ms)
    assert last.predicted_ms == pytest.approx(residual.predicted_ms)
    plain._watch = RunWatch()
    plain._watch.look(reading(0), links, {})
    plain.look(reading(20))
    await plain.settled()
    assert len(calibrations.calibration.observations) == 3


def test_the_build_of_a_peer_is_the_one_that_speaks_with_ours() -> None:
    old, new = (
        replace(engine(), rpc_protocol=protocol, directory=f"/e/{protocol}")
        for protocol in ("7.0.0", "8.0.0")
    )
    mini = Peer(name="mini", facts=PeerFacts(at=0, engines=(new, old)))

    def build(own: EngineInfo, machine: str) -> str:
        return ground_of(plan_of(6, 7), MODEL, [*MACHINES, mini], own).build(machine)

    assert build(old, "mini") == build(old, "local") != build(new, "mini")
    other_flags = replace(old, directory="/e/7.0.0-with-other-flags")
    assert build(other_flags, "local") != build(old, "local")


def test_models_are_told_apart_by_their_layers() -> None:
    other = replace(MODEL, output_bytes=1)
    renamed = replace(MODEL, path="/x.gguf", name="x")
    assert model_key(MODEL) == model_key(renamed) != model_key(other)


async def test_a_run_of_what_serves_no_more_is_not_shown(tmp_path: Path) -> None:
    store = SnapshotStore(Config)
    links = (link("worker1"), link("worker2"))
    store.update(plan=plan_of(6, 7), model=MODEL, links=links, served_since=1.0)

    async def found() -> list[Peer]:
        store.update(served_since=2.0)
        return MACHINES

    calibrations = CalibrationStore(tmp_path / "speeds.json")
    recorder = RunRecorder(calibrations, store, lambda: two(6, 7), found)
    recorder._watch.look(reading(0), links, {})
    recorder.look(reading(20))
    await recorder.settled()
    assert calibrations.calibration.residuals
    assert store.snapshot.last_run is None
