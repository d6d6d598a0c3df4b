"""Layers for multi-token prediction: assigned like others, loaded in part or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.models.layers import read_model
from backends.split.device_memory import layer_bytes
from backends.split.flags import compile_split
from backends.split.layout import make_split
from backends.split.measured import ServerLog, held_split
from backends.state import LayerRange, MeasuredSplit, ModelInfo, Plan, WorkerSpec
from backends.state.links import DeviceWeights, Held, LayersHeld, WorkerWeights
from tests.unit.models.ggufs import F32, LLAMA, Tensors, llama_tensors, write_gguf

N_LAYER, NEXTN = 6, 5
NEXTN_TENSORS: Tensors = {
    f"blk.{NEXTN}.nextn.{name}.weight": (shape, F32)
    for name, shape in {
        "eh_proj": (128, 64),
        "enorm": (64,),
        "hnorm": (64,),
        "embed_tokens": (64, 32),
        "shared_head_head": (64, 32),
        "shared_head_norm": (64,),
    }.items()
}
DETOURS = ("-ot", r"blk\.2\.ffn.*=CPU")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelInfo:
    folder: Path = tmp_path_factory.mktemp("nextn")
    params = LLAMA | {"block_count": N_LAYER, "nextn_predict_layers": 1}
    tensors = llama_tensors(N_LAYER) | NEXTN_TENSORS
    return read_model(write_gguf(folder / "m.gguf", params, tensors, arch="glm4moe"))


def on_gpu(model: ModelInfo, loaded_bytes: int) -> MeasuredSplit:
    split = make_split(N_LAYER, ["local/CPU", "local/CUDA0"], [1, N_LAYER])
    plan = Plan(model=model.path, split=split, workers=())
    log = ServerLog({("CUDA0", "model"): loaded_bytes}, (N_LAYER, N_LAYER + 1))
    return held_split(plan, compile_split(plan, {}), model, {}, log)


def on_worker(
    model: ModelInfo, *runs: LayersHeld, extra: tuple[str, ...] = ()
) -> MeasuredSplit:
    """Three layers, the one that drafts and the output planned at a worker."""
    split = make_split(N_LAYER, ["local/CPU", "w/CPU"], [2, 5])
    worker = WorkerSpec(name="w")
    plan = Plan(model=model.path, split=split, workers=(worker,), extra_args=extra)
    output = Held(2, model.output_bytes)
    device = DeviceWeights(device=0, layers=runs, output=output, embedding=Held(0, 0))
    weights = {"w": WorkerWeights(complete=True, devices=(device,))}
    log = ServerLog({}, (5, N_LAYER + 1))
    return held_split(plan, compile_split(plan, {"w": "h:1"}), model, weights, log)


def test_the_header_tells_which_layers_draft(model: ModelInfo) -> None:
    assert model.n_layer_nextn == 1
    assert model.layers[NEXTN].bytes > model.layers[0].bytes


def test_the_heads_gpu_may_hold_it_in_part_or_not(model: ModelInfo) -> None:
    sizes = layer_bytes(model)
    without = sum(sizes[1:NEXTN]) + model.output_bytes
    half = without + sizes[NEXTN] // 2
    for loaded in (without, half, without + sizes[NEXTN]):
        assert on_gpu(model, loaded).mismatches == ()
    (less,) = on_gpu(model, without - sizes[1]).mismatches
    (more,) = on_gpu(model, without + sizes[NEXTN] + sizes[1]).mismatches
    assert "local/CUDA0 holds" in less
    assert "local/CUDA0 holds" in more


@pytest.mark.parametrize("extra", [(), DETOURS])
def test_a_worker_may_hold_it_in_part_or_not(
    model: ModelInfo, extra: tuple[str, ...]
) -> None:
    whole = LayersHeld(2, NEXTN - 1, 9, model.layers[2].bytes)
    some = LayersHeld(NEXTN, NEXTN, 3, model.layers[NEXTN].bytes // 3)
    for runs in ((whole,), (whole, some)):
        measured = on_worker(model, *runs, extra=extra)
        assert measured.mismatches == ()
        assert measured.in_part == ()
        assert measured.layers[-1] == LayerRange("w/CPU", 2, N_LAYER)


def test_another_layer_that_nobody_got_is_the_heads(model: ModelInfo) -> None:
    measured = on_worker(model, LayersHeld(2, 3, 9, model.layers[2].bytes))
    assert "w/CPU holds 2–3, 5 + output, planned 2–5 + output" in measured.mismatches
