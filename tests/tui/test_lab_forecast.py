"""The Lab's arithmetic: forecast, samples, pace, and what is wanted of links."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from backends.split.cost import mean_delay_ms
from backends.state import (
    ClusterSnapshot,
    Forecast,
    ForecastPart,
    Generation,
    Lab,
    Link,
    Pass,
    Speed,
)
from tests.tui import scenes
from tui.screens.lab.links import GRACE_S, PRESETS, LabWishes, describe, preset_of
from tui.screens.lab.speed import (
    Samples,
    lab_forecast,
    link_added_ms,
    links_own_ms,
    rate_at,
    same_lab,
    with_predicted_trips,
)
from tui.widgets.throttle import Throttle

SLOW = Lab(latency_ms=10)


def link(worker: str = "mini", head_ms: float = 30.0, **changes: object) -> Link:
    """A link on which a token computes 8 ms, waits 1 and travels 2."""
    plain = Link(
        worker=worker,
        rtt_ms=2.0,
        round_trips_per_token=1.0,
        bytes_up_per_token=12_000,
        bytes_down_per_token=8_000,
        head_ms_per_token=head_ms,
        up_ms_per_token=1.0,
        compute_ms_per_token=8.0,
        down_ms_per_token=1.0,
        wait_ms_per_token=1.0,
    )
    return replace(plain, **changes)


def passes(at_ms: float, span_ms: float, n: int = 4) -> tuple[Pass, ...]:
    return tuple(
        Pass(at_ms=at_ms - span_ms * k, compute_ms=span_ms) for k in reversed(range(n))
    )


def test_what_a_lab_adds_to_a_token() -> None:
    for lab, expected in (
        (None, 0.0),
        (Lab(), 0.0),
        (SLOW, 20.0),
        (Lab(rate_mb_s=10), 2.0),
        (Lab(latency_ms=10, rate_mb_s=10), 22.0),
        (Lab(latency_ms=10, jitter_ms=1), 20.0),
    ):
        assert link_added_ms(link(), lab) == pytest.approx(expected), lab
    # More round trips pay the latency more often.
    assert link_added_ms(link(round_trips_per_token=3.0), SLOW) == pytest.approx(60)
    assert link_added_ms(link(round_trips_per_token=None), SLOW) is None


def test_jitter_cut_at_zero_adds_to_the_mean() -> None:
    assert mean_delay_ms(Lab(jitter_ms=5)) == pytest.approx(1.9947, abs=1e-3)
    assert mean_delay_ms(Lab(latency_ms=4, jitter_ms=3)) == pytest.approx(4.13, abs=0.1)


def test_a_token_of_two_links_takes_head_machines_and_ways() -> None:
    """Each head part of 30 ms holds the 11 ms of the other link: the head has 19."""
    links = (link("mini"), link("box"))
    assert links_own_ms(links) == pytest.approx(19 + 2 * (8 + 1 + 2))
    assert lab_forecast(links, {}, links_own_ms(links)) == pytest.approx(1000 / 41)
    assert lab_forecast(links, {"mini": SLOW}, links_own_ms(links)) == pytest.approx(
        1000 / 61
    )
    assert lab_forecast(
        links, {"mini": SLOW, "box": SLOW}, links_own_ms(links)
    ) == pytest.approx(1000 / 81)


def test_a_lab_that_was_on_while_measuring_does_not_count_twice() -> None:
    slowed = link("mini", up_ms_per_token=11.0, down_ms_per_token=11.0, lab=SLOW)
    links = (slowed, link("box", head_ms=50.0))
    assert links_own_ms(links) == pytest.approx(41)
    assert lab_forecast(links, {"mini": SLOW}, links_own_ms(links)) == pytest.approx(
        1000 / 61
    )


def test_without_rtt_the_measured_way_counts_less_the_lab() -> None:
    slowed = link(rtt_ms=None, up_ms_per_token=11, down_ms_per_token=11, lab=SLOW)
    assert links_own_ms((slowed,)) == pytest.approx(30 + 9 + 2)


def test_nothing_is_predicted_before_everything_is_measured() -> None:
    for missing in ("head_ms_per_token", "compute_ms_per_token"):
        links = (link("mini"), replace(link("box"), **{missing: None}))
        assert lab_forecast(links, {}, links_own_ms(links)) is None
    assert lab_forecast((), {}, links_own_ms(())) is None


def test_before_a_token_trips_and_bytes_are_predicted() -> None:
    part = ForecastPart(
        name="mini", compute_ms=8, trips=1, bytes_up=9e3, bytes_down=1e3
    )
    told = Forecast(
        tok_per_s=50,
        low=40,
        high=60,
        first_token_s=1,
        first_token_low_s=1,
        first_token_high_s=1,
        bytes_per_token=1e4,
        trips_per_token=1,
        pass_ms=20,
        parts=(part,),
    )
    before = Link(worker="mini")
    predicted = with_predicted_trips(before, told)
    assert link_added_ms(predicted, SLOW) == pytest.approx(20)
    assert link_added_ms(predicted, Lab(rate_mb_s=10)) == pytest.approx(1)
    assert with_predicted_trips(before, None) is before
    assert with_predicted_trips(link(), told) == link()


def served(
    at: float,
    now: float | None,
    last: float | None = None,
    lab: Lab | None = None,
    **changes: Any,
) -> ClusterSnapshot:
    """A snapshot at ``at`` seconds of a cluster with one link."""
    speed = Speed(
        tok_per_s=now, last_tok_per_s=last, requests_active=int(now is not None)
    )
    return replace(
        scenes.homelab_serving(),
        at=at,
        speed=speed,
        links=(link(lab=lab, **changes),),
    )


def test_the_measured_speed_is_that_of_the_header() -> None:
    """However few tokens the passes tell of: a draft brings several in each."""
    samples = Samples()
    guessing = Generation(tokens_from="server", tokens_per_pass=1.3)
    samples.take(served(10, 551.0, passes=passes(1000, 6), generation=guessing))
    assert samples.latest == (0.0, 551.0)
    assert samples.base is not None
    assert rate_at(samples.base.own_ms, 0.0) == pytest.approx(551)
    samples.take(served(11, None, 549.0))
    assert samples.latest == (0.0, 549.0)


def test_a_speed_from_before_a_change_does_not_count_after_it() -> None:
    samples = Samples()
    samples.take(served(10, 50.0))
    samples.take(served(11, 50.0))
    assert len(samples.points) == 1
    samples.take(served(12, 49.0, lab=SLOW))
    samples.take(served(14, 40.0, lab=SLOW))
    assert samples.latest is None
    samples.take(served(15, 25.0, lab=SLOW))
    assert samples.latest == (20.0, 25.0)
    assert samples.base == (0.0, 50.0)
    assert rate_at(samples.base.own_ms, 20.0) == pytest.approx(25)


def test_a_whole_answer_after_a_change_counts() -> None:
    samples = Samples()
    samples.take(served(10, None, 50.0))
    samples.take(served(12, None, 50.0, lab=SLOW))
    assert samples.latest is None
    samples.take(served(13, None, 25.0, lab=SLOW))
    assert samples.latest == (20.0, 25.0)


class _Clockwork:
    """Takes timers as a widget does, and lets the test run them."""

    def __init__(self) -> None:
        self.timers: list[Callable[[], None]] = []

    def set_timer(self, gap_s: float, over: Callable[[], None]) -> Any:
        self.timers.append(over)
        return SimpleNamespace(stop=lambda: self.timers.remove(over))

    def pass_gap(self) -> None:
        self.timers.pop(0)()


def test_a_throttle_holds_back_all_but_the_newest() -> None:
    clockwork, done, wish = _Clockwork(), list[str](), [""]
    throttle = Throttle(clockwork, 0.1, lambda: done.append(wish[0]))  # type: ignore[arg-type]
    for wish[0] in ("a", "b", "c"):
        throttle.ask()
    assert done == ["a"]
    clockwork.pass_gap()
    assert done == ["a", "c"]
    clockwork.pass_gap()
    assert (done, clockwork.timers) == (["a", "c"], [])
    for wish[0] in ("d", "e"):
        throttle.ask(at_once=wish[0] == "e")
    assert done == ["a", "c", "d", "e"]
    assert len(clockwork.timers) == 1


def test_a_snapshot_from_before_is_not_believed_for_a_while() -> None:
    now = [0.0]
    wishes = LabWishes(lambda: now[0])
    assert wishes.adopt(link())
    assert wishes.want({"mini": SLOW})
    assert not wishes.adopt(link())
    assert wishes.adopt(link(lab=SLOW))
    assert wishes.adopt(link())
    wishes.want({"mini": SLOW})
    now[0] = GRACE_S + 1
    assert wishes.adopt(link())
    assert wishes.labs == {"mini": None}


def test_undo_gives_back_what_was_before() -> None:
    wishes = LabWishes(lambda: 0.0)
    wishes.want({"mini": SLOW})
    wishes.want({"mini": None, "box": None}, final=False)
    assert not wishes.want({"mini": SLOW})
    wishes.want({"mini": None, "box": SLOW})
    assert wishes.undo() == {"mini": SLOW, "box": None}
    assert wishes.undo() == {"mini": None}
    assert wishes.undo() is None


def test_presets_are_known_again() -> None:
    for preset in PRESETS:
        assert preset_of(preset.lab) is preset
    assert preset_of(Lab()) is PRESETS[0]
    assert preset_of(SLOW) is None
    assert same_lab(Lab(seed=4), None)


def test_a_lab_in_words() -> None:
    assert describe(Lab(latency_ms=4, jitter_ms=3, rate_mb_s=12)) == (
        "+4 ± 3 ms, 12 MB/s"
    )
    assert describe(Lab(rate_mb_s=6)) == "6 MB/s"
    assert describe(None) == ""
