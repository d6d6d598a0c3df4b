"""Other plans to choose from: what each gains and costs against the edited one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec

from backends.split import by_tensor
from backends.split.layout import devices, is_head_cpu, make_split
from backends.state import Alternative, Ask, Forecast, Objective, Plan

AIMS = {
    Objective.DECODE: "most tok/s",
    Objective.FIRST_TOKEN: "first token soonest",
    Objective.NETWORK: "least network",
    Objective.THROUGHPUT: "most for all slots",
    Objective.CONTEXT: "longest context",
}
AS_IT_IS = "as it is"
WORTH_TELLING = 0.005
"""Smaller parts of a figure are no difference."""


@dataclass(frozen=True)
class BestChoice:
    """A plan to take, or why it cannot be taken."""

    names: tuple[str, ...]
    plan: Plan | None
    """None where it cannot be taken."""
    forecast: Forecast | None
    why: str = ""

    @property
    def name(self) -> str:
        return ", ".join(self.names)


def aims_of(plan: Plan) -> tuple[Objective, ...]:
    """The aims that make a difference to a plan."""
    slots = plan.server.slots > 1
    return tuple(a for a in AIMS if slots or a is not Objective.THROUGHPUT)


def candidate(plan: Plan, one: Alternative) -> Plan | None:
    """The plan with an alternative's layers; None if it needs other machines."""
    known = devices(plan.split)
    held = dict(zip(one.devices, one.counts, strict=True))
    used = {device for device, layers in held.items() if layers}
    by_layers = one.name != by_tensor.NAME
    if (
        one.imagined
        or not by_layers
        or not used
        or one.head != plan.head
        or not used <= set(known)
    ):
        return None
    lead = [device for device in known if is_head_cpu(device, plan.head)]
    names = [n for n in dict.fromkeys([*lead, *one.devices, *known]) if n in known]
    split = make_split(plan.split.n_layer, names, [held.get(n, 0) for n in names])
    if one.ctx_size == plan.ctx_size:
        return msgspec.structs.replace(plan, split=split)
    asked = plan.asked or Ask(model=plan.model)
    return msgspec.structs.replace(
        plan,
        split=split,
        ctx_size=one.ctx_size,
        asked=msgspec.structs.replace(asked, ctx_size=one.ctx_size),
    )


def with_found(
    choices: Sequence[BestChoice],
    aim: Objective,
    found: Iterable[Alternative],
    told: Callable[[Plan], Forecast | None],
) -> tuple[BestChoice, ...]:
    """The choices with the answer for one more aim, those to take first.

    The first of ``found`` is the best for the aim. A plan that is there already gets
    its name too; ``told`` predicts plans as the Split pane does.
    """
    plan = choices[0].plan
    assert plan is not None
    known = list(choices)
    for number, one in enumerate(found):
        name = one.name if number else AIMS[aim]
        taken = candidate(plan, one)
        same = [
            at
            for at, choice in enumerate(known)
            if taken and choice.plan and _held(choice.plan) == _held(taken)
        ]
        if not same:
            forecast = (told(taken) if taken else None) or one.forecast
            known.append(BestChoice((name,), taken, forecast, _why(one, taken, plan)))
        elif not number:
            at = same[0]
            known[at] = replace(known[at], names=(*known[at].names, name))
    return tuple(sorted(known, key=_rank))


def _held(plan: Plan) -> tuple[object, ...]:
    used = [share for share in plan.split.shares if share.layers]
    return (plan.ctx_size, *used)


def _rank(choice: BestChoice) -> int:
    # As it is, then the best for each aim, then others, then what cannot be taken.
    first = choice.names[0]
    ranks = (first == AS_IT_IS, first in AIMS.values(), choice.plan is not None)
    return next((rank for rank, holds in enumerate(ranks) if holds), len(ranks))


def _why(one: Alternative, taken: Plan | None, plan: Plan) -> str:
    if taken is not None or one.why:
        return one.why
    if one.imagined:
        return "needs what is not there"
    if one.name == by_tensor.NAME:
        return "is launched with -- -sm tensor"
    if one.head != plan.head:
        return f"needs {one.head} as the head"
    return "needs devices that are not in this plan"


def change(new: float, old: float) -> float | None:
    """The part by which a figure differs from another; None if it does not."""
    if old <= 0:
        return None
    part = new / old - 1
    return part if abs(part) >= WORTH_TELLING else None
