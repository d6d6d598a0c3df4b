"""The gain of a draft, predicted: more tokens a pass, for the time it takes.

A pass checks all drafted tokens at once. They are drafted before, one by one::

    tokens a pass = 1 + acceptance · drafted
    time of a pass = the model's for 1 + drafted tokens + drafted · the draft's own

The part that is accepted depends on text and pair. It is known where ``--draft auto``
measured it once; before that it is a guess with a wide band.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
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


@dataclass(frozen=True, kw_only=True)
class DraftedRun:
    """A plan in use, and one of its methods to draft."""

    model: ModelInfo
    plan: Plan
    speeds: ClusterSpeeds
    load: Workload
    """Without the draft."""
    method: Speculation
    use: DraftUse
    draft_model: ModelInfo | None = None
    """Of the method's file."""

    def gain(self) -> DraftGain:
        plain = forecast(self.model, self.plan, self.speeds, self.load)
        drafted = self.drafted_load()
        told = forecast(self.model, self.plan, self.speeds, drafted)
        checking_ms = told.pass_ms - drafted.draft_ms - plain.pass_ms
        # A pass of unknown length counts as far as drafting and checking lengthen it.
        unknown = log(plain.high / plain.low) / (2 * BAND_SD)
        spread = hypot(
            drafted.tokens_sd / drafted.tokens_per_pass,
            drafted.draft_sd_ms / told.pass_ms,
            _CHECK_SD * checking_ms / told.pass_ms,
            unknown * (1 - plain.pass_ms / told.pass_ms),
        )
        speedup, factor = told.tok_per_s / plain.tok_per_s, exp(BAND_SD * spread)
        low, high = speedup / factor, speedup * factor
        return DraftGain(self.method.draft, told, speedup, low, high)

    def drafted_load(self) -> Workload:
        """The same use with the draft: more tokens a pass, and time to draft them."""
        use, slots = self.use, self.load.slots
        token_ms, token_sd_ms = self._token_ms()
        return self.load._replace(
            tokens_per_pass=1 + use.acceptance * use.drafted,
            tokens_sd=use.acceptance_sd * use.drafted,
            drafted=max(round(use.drafted), 1),
            # llama-server drafts for one slot after another.
            draft_ms=slots * use.drafted * token_ms,
            draft_sd_ms=slots * use.drafted * token_sd_ms,
        )

    def _token_ms(self) -> tuple[float, float]:
        method, model, device = self.method, self.model, self.method.device
        speed = self.speeds.of_device.get(device)
        if method.draft == NGRAM_DRAFT or speed is None:
            return 0.0, 0.0
        if method.draft == MTP_DRAFT:
            works = layer_work(model, self.plan, 0, 1, rows=1)
            own = works[-model.n_layer_nextn - 1 :]
            ms, variance = work_ms(speed, sum(own, start=Work(passes=1)))
            away_ms, away_variance = self._away_ms()
            return ms + away_ms, (variance + away_variance) ** 0.5
        if self.draft_model is None:
            return 0.0, 0.0
        whole = whole_on(self.draft_model, device, self.plan)
        works = layer_work(self.draft_model, whole, 0, 1, rows=1)
        ms, variance = work_ms(speed, sum(works, start=Work(passes=1)))
        return ms, variance**0.5

    def _away_ms(self) -> tuple[float, float]:
        worker = self.plan.worker_of.get(self.method.device)
        if worker is None:
            return 0.0, 0.0
        ms, variance = link_ms(self.speeds.link_to(worker.name), 1, 0)
        return _MTP_TRIPS * ms, _MTP_TRIPS**2 * variance


def likely(gains: Iterable[DraftGain]) -> str:
    """The draft of the largest predicted gain, if it surely costs next to nothing."""
    found = [one for one in gains if one.speedup >= WORTH and one.low * WORTH >= 1]
    best = max(found, key=lambda one: one.speedup, default=None)
    return best.draft if best else NO_DRAFT


def predicted_text(gain: DraftGain) -> str:
    low, high = format_factor(gain.low), format_factor(gain.high)
    return f"{format_factor(gain.speedup)} predicted ({low} to {high})"
