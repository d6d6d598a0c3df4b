"""The Pareto front over all aims: nothing on it is beaten, each aim has its best."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from backends.split.objectives import alternative, best_of_sizes, best_split, in_parts
from backends.split.pareto import aims_of, pareto_front
from backends.split.problem import SplitProblem
from backends.split.tensor_parallel import NAME, by_tensor
from backends.state import Alternative, Objective, ServerSettings
from tests.unit.split.test_objectives import MODEL, site
from tests.unit.split.test_tensor_parallel import near

ROOMS = (1.0, 1.5, 0.9)


def several(slots: int) -> SplitProblem:
    there = site(rooms_gib=ROOMS)
    plan = replace(there.plan, server=ServerSettings(slots=slots))
    return there._replace(plan=plan)


def front_of(there: SplitProblem) -> tuple[Alternative, ...]:
    bests = {aim: best_split(there, aim) for aim in aims_of(there.plan)}
    parts = by_tensor(there, bests[Objective.DECODE].forecast)
    return pareto_front(there, bests, [in_parts(NAME, there, parts)])


def figures(one: Alternative) -> tuple[float, ...]:
    told = one.forecast
    assert told is not None
    together = one.all_slots_tok_per_s or 0.0
    return -told.tok_per_s, told.first_token_s, told.bytes_per_token, -together


AT = {
    Objective.DECODE: 0,
    Objective.FIRST_TOKEN: 1,
    Objective.NETWORK: 2,
    Objective.THROUGHPUT: 3,
}


@pytest.mark.parametrize("slots", [1, 8])
def test_nothing_of_one_context_is_beaten(slots: int) -> None:
    there = several(slots)
    front = front_of(there)
    assert len(front) > 2
    assert [figures(one)[0] for one in front] == sorted(figures(o)[0] for o in front)
    for one in front:
        assert (one.all_slots_tok_per_s is None) == (slots == 1)
        for other in front:
            if other is not one and other.ctx_size == one.ctx_size:
                pairs = zip(figures(other), figures(one), strict=True)
                assert not all(a <= b for a, b in pairs)


def test_a_plan_of_another_context_beats_nothing() -> None:
    there = several(1)
    bests = {aim: best_split(there, aim) for aim in aims_of(there.plan)}
    front = pareto_front(there, bests, ())
    told = front[0].forecast
    assert told is not None
    faster = replace(told, tok_per_s=2 * told.tok_per_s, first_token_s=0.0)
    for ctx_size in (there.plan.ctx_size * 2, there.plan.ctx_size // 2):
        other = replace(front[0], ctx_size=ctx_size, forecast=faster)
        assert told in [one.forecast for one in pareto_front(there, bests, [other])]


def test_each_aim_is_told_of_one_plan_that_is_best_for_it() -> None:
    there = several(8)
    front = front_of(there)
    told = [aim for one in front for aim in one.objectives]
    assert sorted(told) == sorted(Objective)
    by_aim = {aim: one for one in front for aim in one.objectives}
    for aim in Objective:
        best = best_split(there, aim)
        assert by_aim[aim].ctx_size == best.ctx_size
        if aim is not Objective.CONTEXT:
            figure = figures(alternative("", there, best))[AT[aim]]
            assert figures(by_aim[aim])[AT[aim]] == figure
    longest = by_aim[Objective.CONTEXT]
    assert there.plan.ctx_size < longest.ctx_size < MODEL.n_ctx_train
    throughput = by_aim[Objective.THROUGHPUT]
    most = max(one.all_slots_tok_per_s or 0.0 for one in front)
    assert throughput.all_slots_tok_per_s == most


def test_what_parts_of_tensors_beat_is_told_as_whole_layers() -> None:
    """Each plan that is best for no aim says in plain words what it is."""
    names = {one.name for one in (*front_of(near()), *front_of(several(8)))}
    assert "whole layers, most tok/s" in names
    assert not [name for name in names if "first-token" in name or "best for" in name]


def test_of_each_number_of_devices_the_best_is_compared() -> None:
    found = list(best_of_sizes(site(), Objective.DECODE))
    used = [sum(share.layers > 0 for share in one.split.shares) for one in found]
    assert sorted(used) == [1, 2, 3]
    rates = [one.forecast.tok_per_s for one in found]
    assert rates[0] == best_split(site(), Objective.DECODE).forecast.tok_per_s
    assert rates == sorted(rates, reverse=True)


def test_all_slots_are_an_aim_where_there_are_several() -> None:
    assert Objective.THROUGHPUT not in aims_of(several(1).plan)
    assert Objective.THROUGHPUT in aims_of(several(2).plan)


def test_parts_of_tensors_are_on_it_where_they_win() -> None:
    front = front_of(near())
    parts = [one for one in front if one.by_tensor]
    assert [one.name for one in parts] == [NAME]
    assert Objective.DECODE in parts[0].objectives
    assert not any(one.by_tensor for one in front_of(site(rtt_ms=2)))
