"""The token pulse: a typical pass that runs over the split bar where its time goes."""

from __future__ import annotations

import os
import pty
import time
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from rich.segment import Segment
from rich.style import Style
from textual.drivers._writer_thread import WriterThread
from textual.geometry import Region
from textual.strip import Strip

from backends.link.figures import WorkerTimes, token_totals
from tests.kit.console import Started
from tests.tui import scenes
from tests.tui.helpers import PATIENCE_S, settled, until
from tests.tui.scripted import ScriptedCluster
from tui.app import theming
from tui.app.console import ConsoleApp
from tui.model.files import BUILTIN_FOLDER
from tui.model.token_time import BarSegment, Leg, leg_shares, pass_legs, place_of
from tui.screens.cluster.split_bar import trailed
from tui.widgets.palette import palette_from

HEAD = BarSegment(0, 10, 5, "")
MINI = BarSegment(11, 31, 5, "mini")
THEME = theming.load_theme(BUILTIN_FOLDER / "dllm-dark.toml")
PALETTE = palette_from(THEME.to_color_system().generate() | THEME.variables)
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


def test_its_trail_is_as_bright_as_the_part_of_each_stretch() -> None:
    shares = leg_shares(pass_legs([HEAD, MINI], TOTALS), 33)
    # The head, mini's link up, its layers, the way back; nothing beyond.
    assert shares == (0.25,) * 10 + (0.5,) + (1.0,) * 19 + (0.75,) + (0.0, 0.0)


def test_the_trail_changes_grounds_alone() -> None:
    ground = Style(bgcolor="#202020", color="#ffffff")
    row = Strip([Segment("ab", ground), Segment("cd", ground)])
    lit = trailed(row, (0.0, 0.2, 0.2), PALETTE)
    assert lit.text == row.text
    assert lit.cell_length == 4
    grounds = [s.style.bgcolor for s in lit for _ in s.text if s.style]
    assert grounds[0] == grounds[3] == ground.bgcolor != grounds[1] == grounds[2]
    assert trailed(row, (), PALETTE) is row
    # The terminal became narrower while the pulse was beyond.
    assert trailed(row, (0.2,) * 9, PALETTE).text == "abcd"


def test_a_terminal_that_takes_nothing_more_is_noticed() -> None:
    master, slave = pty.openpty()
    with open(slave, "w", encoding="utf-8") as terminal:
        writer = WriterThread(terminal)
        writer.start()
        console = SimpleNamespace(_driver=SimpleNamespace(_writer_thread=writer))
        waits = partial(ConsoleApp.writes_wait.fget, console)  # type: ignore[attr-defined]

        def until_it(is_so: bool) -> None:
            deadline = time.monotonic() + PATIENCE_S
            while waits() is not is_so:
                assert time.monotonic() < deadline
                time.sleep(0.005)

        until_it(False)
        for _ in range(3):
            writer.write("x" * 100_000)
        until_it(True)
        left = 300_000
        while left:
            left -= len(os.read(master, 65536))
        until_it(False)
        writer.stop()
    os.close(master)


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
        painted: list[tuple[int, int]] = []

        def refresh(region: Region) -> None:
            painted.append((region.x, region.right))

        with monkeypatch.context() as patch:
            patch.setattr(bar, "refresh", refresh)
            assert len(lit()) > 10
        # The trail costs nothing: only where the pulse was and is, but at its end.
        steps = [end - start for start, end in painted]
        assert sum(cells > bar.size.width // 3 for cells in steps) <= 4
        top = bar._bar_rows(bar.size.height)[0]
        bar._light(bar.size.width - 2.0)
        trail = {s.style.bgcolor for s in bar.render_line(top) if s.style}
        bar._light(None)
        assert len(trail) > len(
            {s.style.bgcolor for s in bar.render_line(top) if s.style}
        )
        # A frame is cut out of rows that were made before.
        with monkeypatch.context() as patch:
            patch.setattr("tui.screens.cluster.split_bar.trailed", None)
            for column in range(bar.size.width):
                bar._light(float(column))
                assert bar.render_line(top).text == bar.lines()[top].text
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
