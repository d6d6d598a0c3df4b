"""Other plans to choose from: what each gains and costs against the edited one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from msgspec.structs import replace as with_fields

from backends.server_settings import BY_TENSOR, without_tensor
from backends.split.layout import devices, is_head_cpu, make_split
from backends.state import AIMS, Alternative, Ask, Forecast, Plan
from backends.units import format_count

AS_IT_IS = "as it is"
WORTH_TELLING = 0.005
"""Smaller parts of a figure are no difference."""
FOLDED_FROM = 5
"""So many rows that say the same become one."""
_SOLO = "solo on "


@dataclass(frozen=True)
class BestChoice:
    """A plan to take, or why it cannot be taken."""

    names: tuple[str, ...]
    plan: Plan | None
    """None where it cannot be taken."""
    forecast: Forecast | None
    all_slots: float | None = None
    """Tokens per second with an answer in every slot; None with one slot."""
    ctx_size: int = 0
    why: str = ""

    @property
    def name(self) -> str:
        return ", ".join(self.names)


def candidate(plan: Plan, one: Alternative) -> Plan | None:
    """The plan with an alternative's layers; None if it needs other machines."""
    known = devices(plan.split)
    held = dict(zip(one.devices, one.counts, strict=True))
    used = {device for device, layers in held.items() if layers}
    if one.imagined or not used or one.head != plan.head or not used <= set(known):
        return None
    lead = [device for device in known if is_head_cpu(device, plan.head)]
    names = [n for n in dict.fromkeys([*lead, *one.devices, *known]) if n in known]
    split = make_split(plan.split.n_layer, names, [held.get(n, 0) for n in names])
    words = without_tensor(plan.extra_args)
    words = (*words, *BY_TENSOR) if one.by_tensor else words
    now = plan.ctx_size, plan.extra_args, plan.experts
    if (one.ctx_size, words, one.experts) == now:
        return with_fields(plan, split=split)
    asked = plan.asked or Ask(model=plan.model)
    return with_fields(
        plan,
        split=split,
        ctx_size=one.ctx_size,
        extra_args=words,
        experts=one.experts,
        asked=with_fields(
            asked, ctx_size=one.ctx_size, extra_args=words, experts=one.experts
        ),
    )


def choices_of(plan: Plan, found: Sequence[Alternative]) -> tuple[BestChoice, ...]:
    """The plan as it is, then the others, those to take first.

    ``found`` begins with the plan. A plan that is there already gets its name too.
    """
    known = [_choice(plan, found[0], plan, (AS_IT_IS,))]
    for one in folded(found[1:]):
        taken = candidate(plan, one)
        names = tuple(AIMS[aim] for aim in one.objectives)
        same = [
            at
            for at, choice in enumerate(known)
            if taken and choice.plan and _does(choice.plan) == _does(taken)
        ]
        if same:
            at = same[0]
            known[at] = replace(known[at], names=(*known[at].names, *names))
        else:
            known.append(_choice(plan, one, taken, names or (one.name,)))
    return tuple(sorted(known, key=_rank))


def _choice(
    plan: Plan, one: Alternative, taken: Plan | None, names: tuple[str, ...]
) -> BestChoice:
    return BestChoice(
        names=names,
        plan=taken,
        forecast=one.forecast,
        all_slots=one.all_slots_tok_per_s,
        ctx_size=one.ctx_size,
        why=one.why if taken or one.why else _why(one, plan),
    )


def _does(plan: Plan) -> tuple[object, ...]:
    used = [share for share in plan.split.shares if share.layers]
    return (plan.ctx_size, plan.extra_args, plan.experts, *used)


def _rank(choice: BestChoice) -> int:
    # As it is, then the best for each aim, then others, then what cannot be taken.
    first = choice.names[0]
    ranks = (first == AS_IT_IS, first in AIMS.values(), choice.plan is not None)
    return next((rank for rank, holds in enumerate(ranks) if holds), len(ranks))


def _why(one: Alternative, plan: Plan) -> str:
    if one.imagined:
        return "needs what is not there"
    if one.head != plan.head:
        return f"needs {one.head} as the head"
    return "needs devices that are not in this plan"


def folded(found: Sequence[Alternative]) -> list[Alternative]:
    """The same with one row for many devices that cannot do it alone."""
    groups: dict[str, list[Alternative]] = {}
    for one in found:
        if one.forecast is None and one.name.startswith(_SOLO):
            groups.setdefault(one.why.partition(":")[0], []).append(one)
    many = {why: of for why, of in groups.items() if len(of) >= FOLDED_FROM}
    gone = {one.name for of in many.values() for one in of}
    rows = [one for one in found if one.forecast is not None or one.name not in gone]
    for why, of in many.items():
        name = f"{_SOLO}{format_count(len(of), 'device')}"
        rows.append(with_fields(of[0], name=name, why=why))
    return rows


def change(new: float, old: float) -> float | None:
    if old <= 0:
        return None
    part = new / old - 1
    return part if abs(part) >= WORTH_TELLING else None
