"""What has room: six lines of conversation on 80×24, histories on 160×48."""

from __future__ import annotations

from msgspec.structs import replace

from tests.kit.console import Started
from tests.tui import scenes
from tests.tui.helpers import resize, screen_text, text_of, until
from tui.screens.cluster.live_figures import LiveLine, WorkerGraphs
from tui.screens.cluster.transcript import ChatTranscript

ROOMY = (160, 48)


async def test_six_lines_of_conversation(started: Started) -> None:
    async with started(scenes.homelab_over(7), size=(80, 24)) as (pilot, app, cluster):
        for seq, n_workers in enumerate((1, 3, 7), 10):
            scene = scenes.homelab_over(n_workers)
            cluster.push(replace(scene, seq=seq))
            await until(pilot, lambda: app.editor.snapshot.seq == seq)  # type: ignore[union-attr] # noqa: B023
            for size in ((80, 24), (100, 24), (120, 30)):
                await resize(pilot, *size)
                assert app.screen.query_one(ChatTranscript).size.height >= 6, size
                assert app._home.split.bar.size.height >= 3, size


async def test_live_is_one_line_until_it_has_the_focus(started: Started) -> None:
    async with started(size=(80, 24)) as (pilot, app, _):
        live, line = app._home.live, app.screen.query_one(LiveLine)
        assert live.size.height == 1
        assert "generate  21.3 tok/s" in text_of(line)
        app._home.go_to("live")
        await until(pilot, lambda: live.size.height >= 4)
        assert not line.display
        app._home.go_to("chat")
        await until(pilot, lambda: live.size.height == 1)
        await pilot.click(live, offset=(10, 0))
        await until(pilot, lambda: live.size.height >= 4)


async def test_a_launch_shows_its_steps_on_few_rows(started: Started) -> None:
    async with started(scenes.demo_starting(), size=(80, 24)) as (_, app, _):
        assert app._home.live.size.height >= 4
        assert "model loads" in screen_text(app)


async def test_roomy_screens_show_histories_and_tokens(started: Started) -> None:
    """Of what was measured: the cores of one process, and nothing of the other."""
    scene = scenes.homelab_serving()
    busy = tuple(
        replace(p, cpu_cores=3.5) if p.name == "mini" else p for p in scene.processes
    )
    running = started(replace(scene, processes=busy), size=ROOMY)
    async with running as (pilot, app, _):
        graphs = text_of(app.screen.query_one(WorkerGraphs))
        for said in ("studio (head)", "mini", "box", "CPU cores", "0–10 GiB"):
            assert said in graphs
        rows = graphs.splitlines()
        mini, box = (
            next(row for row in rows if name in row) for name in ("mini", "bo")
        )
        assert "3.5" in mini
        assert "—" in box
        app._home.go_to("chat")
        await until(pilot, lambda: app._home._focused_pane() == "chat")
        app._home.action_next_pane()
        waterfall = app._home.token.waterfall
        assert waterfall.size.height > 10
        await until(pilot, lambda: waterfall.has_focus)
        await pilot.press("v", "w")
        assert waterfall.median
        assert waterfall.chosen == "mini"
        assert app._home.token.border_subtitle == "mini"
        await resize(pilot, 120, 36)
        await until(pilot, lambda: not app._home.token.display)
        assert not app.screen.query_one(WorkerGraphs).display


async def test_without_room_no_pane_of_tokens_is_counted(started: Started) -> None:
    async with started() as (pilot, app, cluster):
        assert app._home.key_bar.note == ""
        app._home.go_to("chat")
        await until(pilot, lambda: app._home._focused_pane() == "chat")
        app._home.action_next_pane()
        await until(pilot, lambda: app._home.peers.peer_list.has_focus)
        # Behind another screen the pane hears nothing, and the speed is kept.
        await pilot.press("3")
        rates = app.editor.trends.rates.columns
        before = len(rates)
        later = replace(scenes.homelab_serving(), seq=9, at=scenes.NOW + 5)
        cluster.push(later)
        await until(pilot, lambda: len(rates) == before + 1)
        await pilot.press("1")
        graph = app._home.live.graph
        await until(pilot, lambda: len(graph.history.columns) == before + 1)
