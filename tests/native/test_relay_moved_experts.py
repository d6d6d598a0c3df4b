"""Experts on another device than their layers: trips and bytes are those of plans."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from backends.models.layers import read_model
from backends.split.calibration import HEAD_PRIOR
from backends.split.cost import KINDS, forecast
from backends.split.experts import check_experts
from backends.split.flags import compile_split
from backends.split.layout import make_split
from backends.state import (
    ClusterSpeeds,
    DeviceSpeed,
    LayerRange,
    LinkSpeed,
    Plan,
    WorkerSpec,
)
from tests.kit.models import write_llama
from tests.native.relaying import Relay, running
from tests.native.stock import (
    SHORT_PROMPT,
    Cluster,
    engine,
    free_port,
    start,
    start_worker,
    wait_until_up,
)
from tests.native.test_relay_tensor_split import TICK_S

pytestmark = pytest.mark.engine

WAITED = ("GET_TENSOR", "COPY_TENSOR")
"""The commands of a token whose reply is waited for."""
CPU, FIRST, SECOND, THIRD = "local/CPU", "a/D0", "a/D1", "b/D0"
SPREAD, AT_HEAD = (0, 3, 2, 4), (3, 2, 1, 3)


TO_WORKER = (SPREAD, LayerRange(THIRD, 0, 1))
TO_HEAD = (SPREAD, LayerRange(CPU, 0, 1))
WITHIN = (SPREAD, LayerRange(SECOND, 0, 1))
FROM_HEAD = (AT_HEAD, LayerRange(FIRST, 0, 1))


Unmoved = dict[tuple[str, tuple[int, ...]], list[dict[str, float]]]
"""What is measured without moved experts, by engine and split."""


@pytest.fixture(scope="module")
def unmoved() -> Unmoved:
    return {}


@pytest.mark.parametrize(
    ("version", "counts", "moved"),
    [
        *(("8.0.0", *one) for one in (TO_WORKER, TO_HEAD)),
        *(
            pytest.param(*one, marks=pytest.mark.trial)
            for one in (
                *(("8.0.0", *WITHIN), ("8.0.0", *FROM_HEAD)),
                *(("7.0.0", *TO_WORKER), ("7.0.0", *TO_HEAD)),
            )
        ),
    ],
)
def test_what_is_handed_over_is_what_plans_are_told(
    relay: Path,
    tmp_path: Path,
    version: str,
    counts: tuple[int, ...],
    moved: LayerRange,
    unmoved: Unmoved,
) -> None:
    """A token is what a longer answer has more of; so the prompt does not count."""
    file = tmp_path / "m.gguf"
    write_llama(file, n_layer=8, n_embd=256, n_ff=512, n_expert=4, n_vocab=2000)
    plan = Plan(
        model=str(file),
        split=make_split(8, [CPU, FIRST, SECOND, THIRD], counts),
        workers=(
            WorkerSpec(name="a", peer="a", devices=("D0", "D1")),
            WorkerSpec(name="b", peer="b", devices=("D0",)),
        ),
        experts=(moved,),
    )
    model = read_model(file)
    check_experts(plan, model)
    speeds = replace(SPEEDS, rpc_protocol=version)
    told = forecast(model, plan, speeds)
    plain = forecast(model, replace(plan, experts=()), speeds)
    more = measured(relay, tmp_path, version, plan)
    if (version, counts) not in unmoved:
        plain_plan = replace(plan, experts=())
        unmoved[version, counts] = measured(relay, tmp_path, version, plain_plan)
    less = unmoved[version, counts]
    for part, base, one, two in zip(
        told.parts[1:], plain.parts[1:], more, less, strict=True
    ):
        assert one["trips"] - two["trips"] == part.trips - base.trips, part.name
        added = part.bytes_up + part.bytes_down - base.bytes_up - base.bytes_down
        # Graphs of models differ.
        assert one["bytes"] - two["bytes"] == pytest.approx(added, rel=0.4, abs=2000)


SPEEDS = ClusterSpeeds(
    head=DeviceSpeed(device="head", ms=HEAD_PRIOR.ms, covariance=(0.0,) * KINDS**2),
    links=(LinkSpeed(worker="a"), LinkSpeed(worker="b")),
)


def measured(
    relay: Path, folder: Path, version: str, plan: Plan
) -> list[dict[str, float]]:
    """Trips and bytes of a token at each worker."""
    with ExitStack() as stack:
        relays = []
        for worker in plan.workers:
            log = folder / f"{worker.name}.log"
            devices = ",".join("CPU" for _ in worker.devices)
            port = start_worker(stack, engine(version), log, "-d", devices)
            stats = folder / f"{worker.name}.sock"
            relays.append(stack.enter_context(running(relay, port, stats)))
        ends = zip(plan.workers, relays, strict=True)
        placed = compile_split(plan, {w.name: f"127.0.0.1:{r.port}" for w, r in ends})
        port = free_port()
        argv = [
            *(str(engine(version) / "llama-server"), "-m", plan.model, "-c", "512"),
            *("--rpc", ",".join(placed.rpc_endpoints)),
            *("--device", ",".join(placed.device_names)),
            *("-ngl", str(placed.n_gpu_layers)),
            *("-ts", ",".join(map(str, placed.tensor_split))),
            *placed.overrides,
            *("-fit", "off", "-np", "1", "-t", "1", "--no-repack"),
        ]
        process = start(stack, [*argv, "--port", str(port)], folder / "server.log")
        cluster = Cluster(f"http://127.0.0.1:{port}", relays)
        wait_until_up(cluster.url, process)
        cluster.complete(SHORT_PROMPT, 2)
        start_at = counted(relays)
        cluster.complete(SHORT_PROMPT, 2)
        few = counted(relays)
        cluster.complete(SHORT_PROMPT, 10)
        many = counted(relays)
        return [
            {name: (z[name] - 2 * b[name] + a[name]) / 8 for name in z}
            for a, b, z in zip(start_at, few, many, strict=True)
        ]


def counted(relays: list[Relay]) -> list[dict[str, float]]:
    """What each has counted, once all of an answer is."""
    before, now = list[dict[str, float]](), [told(one) for one in relays]
    while now != before:
        time.sleep(TICK_S)
        before, now = now, [told(one) for one in relays]
    return now


def told(relay: Relay) -> dict[str, float]:
    with relay.stats() as stats:
        seen: dict[str, Any] = stats.snapshot()
    known = seen["commands"]
    return {
        "trips": sum(known.get(name, {"count": 0})["count"] for name in WAITED),
        "bytes": seen["bytes_up"] + seen["bytes_down"],
    }
