"""The bottleneck of a token: its measured parts, and the change that helps most.

The parts are those of the waterfall. A change is predicted against the running plan, by
one arithmetic for both, so that errors they share cancel.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from math import hypot, sqrt
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from backends.controller.best_plans import QUICK_BEAM, Option
from backends.controller.drafting import gains
from backends.errors import PlanError
from backends.link.figures import (
    LINK,
    lab_changed,
    token_parts,
    token_totals,
    why_no_link,
)
from backends.server_settings import is_by_tensor, moving
from backends.speculation.gain import (
    WORTH,
    DraftedRun,
    DraftUse,
    draft_use,
)
from backends.split.cost import (
    MB,
    PassCost,
    Work,
    band,
    counted_work,
    device_work,
    head_work,
    link_ms,
    pass_cost,
    workload,
)
from backends.split.experts import with_split
from backends.split.flags import used_workers
from backends.split.layout import counted_text, counts, devices, is_head_cpu, make_split
from backends.state import (
    AUTO_DRAFT,
    NO_DRAFT,
    Bottleneck,
    ClusterSnapshot,
    ForecastPart,
    Objective,
    Plan,
    PlanChange,
    Split,
    TokenPart,
)
from backends.units import MS_PER_S, format_count, format_gain, format_percent

if TYPE_CHECKING:
    from backends.split.problem import SplitProblem

NEEDS_ANSWER = "Nothing is measured yet: it needs one answer"
NEEDS_ANSWER_NOW = "Nothing is measured since the lab changed: it needs one answer"
FEW_DEVICES = 6
"""Of more devices only those of the longest part give layers away."""
LUCK_SD = 0.2
"""Part by which the acceptance of the next text differs from what was measured."""
AMOUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
"""Layers that are moved at a time, and all of a device."""


def explain(
    option: Option, snapshot: ClusterSnapshot, drafted: Sequence[Plan] = ()
) -> Bottleneck:
    """Tell the parts of a token's time, and the change of the plan that gains most.

    ``drafted`` are the same plan with drafts. Labs are in the speeds of the option.
    """
    parts = token_parts(snapshot)
    if not parts:
        return Bottleneck(text=f"{_why_nothing(snapshot)}.")
    pass_ms = sum(part.ms for part in parts)
    totals, alone = token_totals(snapshot.links), snapshot.speed.acceptance
    of_alone = (alone.tokens_per_pass if alone and not totals.workers else None) or 1.0
    shared = totals.tokens_per_pass or of_alone
    # Of the same passes as the parts; the last answer may have been short.
    tok_per_s = shared * MS_PER_S / pass_ms
    case = _case_of(option, snapshot)
    bound = _bound(case, parts[0])
    change = _best_change(case, parts[0], tok_per_s, drafted)
    labs = {link.worker for link in snapshot.links if link.lab}
    by_lab = parts[0].part == LINK and parts[0].name in labs
    lead = (
        f"{format_percent(parts[0].share)} of a {'token' if shared < 1.05 else 'pass'} "
        f"is {parts[0].name}'s {parts[0].part}{', slowed by the lab' if by_lab else ''}"
    )
    return Bottleneck(
        text=f"{lead}{_rest(bound, change)}.",
        parts=parts,
        pass_ms=pass_ms,
        tok_per_s=tok_per_s,
        bound=bound,
        change=change,
    )


def _rest(bound: str, change: PlanChange | None) -> str:
    if change is None:
        limit = f" ({bound})" if bound else ""
        least = format_percent(WORTH - 1)
        return f"{limit}; no change of the plan is predicted to gain {least}"
    band = f"{format_gain(change.low)} to {format_gain(change.high)}"
    return f"; {change.text}: {format_gain(change.gain)} tok/s (predicted, {band})"


# --- what was measured ---------------------------------------------------------------


def _why_nothing(snapshot: ClusterSnapshot) -> str:
    plain = [link for link in snapshot.links if link.mode == "plain"]
    if plain:
        return f"The link to {plain[0].worker} is not measured: {plain[0].reason}"
    if lab_changed(snapshot.links):
        return NEEDS_ANSWER_NOW
    has_workers = snapshot.plan is None or used_workers(snapshot.plan)
    return (why_no_link(snapshot) if has_workers else "") or NEEDS_ANSWER


# --- what is predicted ---------------------------------------------------------------


class _Gain(NamedTuple):
    """Times as fast; nine of ten are in the band."""

    speedup: float
    low: float
    high: float

    @property
    def is_worth_it(self) -> bool:
        """True if it is worth a load, and no loss in nine of ten."""
        return self.speedup >= WORTH and self.low >= 1


class _Case(NamedTuple):
    """The running plan, with all that it and a change of it are predicted by."""

    option: Option
    problem: SplitProblem
    running: DraftedRun | None
    """With the draft that runs."""

    def cost(self, plan: Plan) -> PassCost:
        load = self.problem.load
        return pass_cost(
            *(self.option.model, plan, self.option.speeds),
            depth=load.depth,
            batch=load.batch,
            rows=load.batch,
            slots=load.slots,
            works=self.problem.works,
        )


def _case_of(option: Option, snapshot: ClusterSnapshot) -> _Case:
    # Imported here because numpy, which the search needs, is no matter of starting up.
    from backends.split.problem import SplitProblem, parse_pins

    plan, load = option.plan, workload(option.plan)
    running = _running(option, snapshot)
    if running is not None:
        load = running.drafted_load()
    problem = SplitProblem(
        model=option.model,
        plan=plan,
        devices=option.devices,
        speeds=option.speeds,
        pins=parse_pins(option.pins),
        load=load,
        works=counted_work(option.model, plan),
    )
    return _Case(option, problem, running)


def _running(option: Option, snapshot: ClusterSnapshot) -> DraftedRun | None:
    draft, draft_max = snapshot.drafts_with
    speculation = option.plan.speculation
    methods = speculation.methods if speculation else ()
    method = next((one for one in methods if one.draft == draft), None)
    if method is None:
        return None
    use, now = draft_use(method, draft_max, option.trials), snapshot.speed.acceptance
    if now is not None and now.passes and now.rate is not None:
        use = DraftUse(now.rate, LUCK_SD * now.rate, now.drafted / now.passes)
    return DraftedRun(
        model=option.model,
        plan=option.plan,
        speeds=option.speeds,
        load=workload(option.plan),
        method=method,
        use=use,
        draft_model=option.draft_models.get(method.model),
    )


def _best_change(
    case: _Case, longest: TokenPart, tok_per_s: float, drafted: Sequence[Plan]
) -> PlanChange | None:
    """The change that surely gains most; else the best split, else an untried draft."""
    known = {t.draft for t in case.option.trials if t.acceptance is not None}
    tried = [one for one in drafted if one.server.draft in known]
    untried = [one for one in drafted if one.server.draft not in known]
    for group in (
        chain(_layer_gains(case, longest), _draft_gains(case, tried)),
        _best_split(case),
        # How much of a draft is accepted depends on the texts: before it ran here
        # that is a guess.
        _draft_gains(case, untried),
    ):
        worth = [one for one in group if one[0].is_worth_it]
        for gain, text, plan in sorted(worth, key=lambda one: -one[0].low):
            if _fits(case, plan):
                return _change(gain, text, plan, tok_per_s)
    return None


def _change(gain: _Gain, text: str, plan: Plan, tok_per_s: float) -> PlanChange:
    low, more, high = (tok_per_s * (one - 1) for one in (gain.low, gain[0], gain.high))
    return PlanChange(text=text, plan=plan, gain=more, low=low, high=high)


_Found = tuple[_Gain, str, Plan]


def _layer_gains(case: _Case, longest: TokenPart) -> Iterator[_Found]:
    plan = case.option.plan
    if not _has_open_layers(case):
        return
    before = case.cost(plan)
    for text, split in _splits(plan, longest):
        if _keeps(case, split):
            changed = with_split(plan, split)
            yield _gain(case, before, case.cost(changed)), text, changed


def _splits(plan: Plan, longest: TokenPart) -> Iterator[tuple[str, Split]]:
    """Some layers of a device to another, all to one, another device last."""
    names, held = devices(plan.split), counts(plan.split)
    n_layer, used = plan.split.n_layer, [at for at, n in enumerate(held) if n]
    givers = used
    if len(names) > FEW_DEVICES:
        givers = [at for at in used if _machine(plan, names[at]) == longest.name]
    for giver in givers:
        whole = held[giver]
        for taker in range(len(names)):
            for amount in (*(n for n in AMOUNTS if n < whole), whole):
                if taker == giver:
                    continue
                given = list(held)
                given[giver], given[taker] = whole - amount, held[taker] + amount
                number = "all layers" if amount == whole else _layers(amount)
                text = f"{number} from {names[giver]} to {names[taker]}"
                yield text, make_split(n_layer, names, given)
    for at in range(len(names)) if len(used) > 2 else ():
        alone = [n_layer + 1 if one == at else 0 for one in range(len(names))]
        yield f"all layers on {names[at]}", make_split(n_layer, names, alone)
    for at in used[:-1]:
        if not is_head_cpu(names[at], plan.head):
            order = [*(one for one in range(len(names)) if one != at), at]
            text = f"{names[at]} last, with the output"
            yield (
                text,
                make_split(
                    n_layer, [names[i] for i in order], [held[i] for i in order]
                ),
            )


def _layers(count: int) -> str:
    return format_count(count, "layer")


def _machine(plan: Plan, device: str) -> str:
    worker = plan.worker_of.get(device)
    return worker.name if worker else plan.head


def _gain(case: _Case, before: PassCost, after: PassCost) -> _Gain:
    """The speed of one pass against another's.

    A device that is slower than predicted is so in both. So the error of a time is
    taken to grow with it, and only what changes is uncertain.
    """
    drafting_ms = case.problem.load.draft_ms
    now_ms, then_ms = before.ms + drafting_ms, after.ms + drafting_ms
    # Of what is left no more than that can differ from run to run.
    errors = [case.option.speeds.noise * min(abs(then_ms - now_ms), then_ms)]
    old, new = (_times(case, one.parts) for one in (before, after))
    for name in old.keys() | new.keys():
        for was, will in zip(
            old.get(name, _NO_TIMES), new.get(name, _NO_TIMES), strict=True
        ):
            unsure = max(sd / ms if ms > 0 else 0.0 for ms, sd in (was, will))
            errors.append(unsure * (will[0] - was[0]))
    least_ms, most_ms = band(then_ms, hypot(*errors))
    return _Gain(now_ms / then_ms, now_ms / most_ms, now_ms / least_ms)


_Times = tuple[tuple[float, float], tuple[float, float]]
_NO_TIMES: _Times = ((0.0, 0.0), (0.0, 0.0))


def _times(case: _Case, parts: Iterable[ForecastPart]) -> dict[str, _Times]:
    """Computing and network of each machine, with their standard deviations."""
    found: dict[str, _Times] = {}
    for part in parts:
        link, variance = case.option.speeds.link_to(part.name), 0.0
        if part.trips:
            stages = round(part.trips / link.trips_per_pass)
            variance = link_ms(link, stages, part.bytes_up + part.bytes_down)[1]
        rest = sqrt(max(part.sd_ms**2 - variance, 0.0))
        found[part.name] = (part.compute_ms, rest), (part.network_ms, sqrt(variance))
    return found


def _draft_gains(case: _Case, drafted: Sequence[Plan]) -> Iterator[_Found]:
    option = case.option
    plan, models = option.plan, option.draft_models
    if plan.server.draft == AUTO_DRAFT:
        # It finds the fastest by itself.
        return
    if case.running is not None:
        gain = case.running.gain()
        factors = 1 / gain.speedup, 1 / gain.high, 1 / gain.low
        yield _Gain(*factors), "no draft", with_draft_of(plan, NO_DRAFT)
        return
    for one in drafted:
        found = gains(option.model, one, option.speeds, models, option.trials)
        if told := found.get(one.server.draft):
            text = f"--draft {one.server.draft.rpartition('/')[2]}"
            yield _Gain(told.speedup, told.low, told.high), text, one


def with_draft_of(plan: Plan, draft: str) -> Plan:
    """The plan with another draft, whose method is not settled yet."""
    server = replace(plan.server, draft=draft)
    asked = plan.asked and replace(plan.asked, server=server)
    return replace(plan, server=server, speculation=None, asked=asked)


def _best_split(case: _Case) -> Iterator[_Found]:
    from backends.split.objectives import best_split

    plan = case.option.plan
    if not _has_open_layers(case):
        return
    quick = case.problem._replace(beam=QUICK_BEAM)
    with contextlib.suppress(PlanError):
        split = best_split(quick, Objective.DECODE).split
        changed = with_split(plan, split)
        gain = _gain(case, case.cost(plan), case.cost(changed))
        yield gain, f"the best split, {counted_text(split)}", changed


def _has_open_layers(case: _Case) -> bool:
    args, model = case.option.plan.extra_args, case.option.model
    return not (is_by_tensor(args) or moving(args) or model.sparse is not None)


def _keeps(case: _Case, split: Split) -> bool:
    """True if a split keeps to the conditions that the plan was asked with."""
    from backends.split.problem import check_kept

    pins = case.problem.pins
    try:
        check_kept(pins, split)
    except PlanError:
        return False
    last = next(share.device for share in reversed(split.shares) if share.layers)
    return pins.output in ("", last)


def _fits(case: _Case, plan: Plan) -> bool:
    """True if no device that gets more is too small for it."""
    from backends.split.objectives import crowded_by

    before, after = (
        {share.device: share.layers for share in one.split.shares}
        for one in (case.option.plan, plan)
    )
    crowded = crowded_by(case.problem, plan)
    return all(after[device] < before[device] for device in crowded)


# --- the limit of a part -------------------------------------------------------------

_LIMITS = {
    "memory bandwidth": ("weight_gb", "kv_gb"),
    "arithmetic": ("gvalues", "gops"),
    "fixed costs of each pass": ("layers", "passes"),
}


def _bound(case: _Case, longest: TokenPart) -> str:
    """The limit of the longest part, in the planner's terms; empty if not known."""
    plan = case.option.plan
    if longest.part == LINK:
        return _link_bound(case, longest.name)
    load = case.problem.load
    counted = case.problem.works or counted_work(case.option.model, plan)
    work = device_work(plan, counted(load.depth, load.batch, load.batch, load.slots))
    known = case.option.speeds.of_device
    own = {d: one for d, one in work.items() if _machine(plan, d) == longest.name}
    spent = [(known[d], one) for d, one in own.items() if d in known]
    if longest.name == plan.head:
        visits = sum(work[device].passes for device in work.keys() - own.keys())
        spent.append((case.option.speeds.head, head_work(visits)))
    took = {
        limit: sum(
            ms * amount
            for speed, one in spent
            for kind, ms, amount in zip(Work._fields, speed.ms, one, strict=True)
            if kind in kinds
        )
        for limit, kinds in _LIMITS.items()
    }
    return max(took, key=lambda limit: took[limit]) if any(took.values()) else ""


def _link_bound(case: _Case, worker: str) -> str:
    link = case.option.speeds.link_to(worker)
    cost = case.cost(case.option.plan)
    part = next((part for part in cost.parts if part.name == worker), None)
    if part is None:
        return ""
    trips_ms = part.trips * link.rtt_ms
    bytes_ms = (part.bytes_up + part.bytes_down) / MB * link.ms_per_mb
    rest_ms = part.network_ms - trips_ms - bytes_ms
    took = {"round trips": trips_ms, "data rate": bytes_ms, "handling": rest_ms}
    return max(took, key=lambda limit: took[limit])
