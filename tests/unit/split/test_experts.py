"""Experts on other devices than their layers: arguments, checks, and what arrived."""

from __future__ import annotations

import re

import gguf
import pytest
from msgspec.structs import replace

from backends.errors import PlanError
from backends.models.layers import group_of
from backends.split.experts import check_experts, misplaced, places_text, tensor_pattern
from backends.split.flags import compile_split
from backends.split.layout import make_split
from backends.state import Layer, LayerBytes, LayerRange, ModelInfo, Plan, WorkerSpec

MODEL = ModelInfo(
    path="m.gguf",
    arch="qwen3moe",
    n_layer=12,
    n_embd=64,
    n_vocab=512,
    n_expert=8,
    n_expert_used=2,
    layers=tuple(
        Layer(index=i, bytes=1000, groups=LayerBytes(experts=700 if i else 0))
        for i in range(12)
    ),
)
PLAN = Plan(
    model="m.gguf",
    split=make_split(12, ["local/CPU", "a/CUDA0", "b/CUDA0"], [0, 6, 7]),
    workers=(
        WorkerSpec(name="a", peer="a", devices=("CUDA0",)),
        WorkerSpec(name="b", peer="b", devices=("CUDA0",)),
    ),
)
STEMS = sorted(
    {name.partition("blk.{bid}.")[2] for name in gguf.TENSOR_NAMES.values()} - {""}
)


def test_a_pattern_means_the_experts_of_its_layers_and_nothing_else() -> None:
    """Every tensor name that GGUF knows, of every kind."""
    pattern = re.compile(tensor_pattern(LayerRange("a/CUDA0", 1, 11)))
    kinds = ("weight", "bias", "scale")
    names = [f"{stem}.{kind}" for stem in STEMS for kind in kinds]
    experts = [name for name in names if group_of(name) == "experts"]
    assert "ffn_gate_up_exps.weight" in experts
    assert len(experts) >= 9
    for name in names:
        for layer in (0, 1, 11, 12, 111):
            found = pattern.search(f"blk.{layer}.{name}")
            assert bool(found) == (layer in (1, 11) and name in experts), name
    assert not pattern.search("output.weight")


def test_they_become_one_argument_with_each_devices_buffer() -> None:
    plan = replace(
        PLAN, experts=(LayerRange("local/CPU", 1, 2), LayerRange("b/CUDA0", 4, 4))
    )
    placement = compile_split(plan, {"a": "10.0.0.1:5", "b": "10.0.0.2:6"})
    option, value = placement.overrides
    assert option == "-ot"
    first, second = value.split(",")
    assert first == tensor_pattern(plan.experts[0]) + "=CPU"
    assert second == tensor_pattern(plan.experts[1]) + "=RPC0[10.0.0.2:6]"
    assert compile_split(PLAN, {}).overrides == ()
    assert places_text(plan.experts) == "1–2 on local/CPU, 4 on b/CUDA0"
    assert places_text(PLAN.experts) == ""


@pytest.mark.parametrize(
    ("runs", "says"),
    [
        ((LayerRange("b/CUDA0", 0, 3),), "Not all of the layers 0–3 have experts"),
        ((LayerRange("b/CUDA0", 3, 12),), "layers 3 to 12, and the model has 12"),
        ((LayerRange("b/CUDA0", 4, 3),), "layers 4 to 3"),
        ((LayerRange("c/CUDA0", 3, 3),), "c/CUDA0 has no layers"),
        (
            (LayerRange("b/CUDA0", 1, 3), LayerRange("local/CPU", 3, 3)),
            "layers 3 twice",
        ),
    ],
)
def test_what_means_no_tensor_or_no_device_is_refused(
    runs: tuple[LayerRange, ...], says: str
) -> None:
    with pytest.raises(PlanError, match=says):
        check_experts(replace(PLAN, experts=runs), MODEL)


def test_a_head_s_cpu_that_is_left_out_holds_no_experts() -> None:
    split = make_split(12, ["a/CUDA0", "b/CUDA0"], [6, 7])
    plan = replace(PLAN, split=split, experts=(LayerRange("local/CPU", 1, 3),))
    with pytest.raises(PlanError, match="local/CPU is left out of the plan"):
        check_experts(plan, MODEL)


def test_a_persons_own_overrides_are_not_mixed_with_them() -> None:
    good = replace(PLAN, experts=(LayerRange("local/CPU", 1, 3),))
    check_experts(good, MODEL)
    with pytest.raises(PlanError, match="-ot says where tensors go"):
        check_experts(replace(good, extra_args=("-ot", "x=CPU")), MODEL)


def test_what_arrived_elsewhere_is_said() -> None:
    plan = replace(PLAN, experts=(LayerRange("b/CUDA0", 1, 1),))
    planned: list[dict[str, int]] = [{} for _ in range(13)]
    planned[1] = {"a/CUDA0": 300, "b/CUDA0": 700}
    assert misplaced(plan, MODEL, planned) == ()
    planned[1] = {"a/CUDA0": 1000}
    assert misplaced(plan, MODEL, planned) == (
        "a/CUDA0 got 1.0 KiB of layer 1, planned 300 B without its experts",
        "b/CUDA0 got 0 B of layer 1, planned 700 B of its experts",
    )
    at_head = replace(PLAN, experts=(LayerRange("local/CPU", 1, 1),))
    planned[1] = {"a/CUDA0": 300}
    assert misplaced(at_head, MODEL, planned) == ()
