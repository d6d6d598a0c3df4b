"""What the user does, in the whole console: attaching, the connection, chat, memory."""

from __future__ import annotations

from pathlib import Path

import msgspec
from textual.pilot import Pilot

from backends.errors import ControllerError, DllmError
from backends.split.layout import counts
from backends.state import Reply
from tests.kit.console import Started
from tests.tui import scenes
from tests.tui.flowing import SIZE, layers, planning
from tests.tui.helpers import screen_text, settled, toasts, until
from tests.tui.looks import MakeApp
from tests.tui.scripted import ANSWER, ScriptedCluster
from tui.app.app import DllmApp
from tui.model.files import Remembered, recall, remember


async def test_it_attaches_to_what_runs(started: Started) -> None:
    running = started(scenes.homelab_serving(), initial_model=scenes.GLM.path)
    async with running as (_, app, cluster):
        assert layers(app) == (26, 8, 14)
        text = screen_text(app)
        assert "● serving" in text
        assert "as planned" in text
        assert cluster.called("propose") == []


async def test_it_reads_the_header_of_a_running_model(started: Started) -> None:
    bare = msgspec.structs.replace(scenes.homelab_serving(), model=None)
    async with started(bare) as (_, _, cluster):
        assert cluster.called("inspect") == [scenes.GLM.path]


async def test_it_begins_with_the_model_of_the_command_line(started: Started) -> None:
    async with planning(started) as (_, app, _):
        assert layers(app) == (0, 6, 7)
        assert "not running yet: l launches" in screen_text(app)
        assert "starts with the launch" in screen_text(app)


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
    split = msgspec.structs.replace(scenes.DEMO_PLAN.split)
    plan = msgspec.structs.replace(scenes.DEMO_PLAN, split=split, ctx_size=512)
    remember(memory_file, Remembered(plans={"default": plan}))
    async with started(scenes.idle()) as (_, app, _):
        assert app.editor.plan == plan


async def test_a_model_that_is_gone_is_said_and_nothing_more(
    started: Started, memory_file: Path
) -> None:
    plan = msgspec.structs.replace(scenes.DEMO_PLAN, model="/gone.gguf")
    remember(memory_file, Remembered(plans={"default": plan}))
    async with started(scenes.idle(), wait=False) as (pilot, app, _):
        await until(pilot, lambda: toasts(app))
        assert "/gone.gguf is not a GGUF file" in toasts(app)[0]
        assert "No model yet: m picks one" in screen_text(app)


async def test_a_plan_launched_elsewhere_is_taken_over(started: Started) -> None:
    async with planning(started) as (pilot, app, cluster):
        cluster.push(scenes.homelab_serving())
        await until(pilot, lambda: layers(app) == (26, 8, 14))


async def test_an_edit_outlives_snapshots_of_what_runs(started: Started) -> None:
    async with started(scenes.homelab_serving()) as (pilot, app, cluster):
        await pilot.press("left")
        later = msgspec.structs.replace(scenes.homelab_serving(), seq=8)
        cluster.push(later)
        await until(pilot, lambda: app.editor.snapshot == later)
        assert layers(app) == (25, 9, 14)
        assert "changed: l launches it, u undoes · runs now 26 | 8 | 14" in (
            screen_text(app)
        )


async def test_a_lost_controller_is_said_once_and_found_again(started: Started) -> None:
    async with started(scenes.homelab_serving()) as (pilot, app, cluster):
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


async def test_the_layout_is_there_before_the_first_snapshot(started: Started) -> None:
    async with started(ScriptedCluster(None), wait=False) as (pilot, app, _):
        await pilot.pause()
        text = screen_text(app)
        assert "◌ connecting" in text
        assert all(title in text for title in ("Peers", "Split", "Live", "Chat"))


async def ask(app: DllmApp, pilot: Pilot[None]) -> None:
    chat = app._home.chat
    await until(pilot, lambda: chat.conversation)
    app.attempt(chat.session.ask("Why?"), group="asked")


def last_reply(app: DllmApp) -> Reply:
    now = app._home.chat.conversation
    return now.turns[-1].reply if now and now.turns else Reply()


async def test_an_answer_reaches_the_chat(started: Started) -> None:
    async with started() as (pilot, app, _):
        await ask(app, pilot)
        await until(pilot, lambda: last_reply(app).done)
        assert last_reply(app).text.strip() == ANSWER
        assert last_reply(app).model == scenes.GLM.path


async def test_stopping_an_answer_keeps_what_came(started: Started) -> None:
    cluster = ScriptedCluster(scenes.homelab_serving())
    cluster.gate.clear()
    async with started(cluster) as (pilot, app, _):
        chat = app._home.chat
        await ask(app, pilot)
        await until(pilot, lambda: cluster.called("chat"))
        app.open(chat.session.stop(), group="stop")
        await until(pilot, lambda: last_reply(app).finish_reason == "stopped")


async def test_a_failed_answer_is_told_in_the_chat(started: Started) -> None:
    cluster = ScriptedCluster(scenes.homelab_serving())
    cluster.errors["chat"] = DllmError("The server said no")
    async with started(cluster) as (pilot, app, _):
        await ask(app, pilot)
        await until(pilot, lambda: last_reply(app).failure)
        failure = last_reply(app).failure
        assert failure is not None
        assert failure.what == "The server said no"


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


async def test_consoles_on_two_clusters_remember_a_plan_each(
    make_app: MakeApp, memory_file: Path
) -> None:
    other = msgspec.structs.replace(scenes.demo_serving(), cluster="lab")
    one, two = make_app(), make_app(ScriptedCluster(other))
    async with one.run_test(size=SIZE) as pilot, two.run_test(size=SIZE) as second:
        await settled(pilot)
        await settled(second)
        await pilot.press("left")
        await second.press("left")
        await until(second, lambda: layers(one) == (25, 9, 14))
        await until(second, lambda: layers(two) == (0, 5, 8))
    memory = recall(memory_file)
    for app, cluster in ((one, "default"), (two, "lab")):
        plan = memory.plan_of(cluster)
        assert plan is not None
        assert plan.split == app.editor.plan.split  # type: ignore[union-attr]


async def test_a_plan_is_not_forgotten_where_nothing_answered(
    make_app: MakeApp, memory_file: Path
) -> None:
    remember(memory_file, Remembered(plans={"default": scenes.DEMO_PLAN}))
    async with make_app(ScriptedCluster(None)).run_test(size=SIZE) as pilot:
        await pilot.pause()
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


async def test_a_theme_for_one_start_is_not_kept(
    started: Started, memory_file: Path
) -> None:
    remember(memory_file, Remembered(theme="nord"))
    async with started(theme="dllm-light") as (pilot, app, _):
        await pilot.press("left")
        assert app.theme == "dllm-light"
    assert recall(memory_file).theme == "nord"


async def test_a_relaunch_keeps_the_rows_of_live(started: Started) -> None:
    serving = scenes.demo_serving()
    async with started(serving) as (pilot, app, cluster):
        live, chat = app._home.live, app._home.chat
        before = live.region, chat.region
        starting = msgspec.structs.replace(scenes.demo_starting(), seq=serving.seq + 1)
        cluster.push(starting)
        await until(pilot, lambda: live.has_class("-busy"))
        await pilot.pause()
        assert (live.region, chat.region) == before
        cluster.push(msgspec.structs.replace(serving, seq=serving.seq + 2))
        await until(pilot, lambda: live.has_class("-serving"))
        await pilot.pause()
        assert (live.region, chat.region) == before
