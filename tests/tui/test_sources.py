"""Predicted, told by the engine and measured look different, by one rule everywhere."""

from __future__ import annotations

from msgspec.structs import replace

from backends.state import ClusterSnapshot, MemorySource
from tests.kit.console import Started
from tests.tui import scenes
from tests.tui.helpers import screen_text, text_of, until
from tests.tui.snapshot_sizes import MakeApp
from tui.dialogs.help_and_events import HelpDialog
from tui.screens.cluster.peers_pane import PeerList
from tui.screens.cluster.screen import ClusterScreen
from tui.screens.cluster.split_pane import LoadTable
from tui.screens.lab.screen import LabScreen
from tui.screens.lab.speed import LabSpeedLine, Speeds
from tui.screens.layers.screen import LayersScreen
from tui.screens.models.screen import ModelsScreen
from tui.screens.traffic.screen import TrafficScreen
from tui.widgets.palette import palette_from
from tui.widgets.sources import CHECKED, PREDICTED, predicted, style_of, tick_of, told


def unmeasured() -> ClusterSnapshot:
    return replace(scenes.homelab_serving(), measured=None)


def test_the_sign_takes_from_the_padding() -> None:
    assert predicted(" 21.3") == "~21.3"
    assert predicted("123.4") == "~123.4"
    assert told("9.7 GiB", MemorySource.PREDICTED) == "~9.7 GiB"
    assert told("9.7 GiB", MemorySource.ENGINE) == "9.7 GiB"
    assert told("9.7 GiB", None) == "9.7 GiB"


def test_each_source_has_a_look_of_its_own(make_app: MakeApp) -> None:
    palette = palette_from(make_app().theme_variables)
    looks = {(tick_of(s), str(style_of(s, palette))) for s in MemorySource}
    assert len(looks) == len(MemorySource)


async def test_memory_of_the_split_shown(started: Started) -> None:
    """In the pane's title, its table and its bar, and beside each peer."""
    async with started(unmeasured(), size=(160, 40)) as (pilot, app, cluster):
        for sign, style in ((PREDICTED, "dim"), (CHECKED, "strong")):
            table = text_of(app.query_one(LoadTable))
            assert all(row.endswith(f" {sign}") for row in table.splitlines()[1:])
            under = text_of(app._home.split.bar).splitlines()[-1]
            assert under.count(sign) == 3
            peers = app.query_one(PeerList)
            is_predicted = sign == PREDICTED
            assert ("~9.8/55 GiB" in text_of(peers)) is is_predicted
            assert ("· ~" in str(app._home.split.border_title)) is is_predicted
            wanted = getattr(palette_from(app.theme_variables), style)
            parts = [p for row in peers.lines() for p in row if "/55 GiB" in p.text]
            assert [(p.style.color, p.style.bold) for p in parts if p.style] == [
                (wanted.color, wanted.bold)
            ]
            measured = replace(scenes.homelab_serving(), seq=9)
            cluster.push(measured)
            await until(pilot, lambda: app.editor.snapshot is measured)  # noqa: B023
        await pilot.press("f4")
        line = app.screen.query_one(LabSpeedLine)
        line.speeds = Speeds(predicted=11.5, measured=8.8, plain=135.0, added_ms=40.0)
        await pilot.pause()
        said = " ".join(text_of(line).split())
        assert said == (
            "predicted ~11.5 tok/s measured 8.8 tok/s −23 % no lab ~135.0 tok/s "
            "the lab adds ~40.0 ms to a token"
        )


async def test_help_says_what_the_looks_mean(started: Started) -> None:
    """On every screen with such figures, whatever pane has the focus."""
    screens = (ClusterScreen, LayersScreen, TrafficScreen, LabScreen, ModelsScreen)
    assert all(screen.FIGURES for screen in screens)
    async with started(size=(120, 60)) as (pilot, app, _):
        app._home.go_to("chat")
        for key, count in (("f1", 1), ("f5", 0)):
            await pilot.press(key)
            app.push_screen(HelpDialog(app.screen))
            await until(pilot, lambda: isinstance(app.screen, HelpDialog))
            said = screen_text(app).count("is predicted by our own arithmetic")
            assert said == count, key
            app.pop_screen()
