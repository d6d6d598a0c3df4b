"""Splits: moves of boundaries, and the arguments that llama.cpp reads back."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.errors import PlanError
from backends.split.flags import (
    compile_split,
    engine_devices,
    engine_ranges,
    parse_split,
)
from backends.split.layout import (
    boundaries,
    counts,
    devices,
    even_counts,
    format_range,
    make_split,
    move_boundary,
    ranges,
    reorder,
    with_counts,
)
from backends.state import LayerRange, Plan, WorkerSpec


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Plans of 1…200 layers over 1…15 devices of workers and the head's.

    Workers have up to four devices each; some devices get no layers, the order of the
    split is any, the head's CPU first.
    """
    n_layer = draw(st.integers(1, 200))
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    workers = tuple(
        WorkerSpec(name=f"worker{i}", devices=tuple(f"GPU{j}" for j in range(size)))
        for i, size in enumerate(sizes, 1)
    )
    devices = [device for worker in workers for device in worker.device_ids]
    devices = draw(st.permutations([*devices[:14], "local/CUDA0"]))
    cuts = draw(
        st.lists(
            st.integers(0, n_layer + 1), min_size=len(devices), max_size=len(devices)
        )
    )
    edges = [0, *sorted(cuts), n_layer + 1]
    counts = [high - low for low, high in pairwise(edges)]
    split = make_split(n_layer, ["local/CPU", *devices], counts)
    return Plan(model="m.gguf", split=split, workers=workers)


def ends(plan: Plan) -> dict[str, str]:
    return {w.name: f"127.0.0.1:{50000 + i}" for i, w in enumerate(plan.workers)}


@given(plans())
def test_llama_cpp_reads_back_the_split(plan: Plan) -> None:
    placement = compile_split(plan, ends(plan))
    assert engine_ranges(plan, placement) == ranges(plan.split)
    assert sum(placement.tensor_split) == placement.n_gpu_layers


@given(plans())
def test_only_used_devices_are_named(plan: Plan) -> None:
    """Numbers are those of llama-server, which counts all devices of an endpoint."""
    placement = compile_split(plan, ends(plan))
    at = {endpoint: worker for worker, endpoint in ends(plan).items()}
    registered = [
        device
        for endpoint in placement.rpc_endpoints
        for worker in plan.workers
        if worker.name == at[endpoint]
        for device in worker.device_ids
    ]
    meant = [
        registered[int(name.removeprefix("RPC"))] if "RPC" in name else "local/CUDA0"
        for name in placement.device_names
    ]
    assert meant == [
        s.device for s in plan.split.shares if s.layers and s.device != "local/CPU"
    ]
    assert all(placement.tensor_split)


@pytest.mark.parametrize(
    ("n_layer", "n_gpu_layers", "tensor_split", "expected"),
    [
        (12, 99, (5, 8), [0] * 5 + [1] * 8),
        (12, 10, (4, 6), [-1] * 3 + [0] * 4 + [1] * 6),
        # Fractions round: only integers that sum up are ever given.
        (47, 48, (0.82, 0.18), [0] * 40 + [1] * 8),
    ],
)
def test_the_rule_of_llama_cpp(
    n_layer: int,
    n_gpu_layers: int,
    tensor_split: tuple[float, ...],
    expected: list[int],
) -> None:
    assert engine_devices(n_layer, n_gpu_layers, tensor_split) == expected


@pytest.mark.parametrize(
    ("shares", "endpoints", "names"),
    [
        ({"worker2/CPU": 6, "worker1/CPU": 7}, ("h:1", "h:2"), ("RPC1", "RPC0")),
        ({"worker1/CPU": 0, "worker2/CPU": 13}, ("h:2",), ("RPC0",)),
        ({"worker1/CPU": 6, "local/CUDA0": 7}, ("h:1",), ("RPC0", "CUDA0")),
    ],
)
def test_names_and_endpoints_of_devices(
    shares: dict[str, int], endpoints: tuple[str, ...], names: tuple[str, ...]
) -> None:
    workers = (WorkerSpec(name="worker1"), WorkerSpec(name="worker2"))
    split = make_split(12, [*shares], [*shares.values()])
    plan = Plan(model="m", split=split, workers=workers)
    placement = compile_split(plan, {"worker1": "h:1", "worker2": "h:2"})
    assert (placement.rpc_endpoints, placement.device_names) == (endpoints, names)


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
            {"worker1": "h:1"},
        )


def test_an_unknown_device_is_named() -> None:
    split = make_split(12, ["nuc/CPU"], [13])
    with pytest.raises(PlanError, match="nuc/CPU"):
        compile_split(Plan(model="m", split=split), {})


def test_unused_devices_of_a_used_endpoint_count() -> None:
    """The second worker's only device comes after both of the first's."""
    workers = (
        WorkerSpec(name="box", peer="box", devices=("RPC0", "RPC1")),
        WorkerSpec(name="mini", peer="mini", devices=("MTL0",)),
    )
    split = make_split(12, ["box/RPC1", "box/RPC0", "mini/MTL0"], [6, 0, 7])
    plan = Plan(model="m", split=split, workers=workers)
    placement = compile_split(plan, {"box": "h:1", "mini": "h:2"})
    assert placement.device_names == ("RPC1", "RPC2")
    assert [(d.endpoint, d.index) for d in placement.devices] == [
        ("h:1", 1),
        ("h:2", 0),
    ]


def test_a_worker_is_reached_at_its_own_endpoint_or_ours() -> None:
    worker = WorkerSpec(name="box", peer="box", devices=("RPC",), endpoint="10.0.0.2:5")
    plan = Plan(model="m", split=make_split(2, ["box/RPC"], [3]), workers=(worker,))
    assert compile_split(plan, {}).rpc_endpoints == ("10.0.0.2:5",)
    assert compile_split(plan, {"box": "h:1"}).rpc_endpoints == ("h:1",)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("6,7", (6, 7)),
        ("13", (13,)),
        (" 4, 4 ,5", (4, 4, 5)),
        ("studio/MTL0=38, mini/MTL0 = 10", {"studio/MTL0": 38, "mini/MTL0": 10}),
    ],
)
def test_a_split_by_counts_or_by_name(
    text: str, parsed: tuple[int, ...] | dict[str, int]
) -> None:
    assert parse_split(text) == parsed


@pytest.mark.parametrize(
    "text",
    [
        *("", "6,", "six", "6.5,6.5", "6;7", "-1,14", "1_0,3", "=3", "a/CPU=3,4"),
        *("a/CPU=1,a/CPU=2", "a/CPU=x", "a/CPU=", "a/CPU=-1"),
    ],
)
def test_what_is_not_a_split_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match="not a split"):
        parse_split(text)


THREE = make_split(12, ["local/CPU", "a/CPU", "b/CPU"], [0, 6, 7])


def test_more_devices_than_llama_cpp_takes_are_refused_with_the_way_out() -> None:
    names = tuple(f"GPU{number}" for number in range(16))
    worker = WorkerSpec(name="a", devices=names)
    for used in (15, 16):
        counts = [int(number < used) for number in range(16)]
        split = make_split(14 + used - 15, worker.device_ids, counts)
        plan = Plan(model="m.gguf", split=split, workers=(worker,))
        if used == 15:
            compile_split(plan, {})
        else:
            with pytest.raises(PlanError, match=r"uses 16 devices.* takes 15.* --best"):
                compile_split(plan, {})


def test_ranges_skip_empty_devices() -> None:
    assert ranges(THREE) == (LayerRange("a/CPU", 0, 5), LayerRange("b/CPU", 6, 12))
    assert boundaries(THREE) == (0, 6)


@given(st.integers(0, 1), st.integers(-50, 50))
def test_a_boundary_stays_between_its_neighbours(index: int, position: int) -> None:
    moved = move_boundary(THREE, index, position)
    assert sum(counts(moved)) == 13
    assert min(counts(moved)) >= 0
    other = 1 - index
    assert boundaries(moved)[other] == boundaries(THREE)[other]


def test_a_boundary_goes_where_it_is_put() -> None:
    assert counts(move_boundary(THREE, 1, 9)) == (0, 9, 4)
    assert counts(move_boundary(THREE, 0, 2)) == (2, 4, 7)


def test_reordering_takes_the_layers_along() -> None:
    swapped = reorder(THREE, 1, 1)
    assert devices(swapped) == ("local/CPU", "b/CPU", "a/CPU")
    assert counts(swapped) == (0, 7, 6)


@pytest.mark.parametrize(("index", "by"), [(0, 1), (1, -1), (2, 1), (9, 1)])
def test_the_heads_cpu_stays_first(index: int, by: int) -> None:
    assert reorder(THREE, index, by) == THREE


@pytest.mark.parametrize(
    ("names", "wrong", "message"),
    [
        (["a", "b"], [6, 6], "sums to 12"),
        (["a", "b"], [6], "1 share for 2 devices"),
        (["a"], [6, 7], "2 shares for 1 device[.]"),
        (["a", "b"], [-1, 14], "negative"),
        (["a", "a"], [6, 7], "twice"),
    ],
)
def test_bad_splits_are_refused(
    names: list[str], wrong: list[int], message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        make_split(12, names, wrong)
    with pytest.raises(PlanError):
        with_counts(THREE, [1, 1, 1])


@given(st.integers(1, 200), st.integers(1, 16))
def test_even_counts_are_even(n_layer: int, n_devices: int) -> None:
    dealt = even_counts(n_layer, n_devices)
    assert sum(dealt) == n_layer + 1
    assert max(dealt) - min(dealt) <= 1


@pytest.mark.parametrize(
    ("layers", "text"),
    [((6, 12), "6–11 + output"), ((12, 12), "output"), ((3, 3), "3"), ((0, 5), "0–5")],
)
def test_ranges_read_well(layers: tuple[int, int], text: str) -> None:
    assert format_range(LayerRange("a", *layers), 12) == text
