"""The log's split held against the plan."""

from __future__ import annotations

from backends.split.flags import compile_split
from backends.split.layout import make_split
from backends.split.measured import measured_split
from backends.state import DeviceMemory, LayerRange, MemorySource, Plan, WorkerSpec

PLAN = Plan(
    model="m.gguf",
    split=make_split(12, ["local/CPU", "worker2/CPU", "worker1/CPU"], [2, 5, 6]),
    workers=(WorkerSpec(name="worker1"), WorkerSpec(name="worker2")),
)
PLACEMENT = compile_split(PLAN, {"worker1": "h:1", "worker2": "h:2"})
AS_PLANNED = {i: "CPU" if i < 2 else "RPC1" if i < 7 else "RPC0" for i in range(13)}


def test_agreement_has_no_words() -> None:
    measured = measured_split(PLAN, PLACEMENT, AS_PLANNED)
    assert measured.mismatches == ()
    assert measured.layers == (
        LayerRange("local/CPU", 0, 1),
        LayerRange("worker2/CPU", 2, 6),
        LayerRange("worker1/CPU", 7, 12),
    )


def test_a_layer_elsewhere_is_named() -> None:
    measured = measured_split(PLAN, PLACEMENT, {**AS_PLANNED, 6: "RPC0"})
    assert measured.mismatches == (
        "worker2/CPU holds 2–5, planned 2–6",
        "worker1/CPU holds 6–11 + output, planned 7–11 + output",
    )


def test_a_log_without_layers_is_no_agreement() -> None:
    measured = measured_split(PLAN, PLACEMENT, {})
    assert measured.layers == ()
    assert "nothing was compared" in measured.mismatches[0]


def test_a_layer_missing_from_the_log_is_named() -> None:
    partial = {layer: name for layer, name in AS_PLANNED.items() if layer != 12}
    measured = measured_split(PLAN, PLACEMENT, partial)
    assert any("local/?" in sentence for sentence in measured.mismatches)


def held(device: str, model_bytes: int, kv_bytes: int = 0) -> DeviceMemory:
    return DeviceMemory(
        device=device,
        model_bytes=model_bytes,
        kv_bytes=kv_bytes,
        source=MemorySource.MEASURED,
    )


def test_buffers_get_our_names() -> None:
    """Both workers' buffers are called RPC0: the endpoint tells them apart."""
    buffers = {
        ("RPC0[h:2]", "model"): 5,
        ("RPC0[h:2]", "kv"): 1,
        ("RPC0[h:1]", "model"): 6,
        ("CPU_Mapped", "model"): 7,
        ("CPU", "kv"): 2,
    }
    measured = measured_split(PLAN, PLACEMENT, AS_PLANNED, {}, buffers)
    assert measured.mismatches == ()
    assert measured.buffers == (
        held("worker2/CPU", 5, 1),
        held("worker1/CPU", 6),
        held("local/CPU", 7, 2),
    )


def test_the_buffers_of_the_heads_own_gpu() -> None:
    plan = Plan(model="m", split=make_split(1, ["local/CPU", "local/MTL0"], [0, 2]))
    placement = compile_split(plan, {})
    buffers = {("MTL0_Mapped", "model"): 5, ("MTL0", "kv"): 1, ("CPU", "model"): 3}
    measured = measured_split(plan, placement, {0: "MTL0", 1: "MTL0"}, {}, buffers)
    assert measured.mismatches == ()
    assert [b.device for b in measured.buffers] == ["local/MTL0", "local/CPU"]


def test_a_device_at_another_endpoint_is_named() -> None:
    """The same numbers, but what the log says of them is not what we counted."""
    swapped = {"RPC0": "h:2", "RPC1": "h:1"}
    measured = measured_split(PLAN, PLACEMENT, AS_PLANNED, swapped)
    assert measured.mismatches[0] == (
        "llama-server's RPC1 is at h:1, planned as worker2/CPU at h:2"
    )
    assert len(measured.mismatches) > 2
    right = measured_split(PLAN, PLACEMENT, AS_PLANNED, {"RPC0": "h:1", "RPC1": "h:2"})
    assert right.mismatches == ()


TWO = (
    WorkerSpec(name="box", peer="box", devices=("RPC0", "RPC1")),
    WorkerSpec(name="mini", peer="mini", devices=("MTL0",)),
)


def test_an_unknown_device_of_a_server_is_found_by_its_endpoint() -> None:
    """The server has three devices where we know of two: the numbers have moved."""
    split = make_split(3, ["box/RPC0", "box/RPC1", "mini/MTL0"], [1, 1, 2])
    plan = Plan(model="m", split=split, workers=TWO)
    placement = compile_split(plan, {"box": "h:1", "mini": "h:2"})
    log = {0: "RPC0", 1: "RPC1", 2: "RPC2", 3: "RPC2"}
    known = {"RPC0": "h:1", "RPC1": "h:1", "RPC2": "h:1"}
    buffers = {(f"RPC{i}[h:1]", "model"): 5 for i in range(3)}
    measured = measured_split(plan, placement, log, known, buffers)
    assert measured.mismatches == (
        "llama-server's RPC2 is at h:1, planned as mini/MTL0 at h:2",
        "mini/MTL0 holds nothing, planned 2 + output",
        "box/RPC2 holds 2 + output, planned nothing",
        "box/device 2 got weights, planned none",
        "mini/MTL0 got no weights",
    )
