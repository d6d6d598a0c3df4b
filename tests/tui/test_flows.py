"""What the user does, in the whole console: attaching, the connection, chat, memory."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from backends.errors import ControllerError
from backends.split.layout import counts
from backends.state import PeerState
from tests.kit.console import Started
from tests.tui import scenes
from tests.tui.flowing import SIZE, layers, planning
from tests.tui.helpers import screen_text, settled, toasts, until
from tests.tui.scripted import ScriptedCluster
from tests.tui.snapshot_sizes import MakeApp
from tui.model.files import Remembered, recall, remember


async def test_it_attaches_to_what_runs(started: Started) -> None:
    bare = replace(scenes.homelab_serving(), model=None)
    running = started(bare, initial_model=scenes.GLM.path)
    async with running as (_, app, cluster):
        assert layers(app) == (26, 8, 14)
        text = screen_text(app)
        assert "● serving" in text
        assert "as planned" in text
        assert cluster.called("propose") == []
        assert cluster.called("inspect") == [scenes.GLM.path], "its header is read"
        for mark, name in zip("ABC", ("studio", "mini", "box"), strict=True):
            assert f"{mark} {name}" in text, "a letter stands beside each colour"
        assert PeerState.UNREACHABLE in {peer.state for peer in app.editor.peers}
        assert "○ nuc" in text


async def test_it_begins_with_a_model_until_one_runs(started: Started) -> None:
    async with planning(started) as (pilot, app, cluster):
        assert layers(app) == (0, 6, 7)
        assert "not running yet: l launches" in screen_text(app)
        assert "starts with the launch" in screen_text(app)
        cluster.push(scenes.homelab_serving())
        await until(pilot, lambda: layers(app) == (26, 8, 14))


async def test_another_model_is_drawn_beside_what_runs(started: Started) -> None:
    async with started(initial_model=scenes.DEMO.path) as (pilot, app, _):
        await until(pilot, lambda: layers(app) == (0, 6, 7))
        said = "another model runs now: l launches this one"
        await until(pilot, lambda: said in screen_text(app))
        await until(pilot, lambda: toasts(app))
        assert toasts(app) == [
            "GLM-4.7-Flash-Q4_K_M runs already: l launches dllm-demo-12L instead"
        ]
        await pilot.press("u")
        await until(pilot, lambda: layers(app) == (26, 8, 14))


async def test_it_takes_up_the_plan_of_last_time(
    started: Started, memory_file: Path
) -> None:
    plan = replace(scenes.DEMO_PLAN, ctx_size=512)
    remember(memory_file, Remembered(plans={"default": plan}))
    async with started(scenes.idle()) as (_, app, _):
        assert app.editor.plan == plan


async def test_a_model_that_is_gone_is_said_and_nothing_more(
    started: Started, memory_file: Path
) -> None:
    plan = replace(scenes.DEMO_PLAN, model="/gone.gguf")
    remember(memory_file, Remembered(plans={"default": plan}))
    async with started(scenes.idle(), wait=False) as (pilot, app, _):
        await until(pilot, lambda: toasts(app))
        assert "/gone.gguf is not a GGUF file" in toasts(app)[0]
        assert "No model yet: m picks one" in screen_text(app)


async def test_an_edit_outlives_snapshots_and_a_loss(started: Started) -> None:
    """The loss is said once."""
    async with started(scenes.homelab_serving()) as (pilot, app, cluster):
        await pilot.press("left")
        later = replace(scenes.homelab_serving(), seq=8)
        cluster.push(later)
        await until(pilot, lambda: app.editor.snapshot == later)
        assert layers(app) == (25, 9, 14)
        assert "changed: l launches it, u undoes · runs now 26 | 8 | 14" in (
            screen_text(app)
        )
        cluster.errors["snapshots"] = ControllerError("No answer on the socket")
        cluster.lose(ControllerError("The connection broke (EOF)", "Run it again."))
        await until(pilot, lambda: "◌ reconnecting" in screen_text(app))
        await until(pilot, lambda: cluster.streams > 2)
        assert toasts(app) == [
            "Lost the controller; what it started keeps running. Reconnecting…"
        ]
        del cluster.errors["snapshots"]
        await until(pilot, lambda: "● serving" in screen_text(app))
        # A toast comes a step later, and the first may have left by then.
        await until(pilot, lambda: "Reconnected to the controller" in toasts(app))
        assert layers(app) == (25, 9, 14)


async def test_it_remembers_theme_zoom_and_plan(
    make_app: MakeApp, memory_file: Path
) -> None:
    app = make_app()
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        app.theme = "nord"
        await pilot.press("left", "z")
        await pilot.pause()
    memory = recall(memory_file)
    assert memory.theme == "nord"
    assert memory.zoomed == "split"
    assert memory.plans["default"]
    assert counts(memory.plans["default"].split) == (25, 9, 14)
    again = make_app()
    async with again.run_test(size=SIZE) as pilot:
        await settled(pilot)
        assert again.theme == "nord"
        assert again._home.zoomed == "split"
    once = make_app(theme="dllm-light")
    async with once.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await pilot.press("left")
        assert once.theme == "dllm-light"
    assert recall(memory_file).theme == "nord", "that was for one start"


async def test_where_nothing_answers_the_layout_is_there_and_no_plan_forgotten(
    started: Started, memory_file: Path
) -> None:
    remember(memory_file, Remembered(plans={"default": scenes.DEMO_PLAN}))
    async with started(ScriptedCluster(None), wait=False) as (pilot, app, _):
        await pilot.pause()
        text = screen_text(app)
        assert "◌ connecting" in text
        assert all(title in text for title in ("Peers", "Split", "Live", "Chat"))
    assert recall(memory_file).plan_of("default") == scenes.DEMO_PLAN


def spoil(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_text('{"theme": 7')


async def test_a_broken_memory_is_said_and_forgotten(
    started: Started, memory_file: Path
) -> None:
    spoil(memory_file)
    async with started(wait=False) as (pilot, app, _):
        await until(pilot, lambda: toasts(app))
        assert "cannot be read" in toasts(app)[0]
    assert recall(memory_file).theme == "dllm-dark"


async def test_a_relaunch_keeps_the_rows_of_live(started: Started) -> None:
    serving = scenes.demo_serving()
    async with started(serving) as (pilot, app, cluster):
        live, chat = app._home.live, app._home.chat
        before = live.region, chat.region
        starting = replace(scenes.demo_starting(), seq=serving.seq + 1)
        cluster.push(starting)
        await until(pilot, lambda: live.has_class("-busy"))
        await pilot.pause()
        assert (live.region, chat.region) == before
        cluster.push(replace(serving, seq=serving.seq + 2))
        await until(pilot, lambda: live.has_class("-serving"))
        await pilot.pause()
        assert (live.region, chat.region) == before
