"""The weights that relays saw are those of which ``llama-server -lv 5`` says so.

``DLLM_TEST_PLACEMENTS=all`` tries every model with every split; else a few of each.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from backends.engine.logs import LoadLog
from backends.link.relay import worker_weights
from backends.models.header import read_header
from backends.models.layers import read_model
from backends.paths import relay_binary
from backends.split.experts import check_experts
from backends.split.flags import (
    DEVICES_MAX,
    Placement,
    check_exact,
    compile_split,
)
from backends.split.layout import make_split
from backends.split.measured import ServerLog, held_split, measured_split
from backends.state import LayerRange, Plan, WorkerSpec
from backends.state.links import Held, WorkerWeights
from tests.kit.models import write_llama
from tests.native.relaying import Relay, running
from tests.native.stock import (
    ENGINES,
    engine,
    free_port,
    on_both_engines,
    start,
    start_worker,
    wait_until_up,
)

pytestmark = pytest.mark.engine

N_LAYER = 8
SHAPES: dict[str, dict[str, Any]] = {
    "dense": {},
    "moe": {"n_expert": 4},
    "tied": {"tied": True},
}
# The first worker has two devices, the others one each.
WORKERS = (("D0", "D1"), ("D0",), ("D0",))
DEVICES = [(w, d) for w, names in enumerate(WORKERS) for d in range(len(names))]
# Layers of the head's CPU, then of each device; the output is one more.
SPLITS = {
    1: [(0, 9, 0), (3, 2, 4), (8, 0, 1)],
    2: [(0, 3, 2, 4), (2, 0, 3, 4)],
    3: [(0, 2, 2, 2, 3), (1, 3, 0, 1, 4), (2, 0, 3, 3, 1)],
}
# "{}" is the buffer of the last device in use.
EXTRAS: dict[str, tuple[str, ...]] = {
    "": (),
    "-ot": ("-ot", r"blk\.(2|4|6)\.ffn.*=CPU"),
    "-ot there": ("-ot", r"blk\.(1|5)\.(ffn_down|attn_q).*={},^output\.weight$=CPU"),
    "-cmoe": ("-cmoe",),
}
EVERY = [
    (kind, split, extra)
    for kind, splits, extra in product(SHAPES, SPLITS.values(), EXTRAS)
    for split in splits
]
SOME = [
    ("moe", (2, 0, 3, 4), "-cmoe"),
    ("tied", (2, 0, 3, 3, 1), "-ot there"),
    *(
        pytest.param(*case, marks=pytest.mark.trial)
        for case in (
            ("dense", (3, 2, 4), ""),
            ("dense", (1, 3, 0, 1, 4), "-ot"),
            ("moe", (0, 2, 2, 2, 3), ""),
            ("tied", (0, 9, 0), ""),
        )
    ),
]
CASES = EVERY if os.environ.get("DLLM_TEST_PLACEMENTS") == "all" else SOME
_OVERRIDE = re.compile(r"tensor (\S+) \(.*\) buffer type overridden to (\S+)")
_RPC = re.compile(r"RPC(\d+)\[127\.0\.0\.1:(\d+)\]")
# Buffers are padded per tensor and printed with two decimals of a MiB.
PADDING_BYTES = 32 << 10

Place = tuple[int, int]
"""A worker and one of its devices, by number."""
Parts = dict[int | str, Held]
"""By layer; ``output`` and ``embedding`` for what is none."""


class Bench(NamedTuple):
    version: str
    relays: list[Relay]
    folder: Path

    @property
    def ports(self) -> list[int]:
        return [relay.port for relay in self.relays]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Models by kind; the head of each is long enough to be known by its hash."""
    folder = tmp_path_factory.mktemp("models")
    for kind, shape in SHAPES.items():
        write_llama(
            folder / kind,
            n_layer=N_LAYER,
            n_embd=256,
            n_ff=768,
            n_vocab=24_000,
            **shape,
        )
    return {kind: folder / kind for kind in SHAPES}


@pytest.fixture(scope="module", params=ENGINES)
def bench(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    """Workers that keep what is long, so that later loads are known by their hash."""
    folder = tmp_path_factory.mktemp("bench")
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        relays = []
        for index, names in enumerate(WORKERS):
            patch.setenv("LLAMA_CACHE", str(folder / f"cache{index}"))
            devices = ",".join(["CPU"] * len(names))
            port = start_worker(
                *(stack, engine(request.param), folder / f"w{index}.log"),
                *("-c", "-d", devices),
            )
            stats = folder / f"w{index}.sock"
            relays.append(stack.enter_context(running(relay_binary(), port, stats)))
        yield Bench(request.param, relays, folder)


class Load(NamedTuple):
    """A model loaded in one way: what the log and the relays say of it."""

    plan: Plan
    placement: Placement
    log: LoadLog
    overrides: dict[str, str]
    weights: dict[str, WorkerWeights | None]


def plan_of(counts: tuple[int, ...], model: Path, extra: tuple[str, ...]) -> Plan:
    """A plan for the workers that so many counts need."""
    places = DEVICES[: len(counts) - 1]
    names = [f"w{worker}/{WORKERS[worker][device]}" for worker, device in places]
    return Plan(
        model=str(model),
        split=make_split(N_LAYER, ["local/CPU", *names], counts),
        workers=tuple(
            WorkerSpec(name=f"w{i}", devices=devices)
            for i, devices in enumerate(WORKERS)
        ),
        extra_args=extra,
    )


async def load(
    bench: Bench,
    model: Path,
    counts: tuple[int, ...],
    extra: tuple[str, ...],
    experts: tuple[LayerRange, ...] = (),
) -> Load:
    """Load it with all words, and ask the relays before it ends."""
    used = [place for place, n in zip(DEVICES, counts[1:], strict=False) if n]
    worker, device = used[-1]
    last = f"RPC{device}[127.0.0.1:{bench.ports[worker]}]"
    extra = tuple(each.format(last) for each in extra)
    plan = replace(plan_of(counts, model, extra), experts=experts)
    check_experts(plan, read_model(model))
    reached = {f"w{i}": f"127.0.0.1:{port}" for i, port in enumerate(bench.ports)}
    placement = compile_split(plan, reached)
    check_exact(plan, placement)
    with ExitStack() as stack:
        port, file = free_port(), bench.folder / "server.log"
        process = start(
            stack,
            [
                *(str(engine(bench.version) / "llama-server"), "-m", str(model)),
                *("--rpc", ",".join(placement.rpc_endpoints)),
                *("--device", ",".join(placement.device_names)),
                *("-ngl", str(placement.n_gpu_layers)),
                *("-ts", ",".join(map(str, placement.tensor_split))),
                *("-c", "256", "-np", "1", "-t", "1", "-fit", "off", "--no-repack"),
                *("-lv", "5", *placement.overrides, *extra, "--port", str(port)),
            ],
            file,
        )
        wait_until_up(f"http://127.0.0.1:{port}", process)
        weights = {f"w{i}": await worker_weights(r.stats_path) for i, r in each(bench)}
        text = file.read_text(errors="replace")
    log = LoadLog()
    log.feed(text)
    return Load(plan, placement, log, dict(_OVERRIDE.findall(text)), weights)


def each(bench: Bench) -> Iterator[tuple[int, Relay]]:
    return enumerate(bench.relays)


def said(load: Load, model: Path, ports: list[int]) -> dict[Place, Parts]:
    place_of = {
        device.name: (
            ports.index(int(device.endpoint.rpartition(":")[2])),
            device.index,
        )
        for device in load.placement.devices
    }
    held: dict[Place, Parts] = defaultdict(dict)

    def put(place: Place | None, part: int | str, n_bytes: int) -> None:
        if place is not None:
            before = held[place].get(part, Held())
            held[place][part] = Held(before.tensors + 1, before.bytes + n_bytes)

    tensors = {tensor.name: tensor.n_bytes for tensor in read_header(model).tensors}
    output = place_of.get(load.log.layer_devices[N_LAYER])
    for name, n_bytes in tensors.items():
        layer = re.match(r"blk\.(\d+)\.", name)
        if name.startswith("token_embd"):
            # Where the output is tied, its device gets the embedding too.
            put(None if "output.weight" in tensors else output, "embedding", n_bytes)
        elif name in load.overrides:
            place = overridden(load.overrides[name], ports)
            put(place, int(layer[1]) if layer else "output", n_bytes)
        elif layer:
            device = load.log.layer_devices[int(layer[1])]
            put(place_of.get(device), int(layer[1]), n_bytes)
        else:
            put(output, "output", n_bytes)
    return dict(held)


def overridden(buffer: str, ports: list[int]) -> Place | None:
    rpc = _RPC.fullmatch(buffer)
    return (ports.index(int(rpc[2])), int(rpc[1])) if rpc else None


def arrived(load: Load) -> dict[Place, Parts]:
    """The same as the relays tell it."""
    held: dict[Place, Parts] = {}
    for worker, weights in load.weights.items():
        assert weights is not None
        assert weights.complete
        for device in weights.devices:
            parts = held[int(worker[1:]), device.device] = Parts()
            for run in device.layers:
                for layer in range(run.first, run.last + 1):
                    parts[layer] = Held(run.tensors, run.bytes)
            ends = {"output": device.output, "embedding": device.embedding}
            parts.update((name, end) for name, end in ends.items() if end.tensors)
    return held


@on_both_engines
def test_a_split_has_no_more_devices_than_llama_cpp_takes(version: str) -> None:
    for n_devices in (DEVICES_MAX, DEVICES_MAX + 1):
        split = ",".join("1" * n_devices)
        argv = [str(engine(version) / "llama-server"), "-ts", split, "--version"]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        refused = f"got {n_devices} input configs" in done.stderr
        assert (refused, done.returncode != 0) == ((n_devices > DEVICES_MAX),) * 2


@pytest.mark.parametrize(("kind", "counts", "extra"), CASES)
async def test_the_wire_says_what_the_engine_says(
    bench: Bench,
    models: Mapping[str, Path],
    kind: str,
    counts: tuple[int, ...],
    extra: str,
) -> None:
    done = await load(bench, models[kind], counts, EXTRAS[extra])
    model = read_model(models[kind])
    wire = arrived(done)
    assert wire == said(done, models[kind], bench.ports)
    for (worker, device), parts in wire.items():
        name = f"RPC{device}[127.0.0.1:{bench.ports[worker]}]"
        total = sum(held.bytes for held in parts.values())
        assert abs(done.log.buffers[name, "model"] - total) < PADDING_BYTES
    seen = held_split(
        done.plan,
        done.placement,
        model,
        done.weights,
        ServerLog(done.log.buffers, done.log.offloaded),
    )
    words = measured_split(
        *(done.plan, done.placement, done.log.layer_devices),
        *(done.log.device_endpoints, done.log.buffers),
    )
    assert seen.layers == words.layers
    assert seen.mismatches == words.mismatches == ()
    whole: dict[int | str, int] = {each.index: each.bytes for each in model.layers}
    assert sum(run.last - run.first + 1 for run in seen.in_part) == sum(
        held.bytes < whole.get(layer, 0)
        for parts in wire.values()
        for layer, held in parts.items()
    )


async def test_experts_are_where_the_plan_has_them(
    bench: Bench, models: Mapping[str, Path]
) -> None:
    """From the head's CPU to a worker, between workers, within one, and to the head."""
    moved = (
        LayerRange("w1/D0", 0, 0),
        LayerRange("w0/D1", 2, 2),
        LayerRange("w0/D0", 3, 3),
        LayerRange("local/CPU", 6, 7),
    )
    done = await load(bench, models["moe"], (1, 2, 1, 5), (), moved)
    model = read_model(models["moe"])
    assert arrived(done) == said(done, models["moe"], bench.ports)
    log = ServerLog(done.log.buffers, done.log.offloaded)
    seen = held_split(done.plan, done.placement, model, done.weights, log)
    assert seen.mismatches == ()
    part = {(run.device, run.first, run.last) for run in seen.in_part}
    assert ("w1/D0", 0, 0) in part
    assert ("w1/D0", 6, 7) in part
    swapped = replace(done.plan, experts=(LayerRange("w0/D0", 5, 5), *moved))
    wrong = held_split(swapped, done.placement, model, done.weights, log)
    assert [one.partition(" got ")[0] for one in wrong.mismatches] == ["w1/D0", "w0/D0"]


async def test_what_a_worker_knows_by_its_hash_counts_too_and_a_draft_does_not(
    bench: Bench, models: Mapping[str, Path]
) -> None:
    """The head of this model does not cross the wire a second time."""
    crossed, held = [], []
    for _ in range(2):
        with bench.relays[1].stats() as stats:
            before = stats.snapshot()["bytes_up"]
        done = await load(bench, models["dense"], (0, 5, 0, 4), ())
        with bench.relays[1].stats() as stats:
            crossed.append(stats.snapshot()["bytes_up"] - before)
        held.append(arrived(done))
    assert held[0] == held[1] != {}
    assert min(crossed) < sum(each.bytes for each in held[1][1, 0].values())
    draft = ("-md", str(models["tied"]), "--spec-type", "draft-simple")
    drafted = await load(bench, models["dense"], (0, 5, 0, 4), draft)
    assert arrived(drafted) == held[0]
