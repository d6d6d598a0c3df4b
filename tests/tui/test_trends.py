"""Histories of the last minutes: honest about time and about what is unknown."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from backends.state import ClusterSnapshot, ProcessRole, Speed
from tests.tui import scenes
from tests.tui.links import BOX, MINI
from tui.model.facts import LiveFacts
from tui.model.trends import (
    HEAD,
    NOTHING,
    STEP_S,
    STEPS_MAX,
    Trend,
    TrendReading,
    Trends,
)

COMPUTE, CORES, MEMORY, LINK = range(4)


def trends_of(*snapshots: ClusterSnapshot) -> Trends:
    trends = Trends()
    for snapshot in snapshots:
        trends.add(LiveFacts.of(snapshot))
    return trends


def serving(at_s: float, **facts: object) -> ClusterSnapshot:
    return replace(
        scenes.homelab_serving(), at=scenes.NOW + at_s, links=(MINI, BOX), **facts
    )


def test_the_head_and_every_worker_have_a_history() -> None:
    trends = trends_of(serving(0))
    assert list(trends.workers) == [HEAD, "mini", "box"]
    mini = trends.workers["mini"].now
    assert mini.compute_ms == MINI.compute_ms_per_token
    assert mini.rss_bytes == 3 * scenes.GIB
    assert mini.bytes_per_s is not None
    assert trends.workers[HEAD].now.bytes_per_s is None


def test_readings_of_one_stretch_are_one_column() -> None:
    trend = Trend()
    for cores in (1.0, 2.0, 6.0):
        trend.add(TrendReading(cpu_cores=cores))
    assert trend.series(CORES) == [3.0]
    trend.step(1)
    trend.add(TrendReading(cpu_cores=8.0))
    assert trend.series(CORES) == [3.0, 7.0]


def test_stretches_without_news_are_as_before_and_keep_their_time() -> None:
    trends = trends_of(serving(0), serving(4 * STEP_S))
    assert trends.workers["mini"].series(MEMORY) == [3 * scenes.GIB] * 5


def test_time_without_a_controller_is_blank() -> None:
    trends = trends_of(serving(0))
    trends.interrupt()
    trends.add(LiveFacts.of(serving(3 * STEP_S)))
    memory = trends.workers["mini"].series(MEMORY)
    assert memory == [3 * scenes.GIB, None, None, 3 * scenes.GIB]


def test_a_pause_has_no_speed() -> None:
    paused = serving(STEP_S, speed=Speed(last_tok_per_s=20.0))
    box = trends_of(serving(0), paused).workers["box"]
    assert box.series(COMPUTE)[0] == BOX.compute_ms_per_token
    assert box.now.compute_ms is None


def test_an_answer_too_short_to_sample_has_a_speed() -> None:
    trends = trends_of(serving(0, speed=Speed(tokens=100)))
    assert trends.workers["box"].now.compute_ms is None
    trends.add(LiveFacts.of(serving(1, speed=Speed(tokens=125))))
    assert trends.workers["box"].now.compute_ms == BOX.compute_ms_per_token


def test_a_bare_worker_tells_nothing_of_its_process() -> None:
    processes = scenes.homelab_serving().processes
    ours = tuple(p for p in processes if p.role is not ProcessRole.WORKER)
    now = trends_of(serving(0, processes=ours)).workers["mini"].now
    assert (now.cpu_cores, now.rss_bytes) == (None, None)
    assert now.bytes_per_s is not None


def test_workers_that_left_the_plan_are_forgotten() -> None:
    later = replace(scenes.demo_serving(), at=scenes.NOW + 9)
    trends = trends_of(serving(0), later)
    assert list(trends.workers) == [HEAD, "worker1", "worker2"]
    trends.add(LiveFacts.of(scenes.idle()))
    assert not trends.workers


@pytest.mark.parametrize("pause_s", [STEP_S, 3600.0])
def test_histories_are_bounded(pause_s: float) -> None:
    snapshots = (serving(number * pause_s) for number in range(3 * STEPS_MAX))
    mini = trends_of(*snapshots).workers["mini"]
    assert len(mini.series(CORES)) == STEPS_MAX
    assert mini.now != NOTHING


def test_a_clock_that_goes_back_breaks_nothing() -> None:
    trends = trends_of(serving(100), serving(0))
    assert len(trends.workers["mini"].series(MEMORY)) == 1
