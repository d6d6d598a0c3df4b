"""Words on a plan's speed and fit, and the line under the split."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from backends.split.cost import band_text, first_token_text
from backends.split.layout import counts, format_range
from backends.state import (
    Alternative,
    ClusterSnapshot,
    Fit,
    Forecast,
    MemorySource,
    Plan,
    SpeedSource,
)
from backends.state.models import RemoteModel
from backends.units import (
    format_bytes,
    format_difference,
    format_mean,
    format_speed,
)
from tui.model.edit import Edit, runs_now, same_plan
from tui.model.facts import is_off
from tui.model.launch_settings import differences
from tui.model.names import device_label

SOURCES = {
    SpeedSource.PRIOR: "usual speeds",
    SpeedSource.GIVEN: "the cluster file",
    SpeedSource.MEASURED: "measured runs",
}


def crossing_text(told: Forecast) -> str:
    trips = format_mean(told.trips_per_token, "trip")
    return f"~{trips}, {format_bytes(told.bytes_per_token)} a token"


def speed_texts(edit: Edit, snapshot: ClusterSnapshot | None) -> tuple[str, ...]:
    """The prediction, the longest text first; beside the last answer's of this plan."""
    told = edit.forecast
    if told is None:
        return ()
    predicted, depth = f"predicted {band_text(told)}", f" at depth {told.depth}"
    left_out = ["the draft"] if edit.plan.speculation is not None else []
    left_out += ["the lab"] if _has_lab(snapshot) else []
    depth += f" without {' and '.join(left_out)}" if left_out else ""
    measured = _measured_text(edit, told, snapshot)
    speed = f"{predicted}{depth}{measured}"
    soonest = f"{speed} · {first_token_text(told, short=True)}"
    first = f"{speed} · {first_token_text(told)}"
    crossing = f"{first} · {crossing_text(told)}"
    whole = f"{crossing} · from {SOURCES[told.source]}"
    return (
        whole,
        crossing,
        first,
        soonest,
        speed,
        f"{predicted}{depth}",
        band_text(told),
    )


def _has_lab(snapshot: ClusterSnapshot | None) -> bool:
    return any(not is_off(link.lab) for link in (snapshot.links if snapshot else ()))


def _measured_text(edit: Edit, told: Forecast, snapshot: ClusterSnapshot | None) -> str:
    """The last answer's speed beside the one predicted at its own depth."""
    running, plan = runs_now(snapshot), edit.plan
    if snapshot is None or running is None or not same_plan(running, plan):
        return ""
    now, unlike = snapshot.speed, _has_lab(snapshot) or plan.speculation
    if not now.last_tok_per_s or unlike or edit.prospect is None:
        return ""
    depth = now.last_depth or told.depth
    then = edit.prospect.of(plan, depth) if depth != told.depth else told
    off = format_difference(now.last_tok_per_s / then.tok_per_s - 1)
    at = f" at {depth}" if depth != told.depth else ""
    return f" · measured {format_speed(now.last_tok_per_s)}{at} ({off})"


_FASTER = 1.03
"""Plans that are faster by a smaller factor are not told of."""


def faster_text(edit: Edit, others: Sequence[Alternative]) -> str:
    """The best of other plans, and of one device alone, as far as they are faster."""
    now = edit.forecast.tok_per_s if edit.forecast else math.inf
    rates = {
        one: one.forecast.tok_per_s
        for one in others
        if one.forecast and not one.imagined and one.ctx_size == edit.plan.ctx_size
    }
    fast = [one for one, rate in rates.items() if rate > now * _FASTER]
    if not fast:
        return ""
    best = max(fast, key=rates.__getitem__)
    text = f"best ~{format_speed(rates[best])}"
    alone = [one for one in fast if len(_used(one)) == 1]
    solo = max(alone, key=rates.__getitem__, default=None)
    if solo is None:
        return text
    where = f"solo on {device_label(_used(solo)[0])}"
    if rates[solo] * _FASTER > rates[best]:
        return f"best ~{format_speed(rates[solo])}, {where}"
    return f"{text} · {where} ~{format_speed(rates[solo])}"


def _used(one: Alternative) -> list[str]:
    return [name for name, n in zip(one.devices, one.counts, strict=True) if n]


def fits_text(model: RemoteModel) -> str:
    """``yes``, ``~yes`` where llama.cpp was not asked, ``no``; ``?``: not known."""
    if model.fit is None:
        return "?"
    if not model.fit.ctx_size:
        return "no"
    return "~yes" if model.fit.source is MemorySource.PREDICTED else "yes"


def context_text(model: RemoteModel) -> str:
    return str(model.fit.ctx_size) if model.fit and model.fit.ctx_size else ""


def quant_speed_text(model: RemoteModel, *, short: bool = False) -> str:
    fit = model.fit
    if fit is None or not fit.tok_per_s:
        return ""
    return f"~{format_speed(fit.tok_per_s)}" if short else band_text(fit)


def split_text(fit: Fit | None) -> str:
    """``local/CPU 0–38, mini/MTL0 39–46 + output``."""
    if fit is None:
        return ""
    return ", ".join(f"{e.device} {format_range(e, fit.n_layer)}" for e in fit.layers)


def why_text(model: RemoteModel) -> str:
    """Why it does not fit, is not known to, or is only predicted to."""
    if model.problem or model.fit is None:
        return model.problem
    return model.fit.why or model.fit.note


def notes(models: Sequence[RemoteModel]) -> list[str]:
    """``Q8_0, BF16: why``, each reason once."""
    named: dict[str, list[str]] = {}
    for model in models:
        named.setdefault(why_text(model).rstrip("."), []).append(model.quant)
    return [f"{', '.join(quants)}: {why}." for why, quants in named.items() if why]


Tone = Literal["ok", "warn", "bad", "dim"]

NEAR_BYTES = 16 << 20
"""Memory as near as this to what the engine said is as it said."""


class PlanVerdict(NamedTuple):
    text: str
    tone: Tone


LAUNCHES = "{cluster.launch} launches"
UNDOES = "{split.undo} undoes"


def verdict(
    edit: Edit | None, plan: Plan | None, snapshot: ClusterSnapshot | None
) -> PlanVerdict:
    """The line under the split that is shown now."""
    if edit is None or plan is None:
        return PlanVerdict("No model yet: {cluster.model} picks one", "dim")
    if edit.misfits:
        devices = [load.device for load in edit.loads if load.device in edit.misfits]
        holds = "hold" if len(devices) > 1 else "holds"
        text = f"does not fit: {', '.join(devices)} {holds} over the memory limit"
        return PlanVerdict(text, "bad")
    running = runs_now(snapshot)
    if running is None or snapshot is None:
        why = f"predicted ({edit.note})" if edit.note else "predicted"
        memory = "estimated by the engine" if edit.is_settled else why
        return PlanVerdict(f"not running yet: {LAUNCHES} · memory {memory}", "warn")
    if running.model != plan.model:
        return PlanVerdict(
            f"another model runs now: {LAUNCHES} this one instead", "warn"
        )
    if running.split != edit.split:
        now = " | ".join(map(str, counts(running.split)))
        return PlanVerdict(f"changed: {LAUNCHES} it, {UNDOES} · runs now {now}", "warn")
    if not same_plan(running, plan):
        what = differences(plan, running) or "other machines"
        relaunch = f"changed: {{cluster.launch}} relaunches, {UNDOES} · {what}"
        return PlanVerdict(relaunch, "warn")
    measured = _measured(edit, snapshot)
    return _trouble(snapshot) or measured if measured.tone == "ok" else measured


def _trouble(snapshot: ClusterSnapshot) -> PlanVerdict | None:
    if back := snapshot.rolled_back:
        why = back.failure.what
        return PlanVerdict(f"launch failed, back to this: {why}", "warn")
    return PlanVerdict(snapshot.message, "warn") if snapshot.message else None


def _measured(edit: Edit, snapshot: ClusterSnapshot) -> PlanVerdict:
    """The report of llama-server's own log on the running split."""
    if snapshot.measured is None:
        return PlanVerdict("launching: the split is checked after the load", "dim")
    if snapshot.measured.mismatches:
        return PlanVerdict("✗ " + "; ".join(snapshot.measured.mismatches), "bad")
    if not edit.is_settled:
        return PlanVerdict("✓ layers as planned · memory as measured", "ok")
    gaps = [
        gap
        for told, measured in zip(edit.settled, edit.loads, strict=True)
        if (gap := abs(told.total_bytes - measured.total_bytes))
        > max(NEAR_BYTES, measured.total_bytes // 100)
    ]
    if gaps:
        off = f"memory is {format_bytes(max(gaps))} off the engine's estimate"
        return PlanVerdict(f"✓ layers as planned · {off}", "warn")
    return PlanVerdict("✓ layers and memory as planned", "ok")
