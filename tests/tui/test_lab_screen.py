"""The Lab screen: what keys and mouse put on links, and what it says of the speed."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from textual.pilot import Pilot

from backends.split.cost import mean_delay_ms
from backends.state import Acceptance, ClusterSnapshot, Lab, Link, Pass, Speed
from tests.kit.console import Started
from tests.tui import scenes
from tests.tui.helpers import screen_text, settled, until
from tests.tui.looks import Look, MakeApp, Size, at_both_sizes
from tests.tui.scripted import ScriptedCluster
from tui.screens.lab.links import LinkBlock
from tui.screens.lab.screen import LabScreen, command_of

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
    speed = msgspec.structs.replace(scene.speed, tok_per_s=1000 / token_ms)
    at = scene.at + at_ms / 1000
    return msgspec.structs.replace(scene, links=links, speed=speed, at=at)


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
        for _ in range(3):
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


async def test_each_link_has_its_sliders(make_app: MakeApp) -> None:
    async with lab_of(make_app, serving()) as lab:
        assert [b.worker for b in lab.screen.query(LinkBlock)] == ["mini", "box"]
        assert lab.block("mini").latency.has_focus
        assert "RTT 3.10 ms · 1.0 trips/token" in screen_text(lab.pilot.app)


async def test_what_a_draft_brings_is_on_the_frame(make_app: MakeApp) -> None:
    speed = Speed(acceptance=Acceptance(drafted=8, accepted=6, passes=1))
    async with lab_of(make_app, msgspec.structs.replace(serving(), speed=speed)) as lab:
        await until(
            lab.pilot,
            lambda: "75 % of the draft accepted" in screen_text(lab.pilot.app),
        )


async def test_what_the_command_line_set_shows(make_app: MakeApp) -> None:
    async with lab_of(make_app, serving()) as lab:
        lab.cluster.push(serving(mini=Lab(latency_ms=7.3)))
        await until(lab.pilot, lambda: lab.block("mini").latency.value == 7.3)
        assert lab.block("box").lab is None
        assert "7.30 ms" in screen_text(lab.pilot.app)


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
            assert lab.wishes[before:] == wishes, keys


async def test_undo_of_all_gives_each_link_its_own_again(make_app: MakeApp) -> None:
    async with lab_of(make_app, serving(mini=WIFI, box=WAN)) as lab:
        for key in ("C", "u"):
            await lab.press(key)
        assert lab.wishes[0] == (None, None)
        assert sorted(lab.wishes[1:], key=str) == sorted(
            [("mini", WIFI), ("box", WAN)], key=str
        )
        assert lab.block("box").lab == WAN


async def test_a_seed_of_the_command_line_is_kept(make_app: MakeApp) -> None:
    async with lab_of(make_app, serving(mini=Lab(latency_ms=1, seed=7))) as lab:
        await lab.press("right")
        assert lab.wishes == [("mini", Lab(latency_ms=1.1, seed=7))]


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


async def test_no_relays(make_app: MakeApp) -> None:
    async with lab_of(make_app, scenes.homelab_without_relays(), (80, 24)) as lab:
        assert "launched with --relay off" in screen_text(lab.pilot.app)
        await lab.press("w", "A", "c", "C", "u", "down", "y")
        assert lab.wishes == []


async def test_links_come_and_go(make_app: MakeApp) -> None:
    async with lab_of(make_app, scenes.homelab_without_relays()) as lab:
        lab.cluster.push(serving())
        await until(lab.pilot, lambda: len(lab.screen.query(LinkBlock)) == 2)
        await until(lab.pilot, lambda: lab.block("mini").latency.has_focus)
        alone = serving()
        lab.cluster.push(msgspec.structs.replace(alone, links=alone.links[:1]))
        await until(lab.pilot, lambda: len(lab.screen.query(LinkBlock)) == 1)
        lab.cluster.push(scenes.homelab_without_relays())
        await lab.shows("launched with --relay off")


@pytest.mark.parametrize(
    ("size", "at"), [((120, 36), (6, 2)), ((80, 24), (26, 0))], ids=["list", "row"]
)
async def test_presets_can_be_clicked(
    make_app: MakeApp, size: tuple[int, int], at: tuple[int, int]
) -> None:
    cluster = ScriptedCluster(serving())
    async with make_app(cluster).run_test(size=size) as pilot:
        lab = await opened(pilot, cluster)
        await pilot.click(
            "#lab-side PresetList" if size[0] > 100 else "#lab-row", offset=at
        )
        await until(pilot, lambda: lab.wishes == [("mini", WIFI)])


def test_the_command_of_a_lab() -> None:
    assert command_of("mini", None) == "dllm-tui links reset mini"
    assert command_of("mini", WAN) == (
        "dllm-tui links slow mini --latency 20ms --jitter 2ms --rate 6MB/s"
    )


# --- looks --------------------------------------------------------------------


def looked_at(*keys: str) -> Any:
    """Go there, put things on links, and let passes come."""

    async def run(pilot: Pilot[None]) -> None:
        cluster = pilot.app.cluster  # type: ignore[attr-defined]
        lab = await opened(pilot, cluster)
        at_ms = 2000.0
        for latency in (2, 5, 10):
            for _ in range(2):
                at_ms += 4000
                measured = serving(at_ms, mini=Lab(latency_ms=latency), box=WIFI)
                cluster.push(measured)
                await until(
                    pilot,
                    lambda: lab.screen._snapshot is measured,  # noqa: B023
                )
        for key in keys:
            await lab.press(key)

    return run


@at_both_sizes
def test_lab(look: Look, size: Size) -> None:
    look(serving(), size, looked_at())


def test_lab_without_relays(look: Look) -> None:
    async def run(pilot: Pilot[None]) -> None:
        await opened(pilot, pilot.app.cluster)  # type: ignore[attr-defined]

    look(scenes.homelab_without_relays(), run=run)


async def test_news_that_come_while_leaving_are_not_shown(started: Started) -> None:
    async with started(serving(), wait=False) as (pilot, app, cluster):
        await opened(pilot, cluster)
    shown = app.editor.snapshot
    assert shown
    app.take(msgspec.structs.replace(serving(1500), seq=shown.seq + 1))
    assert app.editor.snapshot is shown
