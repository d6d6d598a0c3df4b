"""What the relays saw, held against the plan."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backends.split.flags import compile_split
from backends.split.layout import make_split
from backends.split.measured import ServerLog, format_in_part, held_split
from backends.state import Layer, LayerRange, MeasuredSplit, ModelInfo, Plan, WorkerSpec
from backends.state.links import DeviceWeights, Held, LayersHeld, WorkerWeights

LAYER_BYTES, N_LAYER = 1000, 12
MODEL = ModelInfo(
    path="m.gguf",
    arch="llama",
    n_layer=N_LAYER,
    n_embd=1,
    n_vocab=1,
    layers=tuple(Layer(index=i, bytes=LAYER_BYTES) for i in range(N_LAYER)),
    output_bytes=600,
    embedding_bytes=500,
)
PLAN = Plan(
    model="m.gguf",
    split=make_split(12, ["local/CPU", "worker2/CPU", "worker1/CPU"], [2, 5, 6]),
    workers=(WorkerSpec(name="worker1"), WorkerSpec(name="worker2")),
)
AS_PLANNED = {"worker1": [(7, 11)], "worker2": [(2, 6)]}
OFFLOADED = ServerLog({}, (11, 13))


def weights(
    *runs: tuple[int, int],
    device: int = 0,
    each_bytes: int = LAYER_BYTES,
    output: int = 0,
    embedding: int = 0,
) -> DeviceWeights:
    return DeviceWeights(
        device=device,
        layers=tuple(LayersHeld(first, last, 9, each_bytes) for first, last in runs),
        output=Held(1, output),
        embedding=Held(1, embedding),
    )


def seen(*devices: DeviceWeights) -> WorkerWeights:
    return WorkerWeights(complete=True, devices=devices)


def held(
    worker1: WorkerWeights | None,
    worker2: WorkerWeights | None,
    log: ServerLog = OFFLOADED,
    **changes: Any,
) -> MeasuredSplit:
    plan = msgspec.structs.replace(PLAN, **changes)
    placement = compile_split(plan, {"worker1": "h:1", "worker2": "h:2"})
    found = {"worker1": worker1, "worker2": worker2}
    return held_split(plan, placement, MODEL, found, log)


OUTPUT_TOO = seen(weights((7, 11), output=600))
SECOND = seen(weights((2, 6)))


def test_agreement_has_no_words() -> None:
    measured = held(OUTPUT_TOO, SECOND)
    assert measured.mismatches == ()
    assert measured.in_part == ()
    assert measured.layers == (
        LayerRange("local/CPU", 0, 1),
        LayerRange("worker2/CPU", 2, 6),
        LayerRange("worker1/CPU", 7, 12),
    )


def test_a_tied_output_is_the_embedding_at_a_worker() -> None:
    tied = msgspec.structs.replace(MODEL, tied_output=True)
    placement = compile_split(PLAN, {"worker1": "h:1", "worker2": "h:2"})
    found = {"worker1": seen(weights((7, 11), embedding=500)), "worker2": SECOND}
    assert held_split(PLAN, placement, tied, found, OFFLOADED).mismatches == ()


def test_a_layer_at_another_worker_is_named() -> None:
    measured = held(seen(weights((6, 11), output=600)), seen(weights((2, 5))))
    assert measured.mismatches == (
        "worker2/CPU holds 2–5, planned 2–6",
        "worker1/CPU holds 6–11 + output, planned 7–11 + output",
    )


def test_a_layer_nobody_got_is_the_heads() -> None:
    measured = held(OUTPUT_TOO, seen(weights((3, 6))))
    assert measured.mismatches == (
        "local/CPU holds 0–2, planned 0–1",
        "worker2/CPU holds 3–6, planned 2–6",
    )


def test_a_worker_that_got_nothing_is_named() -> None:
    measured = held(seen(), SECOND)
    assert "worker1/CPU holds nothing, planned 7–11 + output" in measured.mismatches


def test_a_worker_that_got_more_than_its_layers_is_named() -> None:
    measured = held(OUTPUT_TOO, seen(weights((2, 7))))
    assert measured.mismatches == ("worker2/CPU got tensors of 7 too",)


@pytest.mark.parametrize("unread", [None, WorkerWeights(complete=False)])
def test_what_a_relay_did_not_see_is_not_claimed(unread: WorkerWeights | None) -> None:
    measured = held(unread, SECOND)
    assert measured.layers == ()
    assert measured.mismatches == (
        "The relay of worker1 could not follow what it got, so its layers were not "
        "compared",
    )


def test_tensors_put_elsewhere_by_request_are_no_difference() -> None:
    """``-ot`` leaves the attention of layers 4 and 8 at their workers."""
    measured = held(
        seen(weights((7, 7), (9, 11), output=600), weights((8, 8), each_bytes=400)),
        seen(weights((2, 3), (5, 6)), weights((4, 4), each_bytes=400)),
        extra_args=("-ot", r"blk\.(4|8)\.ffn.*=CPU"),
    )
    assert measured.mismatches == ()
    parts = (LayerRange("worker2/CPU", 4, 4), LayerRange("worker1/CPU", 8, 8))
    assert measured.in_part == parts
    assert format_in_part(parts, N_LAYER) == (
        "worker2/CPU holds 4 in part · worker1/CPU holds 8 in part"
    )


def test_a_layer_of_the_head_with_some_tensors_elsewhere() -> None:
    """``-ot`` puts a part of layer 1 to a worker, and all of layer 2 to the head."""
    measured = held(
        OUTPUT_TOO,
        seen(weights((3, 6)), weights((1, 1), each_bytes=700)),
        extra_args=("-ot", "…"),
    )
    assert measured.layers[0] == LayerRange("local/CPU", 0, 2)
    assert measured.in_part == (LayerRange("worker2/CPU", 1, 1),)


def test_the_number_of_a_device_is_the_wires() -> None:
    """Of a server with two devices the second got what was planned for the first."""
    box = WorkerSpec(name="box", peer="box", devices=("RPC0", "RPC1"))
    split = make_split(12, ["box/RPC0", "box/RPC1"], [7, 6])
    plan = Plan(model="m", split=split, workers=(box,))
    placement = compile_split(plan, {"box": "h:1"})
    log = ServerLog({}, (13, 13))
    first, second = weights((0, 6)), weights((7, 11), device=1, output=600)
    right = held_split(plan, placement, MODEL, {"box": seen(first, second)}, log)
    assert right.mismatches == ()
    second = msgspec.structs.replace(second, device=2)
    wrong = held_split(plan, placement, MODEL, {"box": seen(first, second)}, log)
    assert "box/device 2 holds 7–11 + output, planned nothing" in wrong.mismatches


def test_fewer_layers_offloaded_than_planned() -> None:
    measured = held(OUTPUT_TOO, SECOND, ServerLog({}, (9, 13)))
    assert measured.mismatches == ("llama-server offloaded 9 of 13 layers, planned 11",)


GPU_PLAN = Plan(
    model="m", split=make_split(12, ["local/CPU", "local/CUDA0"], [3, 10]), workers=()
)


@pytest.mark.parametrize(
    ("buffer", "size", "sentence"),
    [
        ("CUDA0", 9 * LAYER_BYTES + 600, ""),
        ("CUDA0", 9 * LAYER_BYTES + 700, ""),
        ("CUDA0_Mapped", 12 * LAYER_BYTES, ""),
        ("CUDA0", 10 * LAYER_BYTES + 600, "holds 10.4 KiB of weights, planned 9.4 KiB"),
        ("CUDA0", 8 * LAYER_BYTES + 600, "holds 8.4 KiB of weights, planned 9.4 KiB"),
        ("CUDA1", 9 * LAYER_BYTES, "local/CUDA0 holds 0 B of weights"),
    ],
)
def test_the_bytes_of_the_heads_own_gpu(buffer: str, size: int, sentence: str) -> None:
    log = ServerLog({(buffer, "model"): size, ("CUDA0", "kv"): 5}, (10, 13))
    placement = compile_split(GPU_PLAN, {})
    measured = held_split(GPU_PLAN, placement, MODEL, {}, log)
    assert measured.layers == (
        LayerRange("local/CPU", 0, 2),
        LayerRange("local/CUDA0", 3, 12),
    )
    assert bool(measured.mismatches) == bool(sentence)
    assert sentence in " ".join(measured.mismatches)
