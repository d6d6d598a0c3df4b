"""The Lab screen: what keys and mouse put on links, and what it says of the speed."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from backends.split.cost import mean_delay_ms
from backends.state import Acceptance, ClusterSnapshot, Lab, Link, Pass, Speed
from tests.kit.console import Started
from tests.tui import scenes
from tests.tui.helpers import resize, screen_text, settled, until
from tests.tui.pictures import BOTH, SMALL, Snap, seen
from tests.tui.scripted import ScriptedCluster, homelab
from tests.tui.snapshot_sizes import MakeApp, Size
from tests.unit.bench.test_sweep_report import POINTS, SWEEP
from tui.app.app import DllmApp
from tui.dialogs.dialog import ChoiceDialog
from tui.screens.lab.links import LinkBlock
from tui.screens.lab.screen import LabScreen, command_of
from tui.screens.lab.sweep import curve_at, progress_text, save_sweep

WIFI = Lab(latency_ms=1.5, jitter_ms=0.5, rate_mb_s=30)
WAN = Lab(latency_ms=20, jitter_ms=2, rate_mb_s=6)
BUSY_MS = {"mini": 9.8, "box": 4.1}
HEAD_MS = 27.0


RTT_MS = {"mini": 3.1, "box": 0.4}
WAIT_MS = 0.2
PARTS = ("head_ms", "up_ms", "compute_ms", "down_ms", "wait_ms")


def network_ms(worker: str, lab: Lab | None) -> float:
    added = 2 * mean_delay_ms(lab) if lab else 0.0
    flow = 20.1 / lab.rate_mb_s if lab and lab.rate_mb_s else 0.0
    return RTT_MS[worker] + added + flow


def a_link(worker: str, labs: Mapping[str, Lab | None], at_ms: float) -> Link:
    """A link of the homelab; its passes tell what the labs do to them."""
    lab, rtt_ms = labs[worker], RTT_MS[worker]
    others = sum(
        BUSY_MS[name] + WAIT_MS + network_ms(name, labs[name])
        for name in labs
        if name != worker
    )
    parts: dict[str, Any] = {
        "head_ms": HEAD_MS + others,
        "up_ms": network_ms(worker, lab) / 2,
        "compute_ms": BUSY_MS[worker],
        "down_ms": network_ms(worker, lab) / 2,
        "wait_ms": WAIT_MS,
    }
    per_token = {f"{name}_per_token": value for name, value in parts.items()}
    span = sum(parts.values())
    passes = tuple(Pass(at_ms=at_ms - span * n, **parts) for n in (2, 1, 0))
    return Link(
        worker=worker,
        protocol="8.0.0",
        rtt_ms=rtt_ms,
        round_trips_per_token=1.0,
        bytes_up_per_token=11_900,
        bytes_down_per_token=8_200,
        lab=lab,
        passes=passes,
        **per_token,
    )


def serving(
    at_ms: float = 1000.0, *, mini: Lab | None = None, box: Lab | None = None
) -> ClusterSnapshot:
    """The homelab behind relays."""
    labs = {"mini": mini, "box": box}
    links = tuple(a_link(worker, labs, at_ms) for worker in labs)
    token_ms = sum(getattr(links[0].passes[0], part) for part in PARTS)
    scene = scenes.homelab_serving()
    speed = replace(scene.speed, tok_per_s=1000 / token_ms)
    at = scene.at + at_ms / 1000
    return replace(scene, links=links, speed=speed, at=at)


class LabApp:
    """The Lab screen in front, its wishes at hand."""

    def __init__(self, pilot: Pilot[None], cluster: ScriptedCluster) -> None:
        self.pilot, self.cluster = pilot, cluster

    @property
    def screen(self) -> LabScreen:
        assert isinstance(self.pilot.app.screen, LabScreen)
        return self.pilot.app.screen

    def block(self, worker: str) -> LinkBlock:
        return next(b for b in self.screen.query(LinkBlock) if b.worker == worker)

    @property
    def wishes(self) -> list[tuple[str | None, Lab | None]]:
        return self.cluster.called("set_lab")

    async def shows(self, text: str) -> None:
        await until(self.pilot, lambda: text in screen_text(self.pilot.app))

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()


async def opened(pilot: Pilot[None], cluster: ScriptedCluster) -> LabApp:
    await settled(pilot)
    await pilot.press("f4")
    await until(pilot, lambda: isinstance(pilot.app.screen, LabScreen))
    await pilot.pause()
    return LabApp(pilot, cluster)


@asynccontextmanager
async def lab_of(
    make_app: MakeApp, snapshot: ClusterSnapshot, size: Size = (120, 36)
) -> AsyncIterator[LabApp]:
    cluster = ScriptedCluster(snapshot)
    async with make_app(cluster).run_test(size=size) as pilot:
        yield await opened(pilot, cluster)


async def test_each_link_has_its_sliders_and_shows_what_the_command_line_set(
    make_app: MakeApp,
) -> None:
    async with lab_of(make_app, serving()) as lab:
        assert [b.worker for b in lab.screen.query(LinkBlock)] == ["mini", "box"]
        assert lab.block("mini").latency.has_focus
        assert "RTT 3.10 ms · 1.0 trips/token" in screen_text(lab.pilot.app)
        lab.cluster.push(serving(mini=Lab(latency_ms=7.3)))
        await until(lab.pilot, lambda: lab.block("mini").latency.value == 7.3)
        assert lab.block("box").lab is None
        assert "7.30 ms" in screen_text(lab.pilot.app)
        speed = Speed(acceptance=Acceptance(drafted=8, accepted=6, passes=1))
        lab.cluster.push(replace(serving(), speed=speed))
        await lab.shows("75 % of the draft accepted")


async def test_before_an_answer_it_predicts_and_says_what_to_do(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = (Link(worker="mini"), Link(worker="box"))
    cluster = homelab(replace(serving(), links=links, speed=Speed()))
    app = make_app(cluster)
    async with app.run_test(size=(120, 36)) as pilot:
        lab = await opened(pilot, cluster)
        await lab.shows("Nothing is measured yet: ask something, or s sweeps a link.")
        await until(pilot, lambda: app.editor.running_forecast)
        told = app.editor.running_forecast
        assert told is not None
        await lab.shows(f"~{told.tok_per_s:.1f} tok/s   measured   —")
        predicted: list[object] = []
        assert isinstance(app.screen, LabScreen)
        monkeypatch.setattr(app.screen, "_forecast", lambda: predicted.append(told))
        shown = app.editor.snapshot
        assert shown is not None
        app.take(replace(shown, seq=shown.seq + 1, at=shown.at + 1))
        assert predicted == [told]


async def test_keys(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one console, each from where the last ones left it."""
    # The links of this cluster never become what was asked for.
    monkeypatch.setattr("tui.screens.lab.links.GRACE_S", math.inf)
    steps: list[tuple[str, list[tuple[str | None, Lab | None]]]] = [
        ("u c C", []),
        ("w", [("mini", WIFI)]),
        ("w", []),
        ("A", [(None, WIFI)]),
        ("C", [(None, None)]),
        ("r n", [("mini", WAN), ("mini", None)]),
        ("w c", [("mini", WIFI), ("mini", None)]),
        ("w u", [("mini", WIFI), ("mini", None)]),
        ("r w u c", [("mini", lab) for lab in (WAN, WIFI, WAN, None)]),
        ("equals_sign 2 0 enter c", [("mini", Lab(latency_ms=20)), ("mini", None)]),
        ("equals_sign w 3 c enter c", [("mini", Lab(latency_ms=3)), ("mini", None)]),
        ("down equals_sign 5 enter c", [("mini", Lab(jitter_ms=5)), ("mini", None)]),
        ("down down r c", [("box", WAN), ("box", None)]),
        ("up up up up left", [("box", Lab(rate_mb_s=1000))]),
    ]
    async with lab_of(make_app, serving()) as lab:
        for keys, wishes in steps:
            before = len(lab.wishes)
            await lab.press(*keys.split())
            # Of two wishes at once the later waits for a gap.
            asked = before + len(wishes)
            await until(lab.pilot, lambda: len(lab.wishes) >= asked)  # noqa: B023
            assert lab.wishes[before:] == wishes, keys


async def test_a_seed_is_kept_and_undo_of_all_gives_each_link_its_own(
    make_app: MakeApp,
) -> None:
    seeded = Lab(latency_ms=1, seed=7)
    async with lab_of(make_app, serving(mini=seeded, box=WAN)) as lab:
        await lab.press("right")
        slower = Lab(latency_ms=1.1, seed=7)
        assert lab.wishes == [("mini", slower)]
        for key in ("C", "u"):
            await lab.press(key)
        assert lab.wishes[1] == (None, None)
        own = [("mini", slower), ("box", WAN)]
        assert sorted(lab.wishes[2:], key=str) == sorted(own, key=str)
        assert lab.block("box").lab == WAN


async def test_the_end_of_a_drag_is_told_always(started: Started) -> None:
    async with started(serving(), wait=False) as (pilot, app, _):
        screen = LabScreen()
        told: list[Lab | None] = []
        await app.push_screen(screen)
        screen.show_snapshot(serving())
        await until(pilot, lambda: len(screen.query(LinkBlock)) == 2)
        await pilot.pause()
        app.set_lab = lambda worker, lab: told.append(lab)  # type: ignore[method-assign]
        slider = screen.query(LinkBlock).first().latency
        await pilot.mouse_down(slider, offset=(slider.thumb_x, 0))
        for n in range(1, 25):
            await pilot.hover(slider, offset=(slider.thumb_x + n % 3, 0))
        await pilot.mouse_up(slider, offset=(slider.thumb_x, 0))
        await pilot.pause()
        assert told[-1] == screen.query(LinkBlock).first().lab is not None
    shown = app.editor.snapshot
    assert shown
    app.take(replace(serving(1500), seq=shown.seq + 1))
    assert app.editor.snapshot is shown, "news that come while leaving"


async def test_a_thumb_that_is_held_stays_when_news_come(make_app: MakeApp) -> None:
    async with lab_of(make_app, serving()) as lab:
        slider = lab.block("mini").latency
        await lab.pilot.mouse_down(slider, offset=(slider.thumb_x, 0))
        await lab.pilot.hover(slider, offset=(slider.thumb_x + 20, 0))
        held = slider.value
        assert held > 0
        lab.cluster.push(serving(1500, mini=Lab(latency_ms=99), box=WIFI))
        await until(lab.pilot, lambda: lab.block("box").lab is not None)
        assert slider.value == held
        await lab.pilot.press("escape")
        assert slider.value == 0
        assert not slider.dragging


async def test_prediction_follows_the_thumb(make_app: MakeApp) -> None:
    async with lab_of(make_app, serving(), (160, 36)) as lab:
        own_ms = HEAD_MS + 9.8 + 4.1 + 0.4 + 3.1 + 0.4
        assert f"predicted  ~{1000 / own_ms:.1f}" in screen_text(lab.pilot.app)
        await lab.press("equals_sign", "1", "0", "enter")
        slower = 1000 / (own_ms + 20)
        await lab.shows(f"predicted  ~{slower:.1f}")
        assert "the lab adds ~20.0 ms to a token" in screen_text(lab.pilot.app)
        lab.cluster.push(serving(5000, mini=Lab(latency_ms=10)))
        await until(lab.pilot, lambda: lab.screen._samples.latest is None)
        lab.cluster.push(serving(9000, mini=Lab(latency_ms=10)))
        await lab.shows("● measured")
        await until(lab.pilot, lambda: lab.screen._samples.latest is not None)


async def test_no_relays(make_app: MakeApp, snap_compare: Snap) -> None:
    async with lab_of(make_app, scenes.homelab_without_relays(), SMALL) as lab:
        assert "launched with --relay off" in screen_text(lab.pilot.app)
        await seen(snap_compare, lab.pilot)
        await lab.press("w", "A", "c", "C", "u", "down", "y")
        assert lab.wishes == []
        # Links come and go.
        lab.cluster.push(serving())
        await until(lab.pilot, lambda: len(lab.screen.query(LinkBlock)) == 2)
        await until(lab.pilot, lambda: lab.block("mini").latency.has_focus)
        alone = serving()
        lab.cluster.push(replace(alone, links=alone.links[:1]))
        await until(lab.pilot, lambda: len(lab.screen.query(LinkBlock)) == 1)
        lab.cluster.push(scenes.homelab_without_relays())
        await lab.shows("launched with --relay off")


async def test_presets_can_be_clicked(make_app: MakeApp) -> None:
    async with lab_of(make_app, serving()) as lab:
        for size, place, at in (
            ((120, 36), "#lab-side PresetList", (6, 2)),
            ((80, 24), "#lab-row", (26, 0)),
        ):
            await resize(lab.pilot, *size)
            await lab.pilot.click(place, offset=at)
            await until(lab.pilot, lambda: lab.wishes == [("mini", WIFI)])
            lab.block("mini").latency.focus()
            await lab.press("c")
            assert lab.wishes[1:] == [("mini", None)]
            lab.cluster.calls.clear()


def test_the_command_of_a_lab() -> None:
    assert command_of("mini", None) == "dllm-tui links reset mini"
    assert command_of("mini", WAN) == (
        "dllm-tui links slow mini --latency 20ms --jitter 2ms --rate 6MB/s"
    )


async def test_look(make_app: MakeApp, snap_compare: Snap) -> None:
    async with lab_of(make_app, serving(), SMALL) as lab:
        at_ms = 2000.0
        for latency in (2, 2, 5, 5, 10, 10):
            at_ms += 4000
            measured = serving(at_ms, mini=Lab(latency_ms=latency), box=WIFI)
            lab.cluster.push(measured)
            await until(
                lab.pilot,
                lambda: lab.screen._snapshot is measured,  # noqa: B023
            )
        await seen(snap_compare, lab.pilot, *BOTH)


# --- a sweep -----------------------------------------------------------------------


def test_progress_tells_the_step_and_what_is_expected() -> None:
    assert progress_text(replace(SWEEP, measuring=2)) == (
        "step 3 of 3: +50 ms, predicted ~8.0 tok/s; measured before 16.0"
    )


def test_the_curve_is_straight_between_steps() -> None:
    for latency_ms, expected in (
        (0, (30, 40, 50)),
        (12.5, (19.5, 26, 32.5)),
        (50, (6, 8, 10)),
    ):
        assert curve_at(POINTS, latency_ms) == pytest.approx(expected)


async def test_a_sweep_is_saved_as_picture_and_values(tmp_path: Path) -> None:
    picture, values = await save_sweep(SWEEP, tmp_path)
    assert picture.read_text().startswith("<svg")
    assert values.read_text().count("\n") == 1 + len(POINTS)


async def begin_sweep(pilot: Pilot[None]) -> None:
    await pilot.press("f4")
    await until(pilot, lambda: isinstance(pilot.app.screen, LabScreen))
    await pilot.press("s")
    await until(pilot, lambda: isinstance(pilot.app.screen, ChoiceDialog))
    await pilot.press("a")


@asynccontextmanager
async def sweeping(
    started: Started, cluster: ScriptedCluster
) -> AsyncIterator[tuple[Pilot[None], DllmApp]]:
    async with started(cluster, size=(120, 36)) as (pilot, app, _):
        await begin_sweep(pilot)
        yield pilot, app


async def test_escape_ends_a_sweep_and_then_closes_its_result(
    started: Started, snap_compare: Snap
) -> None:
    cluster = ScriptedCluster(serving())
    cluster.gate.clear()
    async with sweeping(started, cluster) as (pilot, app):
        await until(pilot, lambda: "step 2 of 11" in screen_text(app))
        assert cluster.called("sweep")[0].worker is None
        screen = app.screen
        assert isinstance(screen, LabScreen)
        await pilot.press("z")
        await until(pilot, lambda: screen.zooms)
        await pilot.press("escape")
        assert not screen.zooms
        assert not cluster.called("sweep closed")
        await pilot.press("escape")
        await until(pilot, lambda: cluster.called("sweep closed"))
        await until(pilot, lambda: "1 of 1 steps within" in screen_text(app))
        await pilot.press("escape")
        await until(pilot, lambda: "Sweep of" not in screen_text(app))
        assert isinstance(app.screen, LabScreen)
        cluster.gate.set()
        await pilot.press("s", "a")
        await until(pilot, lambda: "of 11 steps within" in screen_text(app))
        await seen(snap_compare, pilot)
