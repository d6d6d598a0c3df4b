"""The predicted gain of a draft: tokens a pass against the time that drafting takes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from backends.speculation.gain import (
    WORTH,
    DraftedRun,
    DraftGain,
    DraftUse,
    draft_use,
    likely,
    predicted_text,
)
from backends.split.cost import BAND_SD, Work, Workload, work_ms
from backends.state import NO_DRAFT, DraftTrial, Layer, ModelInfo, Speculation
from tests.unit.split.test_objectives import MODEL, site

SMALL = Speculation(type="draft-simple", model="/small.gguf", device="local/CPU")
NGRAM = Speculation(type="ngram-map-k")
MTP = Speculation(type="draft-mtp", device="b/CUDA0")
DRAFT_MODEL = ModelInfo(
    path="/small.gguf",
    arch="llama",
    n_layer=1,
    n_embd=64,
    n_vocab=1000,
    layers=(Layer(index=0, bytes=10_000_000),),
    output_bytes=10_000_000,
)
SURE = DraftUse(0.75, 0.0, 8)


def gain(
    method: Speculation = SMALL,
    use: DraftUse = SURE,
    *,
    rtt_ms: float = 20.0,
    rtt_sd_ms: float | None = None,
    draft_model: ModelInfo = DRAFT_MODEL,
    slots: int = 1,
) -> DraftGain:
    there = site(rtt_ms=rtt_ms)
    speeds = there.speeds
    if rtt_sd_ms is not None:
        links = tuple(replace(link, rtt_sd_ms=rtt_sd_ms) for link in speeds.links)
        speeds = replace(speeds, links=links)
    return DraftedRun(
        model=there.model,
        plan=there.plan,
        speeds=speeds,
        load=Workload(slots=slots),
        method=method,
        use=use,
        draft_model=draft_model,
    ).gain()


def test_it_is_tokens_a_pass_against_time_a_pass() -> None:
    """20 MB on a CPU of 20 GB/s are 1 ms and the pass itself, eight times."""
    there = site(rtt_ms=20)
    plain = there.forecast()
    found = gain()
    cpu = there.speeds.devices[0]
    draft_ms = 8 * work_ms(cpu, Work(weight_gb=0.02, layers=2, passes=1))[0]
    checked = there._replace(load=Workload(drafted=8)).forecast()
    assert found.forecast.pass_ms == pytest.approx(checked.pass_ms + draft_ms)
    tokens = 1 + 0.75 * 8
    assert found.forecast.tok_per_s == pytest.approx(
        1000 * tokens / found.forecast.pass_ms
    )
    assert found.speedup == pytest.approx(found.forecast.tok_per_s / plain.tok_per_s)
    assert found.speedup > 2


def test_trips_and_bytes_are_shared_by_its_tokens() -> None:
    assert gain().forecast.trips_per_token == pytest.approx(2 / 7)


def test_a_model_as_its_own_draft_loses_where_there_is_no_network() -> None:
    found = gain(rtt_ms=0.0, draft_model=replace(MODEL, path="/small.gguf"))
    assert found.speedup < 0.5
    assert found.high < 1
    assert likely([found]) == NO_DRAFT


def test_what_is_not_known_of_the_text_is_in_the_band() -> None:
    guessed, measured = DraftUse(0.5, 0.2, 8), DraftUse(0.5, 0.1, 8)
    wide, narrow = gain(use=guessed), gain(use=measured)
    assert wide.speedup == narrow.speedup
    assert wide.low < narrow.low < narrow.speedup < narrow.high < wide.high
    told = wide.forecast
    least = 1.6 / 5 * BAND_SD
    assert told.high / told.low > 1 + least


def test_a_pass_of_unknown_length_widens_the_band() -> None:
    known, guessed = gain(), gain(rtt_sd_ms=15.0)
    assert guessed.speedup == known.speedup
    assert guessed.low < known.low
    assert guessed.high > known.high


def test_slots_are_drafted_for_one_after_another() -> None:
    one, four = gain(), gain(slots=4)
    per_token = [g.forecast.pass_ms for g in (one, four)]
    there = site(rtt_ms=20)
    checks = [
        there._replace(load=Workload(drafted=8, slots=n)).forecast().pass_ms
        for n in (1, 4)
    ]
    drafting = [whole - check for whole, check in zip(per_token, checks, strict=True)]
    assert drafting[1] == pytest.approx(4 * drafting[0])


def test_earlier_text_drafts_for_nothing() -> None:
    use = DraftUse(0.5, 0.0, 2.0)
    found = gain(NGRAM, use)
    there = site(rtt_ms=20)
    checked = there._replace(load=Workload(drafted=2)).forecast()
    assert found.forecast.pass_ms == pytest.approx(checked.pass_ms)


def test_own_layers_on_a_worker_pay_trips_for_each_token() -> None:
    near, far = gain(MTP, rtt_ms=0.0), gain(MTP, rtt_ms=20.0)
    assert far.forecast.pass_ms - near.forecast.pass_ms == pytest.approx(
        (2 + 8 * 2.5) * 20.0
    )
    assert far.speedup < near.speedup


def test_the_newest_measurement_of_that_draft_counts() -> None:
    trials = (
        DraftTrial(draft="/other.gguf", tok_per_s=1.0, acceptance=0.1, at=9.0),
        DraftTrial(draft="/small.gguf", tok_per_s=1.0, at=8.0),
        DraftTrial(
            draft="/small.gguf", tok_per_s=1.0, acceptance=0.9, drafted=5.0, at=7.0
        ),
        DraftTrial(draft="/small.gguf", tok_per_s=1.0, acceptance=0.2, at=6.0),
    )
    assert draft_use(SMALL, 8, trials)[::2] == (0.9, 5.0)
    assert draft_use(SMALL, 4, trials).drafted == 4
    unknown = draft_use(SMALL, 8)
    assert unknown.drafted == 8
    assert unknown.acceptance_sd > draft_use(SMALL, 8, trials).acceptance_sd
    assert draft_use(NGRAM, 8).drafted < 8


def one(draft: str, low: float, speedup: float, high: float) -> DraftGain:
    return DraftGain(draft, gain().forecast, speedup, low, high)


def test_only_what_surely_costs_next_to_nothing_is_begun_with() -> None:
    sure, risky = one("a", 0.98, 1.5, 2.3), one("b", 0.9, 4.0, 9.0)
    assert likely([risky, sure]) == "a"
    assert likely([risky]) == likely([]) == NO_DRAFT
    assert likely([one("c", 1.0, WORTH - 0.01, 1.1)]) == NO_DRAFT
    assert predicted_text(sure) == "×1.50 predicted (×0.98 to ×2.30)"
