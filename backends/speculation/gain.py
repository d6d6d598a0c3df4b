"""The gain of a draft, predicted: more tokens a pass, for the time it takes.

A pass checks all drafted tokens at once. They are drafted before, one by one::

    tokens a pass = 1 + acceptance · drafted
    time of a pass = the model's for 1 + drafted tokens + drafted · the draft's own

The part that is accepted depends on text and pair. It is known where ``--draft auto``
measured it once; before that it is a guess with a wide band.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, hypot, log
from typing import NamedTuple

from backends.speculation.memory import whole_on
from backends.split.cost import (
    BAND_SD,
    Work,
    Workload,
    forecast,
    layer_work,
    link_ms,
    work_ms,
)
from backends.state import (
    MTP_DRAFT,
    NGRAM_DRAFT,
    NO_DRAFT,
    ClusterSpeeds,
    DraftTrial,
    Forecast,
    ModelInfo,
    Plan,
    Speculation,
)
from backends.units import format_factor

WORTH = 1.03
"""A smaller gain over no draft may be noise, and is not worth a load."""
_TEXT_SD = 0.1
"""Of the measured acceptance: another text has another one."""
_CHECK_SD = 0.3
"""Part by which the time to check further tokens may be another."""
_MTP_TRIPS = 2.5
"""Of each token that layers of the model on a worker draft."""


class DraftUse(NamedTuple):
    """A draft's luck with a text."""

    acceptance: float
    """The accepted part of the drafted tokens."""
    acceptance_sd: float
    drafted: float
    """Tokens drafted for a pass, in the mean."""


class DraftGain(NamedTuple):
    """A plan with a draft against the same without; nine of ten are in the band."""

    draft: str
    forecast: Forecast
    """With it."""
    speedup: float
    low: float
    high: float


def draft_use(
    method: Speculation, draft_max: int, trials: Iterable[DraftTrial] = ()
) -> DraftUse:
    """As the newest of its measurements says, else as usual; newest first."""
    usual = {
        NGRAM_DRAFT: DraftUse(0.3, 0.2, 0.3 * draft_max),
        MTP_DRAFT: DraftUse(0.6, 0.2, draft_max),
    }.get(method.draft, DraftUse(0.5, 0.2, draft_max))
    for trial in trials:
        if trial.draft == method.draft and trial.acceptance is not None:
            drafted = trial.drafted or usual.drafted
            # Of a longer draft later tokens are accepted less often.
            return DraftUse(trial.acceptance, _TEXT_SD, min(drafted, draft_max))
    return usual


def predicted_gain(
    model: ModelInfo,
    plan: Plan,
    speeds: ClusterSpeeds,
    load: Workload,
    method: Speculation,
    use: DraftUse,
    draft_model: ModelInfo | None = None,
) -> DraftGain:
    """The gain of one of a plan's methods; ``draft_model`` is that of its file."""
    plain = forecast(model, plan, speeds, load)
    drafted = drafted_load(model, plan, speeds, load, method, use, draft_model)
    told = forecast(model, plan, speeds, drafted)
    checking_ms = told.pass_ms - drafted.draft_ms - plain.pass_ms
    # A pass of unknown length counts as far as drafting and checking make it longer.
    unknown = log(plain.high / plain.low) / (2 * BAND_SD)
    spread = hypot(
        drafted.tokens_sd / drafted.tokens_per_pass,
        drafted.draft_sd_ms / told.pass_ms,
        _CHECK_SD * checking_ms / told.pass_ms,
        unknown * (1 - plain.pass_ms / told.pass_ms),
    )
    speedup, factor = told.tok_per_s / plain.tok_per_s, exp(BAND_SD * spread)
    return DraftGain(method.draft, told, speedup, speedup / factor, speedup * factor)


def drafted_load(
    model: ModelInfo,
    plan: Plan,
    speeds: ClusterSpeeds,
    load: Workload,
    method: Speculation,
    use: DraftUse,
    draft_model: ModelInfo | None = None,
) -> Workload:
    """The same use with a draft: more tokens a pass, and the time to draft them."""
    token_ms, token_sd_ms = _draft_token_ms(model, plan, speeds, method, draft_model)
    return load._replace(
        tokens_per_pass=1 + use.acceptance * use.drafted,
        tokens_sd=use.acceptance_sd * use.drafted,
        drafted=max(round(use.drafted), 1),
        # llama-server drafts for one slot after another.
        draft_ms=load.slots * use.drafted * token_ms,
        draft_sd_ms=load.slots * use.drafted * token_sd_ms,
    )


def likely(gains: Iterable[DraftGain]) -> str:
    """The draft of the largest predicted gain, if it surely costs next to nothing."""
    found = [one for one in gains if one.speedup >= WORTH and one.low * WORTH >= 1]
    best = max(found, key=lambda one: one.speedup, default=None)
    return best.draft if best else NO_DRAFT


def predicted_text(gain: DraftGain) -> str:
    low, high = format_factor(gain.low), format_factor(gain.high)
    return f"{format_factor(gain.speedup)} predicted ({low} to {high})"


def _draft_token_ms(
    model: ModelInfo,
    plan: Plan,
    speeds: ClusterSpeeds,
    method: Speculation,
    draft_model: ModelInfo | None,
) -> tuple[float, float]:
    speed = speeds.of_device.get(method.device)
    if method.draft == NGRAM_DRAFT or speed is None:
        return 0.0, 0.0
    if method.draft == MTP_DRAFT:
        works = layer_work(model, plan, 0, 1, rows=1)[-model.n_layer_nextn - 1 :]
        ms, variance = work_ms(speed, sum(works, start=Work(passes=1)))
        away_ms, away_variance = _away_ms(plan, speeds, method.device)
        return ms + away_ms, (variance + away_variance) ** 0.5
    if draft_model is None:
        return 0.0, 0.0
    whole = whole_on(draft_model, method.device, plan)
    works = layer_work(draft_model, whole, 0, 1, rows=1)
    ms, variance = work_ms(speed, sum(works, start=Work(passes=1)))
    return ms, variance**0.5


def _away_ms(plan: Plan, speeds: ClusterSpeeds, device: str) -> tuple[float, float]:
    worker = plan.worker_of.get(device)
    if worker is None:
        return 0.0, 0.0
    ms, variance = link_ms(speeds.link_to(worker.name), 1, 0)
    return _MTP_TRIPS * ms, _MTP_TRIPS**2 * variance
