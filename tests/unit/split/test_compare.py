"""The log's split held against the plan."""

from __future__ import annotations

from backends.split.compare import measured_split
from backends.split.flags import compile_split
from backends.split.layout import make_split
from backends.state import DeviceBuffers, LayerRange, Plan, WorkerSpec

PLAN = Plan(
    model="m.gguf",
    split=make_split(12, ["local/CPU", "worker2/CPU", "worker1/CPU"], [2, 5, 6]),
    workers=(WorkerSpec(name="worker1"), WorkerSpec(name="worker2")),
)
PLACEMENT = compile_split(PLAN, {"worker1": 1, "worker2": 2})
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
    """A full disk cuts the log short: nothing is claimed then."""
    measured = measured_split(PLAN, PLACEMENT, {})
    assert measured.layers == ()
    assert "nothing was compared" in measured.mismatches[0]


def test_a_layer_missing_from_the_log_is_named() -> None:
    partial = {layer: name for layer, name in AS_PLANNED.items() if layer != 12}
    measured = measured_split(PLAN, PLACEMENT, partial)
    assert any("local/?" in sentence for sentence in measured.mismatches)


def test_buffers_get_our_names() -> None:
    buffers = [DeviceBuffers(device="RPC1", model_bytes=5), DeviceBuffers(device="CPU")]
    measured = measured_split(PLAN, PLACEMENT, AS_PLANNED, buffers)
    assert [b.device for b in measured.buffers] == ["worker2/CPU", "local/CPU"]
