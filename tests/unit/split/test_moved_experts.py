"""Experts elsewhere: the fastest of all tried, and never where that loses."""

from __future__ import annotations

import os
from random import Random

import pytest
from msgspec.structs import replace

from backends.errors import PlanError
from backends.split import moved_experts as searched
from backends.split.device_memory import EngineFigures, device_loads, plan_loads
from backends.split.experts import (
    dropped_text,
    moved_layers,
    owners,
    with_given,
    with_kept,
)
from backends.split.layout import runs_of, with_counts
from backends.split.moved_experts import GAIN_MIN, moved_experts
from backends.split.objectives import best_split
from backends.split.problem import Pins, SplitProblem
from backends.state import LayerBytes, LayerRange, ModelInfo, Objective
from tests.unit.split.test_objectives import MIB, site
from tests.unit.split.test_objectives_exhaustive import (
    CPU,
    every_split,
    fits,
    random_problem,
)

INSTANCES = int(os.environ.get("DLLM_SPLITS", "20"))
FAST, FAR = "a/CUDA0", "b/CUDA0"


def with_experts(model: ModelInfo, dense: int = 0) -> ModelInfo:
    """Seven eighths of each layer but the first ones are experts; one in 16 is used."""
    return replace(
        model,
        n_expert=32,
        n_expert_used=2,
        layers=tuple(
            replace(layer, groups=LayerBytes(attention=layer.bytes // 8, experts=part))
            for layer in model.layers
            for part in [layer.bytes * 7 // 8 if layer.index >= dense else 0]
        ),
    )


def large_at_home(gpu_gib: float, *, rtt_ms: float = 0.2) -> SplitProblem:
    """A small fast device and a large slow CPU, at one head."""
    there = site(rooms_gib=(64, gpu_gib, gpu_gib), rtt_ms=rtt_ms)
    model = with_experts(there.model)
    plan = replace(there.plan, workers=(there.plan.workers[1],), head="a")
    split = replace(
        there.plan.split,
        shares=tuple(
            replace(share, device=name, layers=layers)
            for share, name, layers in zip(
                there.plan.split.shares, ("a/CPU", FAST, FAR), (7, 0, 0), strict=True
            )
        ),
    )
    devices = (replace(there.devices[0], id="a/CPU"), *there.devices[1:])
    known = (
        replace(there.speeds.devices[0], device="a/CPU"),
        *there.speeds.devices[1:],
    )
    return there._replace(
        model=model,
        plan=replace(plan, split=split),
        devices=devices,
        speeds=replace(there.speeds, devices=known),
    )


def test_a_fast_device_holds_all_layers_without_their_experts() -> None:
    """Attention and cache of six layers fit there; whole layers do not."""
    there = large_at_home(0.7, rtt_ms=20)
    best = best_split(there, Objective.DECODE)
    found = moved_experts(there, (best.split, best.forecast))
    assert found.plan is not None
    assert found.forecast is not None
    assert found.forecast.tok_per_s > GAIN_MIN * best.forecast.tok_per_s
    assert {run.device for run in found.plan.experts} == {"a/CPU"}
    held = {share.device: share.layers for share in found.plan.split.shares}
    assert held[FAST] > {s.device: s.layers for s in best.split.shares}[FAST]
    assert found.why.startswith("experts of ")
    assert there._replace(plan=found.plan).forecast() == found.forecast
    assert fits(there._replace(plan=found.plan))


def test_experts_are_given_and_come_back_to_their_layers() -> None:
    plan = large_at_home(0.7).plan
    plan = replace(plan, split=with_counts(plan.split, [0, 4, 3]))
    given = with_given(plan, [0, 1, 2, 3, 4], "a/CPU")
    assert given.experts == (LayerRange("a/CPU", 0, 4),)
    further = with_given(given, [1, 2], FAR)
    assert set(further.experts) == {
        *(LayerRange("a/CPU", 0, 0), LayerRange("a/CPU", 3, 4)),
        LayerRange(FAR, 1, 2),
    }
    home = with_given(further, range(5), FAST)
    assert home.experts == (LayerRange(FAST, 4, 4),), "0 to 3 are on it themselves"
    other = replace(plan, split=with_counts(plan.split, [0, 7, 0]))
    assert set(with_kept(other, further).experts) == {
        LayerRange("a/CPU", 0, 0),
        LayerRange("a/CPU", 3, 4),
    }
    assert "Experts of 1–2 on b/CUDA0 are" in dropped_text(further, other)


def test_over_a_slow_link_none_is_moved() -> None:
    """What a device far away would save is less than its trips."""
    there = site(rooms_gib=(64, 1.5, 64), rtt_ms=20)
    there = there._replace(model=with_experts(there.model))
    best = best_split(there, Objective.DECODE)
    found = moved_experts(there, (best.split, best.forecast))
    assert found.plan is None
    assert found.why.startswith("not worth it: experts of ")


def test_where_whole_layers_do_not_fit_it_may_all_the_same() -> None:
    """No layer fits into what is left of two devices, but experts do."""
    there = site(rooms_gib=(0.9, 0.75, 0.75))
    model = with_experts(there.model)
    there = there._replace(model=model)
    with pytest.raises(PlanError, match="No split"):
        best_split(there, Objective.DECODE)
    found = moved_experts(there, None)
    assert found.plan is not None
    assert fits(there._replace(plan=found.plan))


def test_experts_that_are_with_their_layers_are_no_plan_of_this_kind() -> None:
    """All layers on one CPU is best; to leave their experts there moves nothing."""
    there = large_at_home(0.05, rtt_ms=20)
    best = best_split(there, Objective.DECODE)
    found = moved_experts(there, (best.split, best.forecast))
    assert found.plan is None
    assert found.why == (
        "no device gains by the experts of others' layers, or has room"
    )


def test_a_model_without_experts_has_none_to_move() -> None:
    found = moved_experts(site(), None)
    assert (found.plan, found.why) == (None, "the model has no experts")


def test_of_many_layers_not_every_number_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = large_at_home(0.7)
    whole = moved_experts(there, None)
    monkeypatch.setattr(searched, "TRIED_MAX", 12)
    some = moved_experts(there, None)
    assert whole.forecast is not None
    assert some.forecast is not None
    assert some.forecast.tok_per_s <= whole.forecast.tok_per_s
    assert some.forecast.tok_per_s > 0.7 * whole.forecast.tok_per_s


# --- exhaustive ----------------------------------------------------------------------


def moves(there: SplitProblem) -> set[tuple[tuple[int, ...], str]]:
    """The first and last layers with experts, of the model and of each device."""
    experts = [one.index for one in there.model.layers if one.groups.experts]
    groups = [experts]
    try:
        best = best_split(there, Objective.DECODE)
    except PlanError:
        pass
    else:
        held = owners(best.split)
        groups += [[n for n in experts if held[n] == name] for name in set(held)]
    return {
        (tuple(part), share.device)
        for group in groups
        for count in range(1, len(group) + 1)
        for part in (group[:count], group[-count:])
        for share in there.plan.split.shares
    }


def fastest_by_trying(there: SplitProblem) -> float | None:
    splits = list(every_split(there))
    rates = []
    for layers, device in moves(there):
        for one in splits:
            held = {s.device for s in one.plan.split.shares if s.layers}
            if device not in held | {CPU}:
                continue
            plan = replace(one.plan, experts=tuple(runs_of(device, layers)))
            moved = one._replace(plan=plan)
            if any(moved_layers(plan.split, plan.experts)) and fits(moved):
                rates.append(moved.forecast().tok_per_s)
    return max(rates, default=None)


def compare(there: SplitProblem) -> bool:
    """See that the faster of both kinds is the fastest of all that were tried."""
    rates, got = [fastest_by_trying(there)], list[float]()
    try:
        best = best_split(there, Objective.DECODE)
    except PlanError:
        found = moved_experts(there, None)
    else:
        found = moved_experts(there, (best.split, best.forecast))
        got.append(best.forecast.tok_per_s)
        rates += got
    if found.plan is not None and found.forecast is not None:
        assert fits(there._replace(plan=found.plan))
        got.append(found.forecast.tok_per_s)
    fastest = max((rate for rate in rates if rate), default=None)
    assert max(got, default=None) == (fastest and pytest.approx(fastest))
    return found.plan is not None


def random_model_of_experts(random: Random) -> SplitProblem:
    there = random_problem(random, pools=False)
    pins = Pins(output=there.pins.output, least=there.pins.least, most=there.pins.most)
    model = with_experts(there.model, dense=random.choice([0, 0, 1]))
    return there._replace(model=model, pins=pins)


@pytest.fixture
def every_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each range of layers is tried, and each plan proposed that is faster at all."""
    monkeypatch.setattr(searched, "GAIN_MIN", 0.0)
    monkeypatch.setattr(searched, "TRIED_MAX", 10_000)


@pytest.mark.usefixtures("every_plan")
def test_no_such_plan_is_faster() -> None:
    random = Random(7)
    outcomes = []
    for _ in range(INSTANCES):
        there = random_model_of_experts(random)
        if any(layer.groups.experts for layer in there.model.layers):
            outcomes.append(compare(there))
    assert 0.2 * len(outcomes) < sum(outcomes)


@pytest.mark.usefixtures("every_plan")
def test_the_device_that_gets_them_would_be_cheapest_for_their_layers_too() -> None:
    compare(random_model_of_experts(Random(45)))


def test_bytes_are_counted_where_they_are() -> None:
    there = large_at_home(64)
    plan = replace(there.plan, experts=tuple(runs_of(FAR, [0, 1])))
    whole = {load.device: load for load in plan_loads(there.model, there.plan)}
    apart = {load.device: load for load in plan_loads(there.model, plan)}
    moved = sum(layer.groups.experts for layer in there.model.layers[:2])
    assert moved > 600 * MIB
    assert apart["a/CPU"].weight_bytes == whole["a/CPU"].weight_bytes - moved
    assert apart[FAR].weight_bytes == moved
    assert apart[FAR].compute_bytes > 0 == whole[FAR].compute_bytes


def test_an_answer_for_moved_experts_says_nothing_new_of_other_splits() -> None:
    """The console carries the engine's answers over while a boundary is dragged."""
    there = large_at_home(64)
    experts = tuple(runs_of(FAR, [0, 1]))
    plan = replace(there.plan, experts=experts)
    told = EngineFigures(
        split=plan.split,
        ctx_size=plan.ctx_size,
        memory=tuple(load.memory for load in plan_loads(there.model, plan)),
    )
    for split in (plan.split, with_counts(plan.split, [5, 2, 0])):
        dragged = replace(plan, split=split)
        loads = device_loads(
            there.model,
            split,
            plan.ctx_size,
            head=plan.head,
            server=plan.server,
            told=[told],
            experts=experts,
        )
        said = {load.device: load.weight_bytes for load in loads}
        assert said == {
            load.device: load.weight_bytes for load in plan_loads(there.model, dragged)
        }


def test_with_experts_elsewhere_inputs_are_kept_once() -> None:
    """llama.cpp does not pipeline then, so that each device needs less."""
    there = site()
    model = with_experts(there.model)
    plan = replace(there.plan, experts=tuple(runs_of(CPU, [0])))
    whole = {load.device: load for load in plan_loads(model, there.plan)}
    apart = {load.device: load for load in plan_loads(model, plan)}
    for device in ("a/CUDA0", "b/CUDA0"):
        assert apart[device].compute_bytes < whole[device].compute_bytes
    cpu = replace(there.plan.split.shares[0], layers=1)
    first, *others = there.plan.split.shares[1:]
    shares = (cpu, replace(first, layers=first.layers - 1), *others)
    at_head = replace(there.plan, split=replace(there.plan.split, shares=shares))
    once = {load.device: load for load in plan_loads(model, at_head)}
    assert apart["b/CUDA0"].compute_bytes == once["b/CUDA0"].compute_bytes


def test_of_many_devices_as_many_as_may_be_are_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = large_at_home(0.7)
    asked = []

    def counted(problem: SplitProblem, split: object) -> list[object]:
        asked.append(len(problem.plan.split.shares))
        return []

    monkeypatch.setattr(searched, "_searched", counted)
    monkeypatch.setattr(searched, "SEARCHED_MAX", 2)
    moved_experts(there, None)
    assert asked == [2]
