"""What a split compiles to is what llama.cpp's own rule makes of it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.errors import PlanError
from backends.split.flags import (
    compile_split,
    engine_devices,
    engine_ranges,
    parse_counts,
)
from backends.split.layout import make_split, ranges
from backends.state import Plan, WorkerSpec


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Plans of 1…200 layers over 1…16 workers, some without layers, some on the CPU."""
    n_layer = draw(st.integers(1, 200))
    n_workers = draw(st.integers(1, 16))
    cuts = draw(
        st.lists(st.integers(0, n_layer + 1), min_size=n_workers, max_size=n_workers)
    )
    edges = [0, *sorted(cuts), n_layer + 1]
    counts = [high - low for low, high in pairwise(edges)]
    workers = tuple(WorkerSpec(name=f"worker{i}") for i in range(1, n_workers + 1))
    devices = ["local/CPU", *(f"{worker.name}/CPU" for worker in workers)]
    order = draw(st.permutations(range(1, n_workers + 1)))
    devices = [devices[0], *(devices[i] for i in order)]
    return Plan(
        model="m.gguf", split=make_split(n_layer, devices, counts), workers=workers
    )


def ports(plan: Plan) -> dict[str, int]:
    return {worker.name: 50000 + i for i, worker in enumerate(plan.workers)}


@settings(max_examples=600, deadline=None)
@given(plans())
def test_llama_cpp_reads_back_the_split(plan: Plan) -> None:
    """Compile, then apply llama.cpp's float32 rule: the very same layers come back."""
    placement = compile_split(plan, ports(plan))
    assert engine_ranges(plan, placement) == ranges(plan.split)
    assert sum(placement.tensor_split) == placement.n_gpu_layers


@settings(max_examples=200, deadline=None)
@given(plans())
def test_only_used_devices_are_named(plan: Plan) -> None:
    """Every RPC name refers to an endpoint that is given, each exactly once."""
    placement = compile_split(plan, ports(plan))
    wanted = sorted(f"RPC{i}" for i in range(len(placement.rpc_endpoints)))
    assert sorted(placement.device_names) == wanted
    assert all(placement.tensor_split)


def test_the_example_of_the_reference() -> None:
    """12 layers as 5,8: layers 0–4 and 5–11 with the output."""
    assert engine_devices(12, 99, (5, 8)) == [0] * 5 + [1] * 8


def test_layers_stay_on_the_cpu_from_the_start() -> None:
    assert engine_devices(12, 10, (4, 6)) == [-1] * 3 + [0] * 4 + [1] * 6


def test_proportions_are_not_counts() -> None:
    """Fractions round: this is why only integers that sum up are ever given."""
    assert engine_devices(47, 48, (0.82, 0.18)).count(0) == 40


def test_devices_out_of_worker_order_keep_their_endpoint() -> None:
    workers = (WorkerSpec(name="worker1"), WorkerSpec(name="worker2"))
    split = make_split(12, ["worker2/CPU", "worker1/CPU"], [6, 7])
    placement = compile_split(
        Plan(model="m", split=split, workers=workers), {"worker1": 1, "worker2": 2}
    )
    assert placement.rpc_endpoints == ("127.0.0.1:1", "127.0.0.1:2")
    assert placement.device_names == ("RPC1", "RPC0")


def test_a_worker_without_layers_is_left_out() -> None:
    workers = (WorkerSpec(name="worker1"), WorkerSpec(name="worker2"))
    split = make_split(12, ["worker1/CPU", "worker2/CPU"], [0, 13])
    placement = compile_split(
        Plan(model="m", split=split, workers=workers), {"worker1": 1, "worker2": 2}
    )
    assert placement.rpc_endpoints == ("127.0.0.1:2",)
    assert placement.device_names == ("RPC0",)


def test_a_gpu_of_the_head_keeps_its_name() -> None:
    split = make_split(12, ["worker1/CPU", "local/CUDA0"], [6, 7])
    plan = Plan(model="m", split=split, workers=(WorkerSpec(name="worker1"),))
    assert compile_split(plan, {"worker1": 1}).device_names == ("RPC0", "CUDA0")


def test_everything_on_the_head_needs_no_device() -> None:
    plan = Plan(model="m", split=make_split(12, ["local/CPU"], [13]))
    placement = compile_split(plan, {})
    assert (placement.n_gpu_layers, placement.device_names) == (0, ())
    assert engine_ranges(plan, placement) == ranges(plan.split)


def test_the_heads_cpu_must_lead() -> None:
    split = make_split(12, ["worker1/CPU", "local/CPU"], [6, 7])
    with pytest.raises(PlanError, match="not first"):
        compile_split(
            Plan(model="m", split=split, workers=(WorkerSpec(name="worker1"),)),
            {"worker1": 1},
        )


def test_an_unknown_device_is_named() -> None:
    split = make_split(12, ["nuc/CPU"], [13])
    with pytest.raises(PlanError, match="nuc/CPU"):
        compile_split(Plan(model="m", split=split), {})


@pytest.mark.parametrize(
    ("text", "counts"), [("6,7", (6, 7)), ("13", (13,)), (" 4, 4 ,5", (4, 4, 5))]
)
def test_counts_are_parsed(text: str, counts: tuple[int, ...]) -> None:
    assert parse_counts(text) == counts


@pytest.mark.parametrize("text", ["", "6,", "six", "6.5,6.5", "6;7"])
def test_what_is_not_a_split_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match="not a split"):
        parse_counts(text)
