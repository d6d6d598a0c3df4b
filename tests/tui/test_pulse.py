"""The token pulse: a typical pass that runs over the split bar where its time goes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from msgspec.structs import replace

from backends.link.figures import WorkerTimes, token_totals
from tests.kit.console import Started
from tests.tui import scenes
from tests.tui.helpers import settled, until
from tests.tui.scripted import ScriptedCluster
from tui.model.token_time import BarSegment, Leg, pass_legs, place_of

HEAD = BarSegment(0, 10, 5, "")
MINI = BarSegment(11, 31, 5, "mini")
TOTALS = token_totals(())._replace(
    head_ms=10.0, workers=(WorkerTimes("mini", 20.0, 40.0, 25.0, 5.0),)
)


def columns(legs: tuple[Leg, ...], steps: int = 100) -> list[float | None]:
    return [place_of(legs, step / steps) for step in range(steps)]


def test_it_is_as_long_at_a_place_as_the_pass() -> None:
    seen = columns(pass_legs([HEAD, MINI], TOTALS))
    known = [one for one in seen if one is not None]
    assert len(known) == len(seen)
    assert sum(one < 10 for one in known) == 10
    # Up at the one edge of its layers, down and waiting at the other.
    assert sum(10 <= one < 11 for one in known) == 20
    assert sum(30 <= one < 31 for one in known) == 30
    assert all(one <= two for one, two in pairwise(known))


def test_a_head_without_layers_is_off_the_bar() -> None:
    seen = columns(pass_legs([BarSegment(0, 1, 0, ""), MINI], TOTALS))
    assert seen[:10] == [None] * 10
    assert seen[10] == 10


def test_devices_of_one_machine_share_its_time_by_layers() -> None:
    twins = [BarSegment(0, 10, 1, "mini"), BarSegment(11, 20, 3, "mini")]
    legs = pass_legs(twins, TOTALS)
    assert sum(leg.ms for leg in legs) == pytest.approx(100)
    assert [leg.ms for leg in legs if leg.end - (leg.start or 0) > 5] == [10, 30]


def test_what_is_not_measured_has_no_pulse() -> None:
    other = MINI._replace(worker="nuc")
    assert pass_legs([HEAD, other], TOTALS) == ()
    assert pass_legs([HEAD, MINI], token_totals(())) == ()
    # One that holds nothing takes no part.
    assert pass_legs([HEAD, MINI, other._replace(layers=0)], TOTALS)


async def test_it_runs_while_tokens_come_and_one_key_ends_it(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = scenes.homelab_serving()
    cluster = ScriptedCluster(scene)
    async with started(cluster) as (pilot, app, _):
        await settled(pilot)
        bar = app._home.split.bar

        def lit() -> set[int]:
            found = set()
            for _ in range(40):
                bar._frame()
                if bar._lit:
                    found.add(bar._lit[0])
            return found

        # Tests run without motion.
        assert not app.pulses
        assert not bar._legs
        monkeypatch.delenv("NO_MOTION")
        app.animation_level = "full"
        bar.follow()
        assert len(lit()) > 10
        app.animation_level = "none"
        bar.follow()
        assert bar._lit is None
        app.animation_level = "full"
        # A terminal that takes nothing more: it rests until the next answer.
        monkeypatch.setattr(type(app), "writes_wait", True)
        bar.follow()
        assert lit() == set()
        bar.follow()
        assert not bar._legs
        monkeypatch.setattr(type(app), "writes_wait", False)
        idle = replace(scene.speed, tok_per_s=None)
        cluster.push(replace(scene, seq=scene.seq + 1, speed=idle))
        await until(pilot, lambda: app.editor.facts.snapshot.speed == idle)
        assert not bar._legs
        cluster.push(replace(scene, seq=scene.seq + 2))
        await until(pilot, lambda: bar._legs)
        bar.focus()
        await pilot.press("T")
        await until(pilot, lambda: not app.pulse)
        bar.follow()
        assert not bar._legs
        assert bar._lit is None
