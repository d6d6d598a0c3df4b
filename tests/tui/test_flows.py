"""What a user does from start to end: attach, choose, launch, stop, leave."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from backends.errors import ControllerError, DllmError, EngineError
from backends.split.layout import counts
from backends.state import ChatDelta, ChatMessage, ChatRequest
from tests.tui import scenes
from tests.tui.helpers import screen_text, settled, toasts, until
from tests.tui.scripted import ANSWER, ScriptedCluster
from tui.memory import Remembered, recall, remember
from tui.screens.dialog_choice import ChoiceDialog
from tui.widgets.chat_pane import ChatPane
from tui.widgets.split_bar import SplitBar

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from textual.pilot import Pilot

    from tui.app import DllmApp

    MakeApp = Callable[..., DllmApp]

SIZE = (120, 36)


def layers(app: DllmApp) -> tuple[int, ...]:
    bar = app.query_one(SplitBar)
    assert bar.draft is not None
    return bar.draft.counts


async def dialog(pilot: Pilot[None]) -> ChoiceDialog:
    await until(pilot, lambda: isinstance(pilot.app.screen, ChoiceDialog))
    screen = pilot.app.screen
    assert isinstance(screen, ChoiceDialog)
    return screen


# --- attaching --------------------------------------------------------------


async def test_it_attaches_to_what_runs(make_app: MakeApp) -> None:
    cluster = ScriptedCluster(scenes.homelab_serving())
    app = make_app(cluster, initial_model=scenes.DEMO.path)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        assert layers(app) == (26, 8, 14)
        text = screen_text(app)
        assert "● serving" in text
        assert "as planned" in text
        assert cluster.called("propose") == []


async def test_it_reads_the_header_of_a_running_model(make_app: MakeApp) -> None:
    bare = msgspec.structs.replace(scenes.homelab_serving(), model=None)
    cluster = ScriptedCluster(bare)
    app = make_app(cluster)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        assert cluster.called("inspect") == [scenes.GLM.path]


async def test_it_begins_with_the_model_of_the_command_line(make_app: MakeApp) -> None:
    cluster = ScriptedCluster(scenes.idle())
    app = make_app(cluster, initial_model=scenes.DEMO.path)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        assert layers(app) == (0, 6, 7)
        assert "not running yet: l launches" in screen_text(app)
        assert "starts with the launch" in screen_text(app)


async def test_it_takes_up_the_plan_of_last_time(
    make_app: MakeApp, memory_file: Path
) -> None:
    split = msgspec.structs.replace(scenes.DEMO_PLAN.split)
    plan = msgspec.structs.replace(scenes.DEMO_PLAN, split=split, ctx_size=512)
    remember(memory_file, Remembered(plan=plan))
    app = make_app(ScriptedCluster(scenes.idle()))
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        assert app.desk.plan == plan


async def test_a_model_that_is_gone_is_said_and_nothing_more(
    make_app: MakeApp, memory_file: Path
) -> None:
    plan = msgspec.structs.replace(scenes.DEMO_PLAN, model="/gone.gguf")
    remember(memory_file, Remembered(plan=plan))
    app = make_app(ScriptedCluster(scenes.idle()))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: toasts(app))
        assert "/gone.gguf is not a GGUF file" in toasts(app)[0]
        assert "No model yet: m picks one" in screen_text(app)


async def test_a_plan_launched_elsewhere_is_taken_over(make_app: MakeApp) -> None:
    cluster = ScriptedCluster(scenes.idle())
    app = make_app(cluster, initial_model=scenes.DEMO.path)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        cluster.push(scenes.homelab_serving())
        await until(pilot, lambda: layers(app) == (26, 8, 14))


async def test_an_edit_outlives_snapshots_of_what_runs(make_app: MakeApp) -> None:
    cluster = ScriptedCluster(scenes.homelab_serving())
    app = make_app(cluster)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await pilot.press("left")
        later = msgspec.structs.replace(scenes.homelab_serving(), seq=8)
        cluster.push(later)
        await until(pilot, lambda: app.desk.snapshot == later)
        assert layers(app) == (25, 9, 14)
        assert "changed: l launches it, u undoes · runs now 26 | 8 | 14" in (
            screen_text(app)
        )


# --- launching and stopping -------------------------------------------------


async def test_launch_runs_the_split_as_shown(make_app: MakeApp) -> None:
    cluster = ScriptedCluster(scenes.idle())
    app = make_app(cluster, initial_model=scenes.DEMO.path)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await pilot.press("left", "l")
        await until(pilot, lambda: cluster.called("launch"))
        (plan,) = cluster.called("launch")
        assert counts(plan.split) == (0, 5, 8)
        cluster.push(scenes.demo_starting(plan))
        await until(pilot, lambda: "model loads" in screen_text(app))
        assert "61 %" in screen_text(app)
        cluster.push(scenes.demo_serving(plan))
        await until(pilot, lambda: "as planned" in screen_text(app))
        assert layers(app) == (0, 5, 8)


async def test_an_edit_right_after_the_launch_is_kept(make_app: MakeApp) -> None:
    cluster = ScriptedCluster(scenes.idle())
    app = make_app(cluster, initial_model=scenes.DEMO.path)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await pilot.press("l")
        await until(pilot, lambda: cluster.called("launch"))
        await pilot.press("left")
        cluster.push(scenes.demo_starting())
        await until(pilot, lambda: "model loads" in screen_text(app))
        assert layers(app) == (0, 5, 8)


async def test_launching_what_runs_already_does_nothing(make_app: MakeApp) -> None:
    cluster = ScriptedCluster(scenes.homelab_serving())
    app = make_app(cluster)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await pilot.press("l")
        await until(pilot, lambda: toasts(app))
        assert toasts(app) == ["This very split runs already"]
        assert cluster.called("launch") == []


async def test_cutting_off_an_answer_is_asked_first(make_app: MakeApp) -> None:
    cluster = ScriptedCluster(scenes.homelab_serving())
    app = make_app(cluster)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await pilot.press("left", "l")
        await dialog(pilot)
        assert "1 request is being answered" in screen_text(app)
        await pilot.press("enter")
        await until(pilot, lambda: not isinstance(app.screen, ChoiceDialog))
        assert cluster.called("launch") == []
        await pilot.press("l")
        await dialog(pilot)
        await pilot.press("y")
        await until(pilot, lambda: cluster.called("launch"))


async def test_too_much_for_a_device_is_asked_first(make_app: MakeApp) -> None:
    small = msgspec.structs.replace(scenes.BOX, free_bytes=scenes.GIB)
    peers = scenes.homelab_peers()
    box = msgspec.structs.replace(peers[2], devices=(small,))
    idle = msgspec.structs.replace(scenes.idle(), peers=(*peers[:2], box))
    cluster = ScriptedCluster(idle)
    app = make_app(cluster, initial_model=scenes.GLM.path)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        assert "does not fit: box/CUDA0" in screen_text(app)
        await pilot.press("l")
        await dialog(pilot)
        await pilot.press("escape")
        await pilot.pause()
        assert cluster.called("launch") == []


async def test_a_launch_that_fails_shows_what_and_why(make_app: MakeApp) -> None:
    cluster = ScriptedCluster(scenes.idle())
    app = make_app(cluster, initial_model=scenes.DEMO.path)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        cluster.push(scenes.demo_failed())
        await until(pilot, lambda: "exit code 1" in screen_text(app))
        text = screen_text(app)
        assert "✗ worker2 ended while it was starting" in text
        assert "$ /opt/llama.cpp/rpc-server -H 127.0.0.1 -p 50053 -d CPU" in text
        assert "[Address already in use]" in text
        await pilot.press("tab", "y")
        assert "Address already in use" in app.clipboard
        await pilot.press("o")
        await until(pilot, lambda: app.current_mode == "logs")


async def test_a_refused_launch_becomes_a_toast(make_app: MakeApp) -> None:
    cluster = ScriptedCluster(scenes.idle())
    cluster.errors["launch"] = EngineError("No [llama.cpp] found", "Build one.")
    app = make_app(cluster, initial_model=scenes.DEMO.path)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await pilot.press("l")
        await until(pilot, lambda: toasts(app))
        assert toasts(app) == ["No [llama.cpp] found. Build one."]
        await pilot.press("e")
        await until(pilot, lambda: "Events" in screen_text(app))
        assert "No [llama.cpp] found. Build one." in screen_text(app)


async def test_a_mistake_of_ours_ends_nothing(make_app: MakeApp) -> None:
    cluster = ScriptedCluster(scenes.idle())
    app = make_app(cluster)
    async with app.run_test(size=SIZE) as pilot:

        async def broken() -> None:
            raise ValueError("oops")

        app.attempt(broken(), group="test")
        await until(pilot, lambda: toasts(app))
        assert "Unexpected ValueError in test: oops" in toasts(app)[0]


@pytest.mark.parametrize(("key", "stops"), [("enter", 0), ("escape", 0), ("y", 1)])
async def test_stop_asks_and_cancel_comes_first(
    make_app: MakeApp, key: str, stops: int
) -> None:
    cluster = ScriptedCluster(scenes.homelab_serving())
    app = make_app(cluster)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await pilot.press("s")
        await dialog(pilot)
        assert "GLM-4.7-Flash-Q4_K_M is serving" in screen_text(app)
        await pilot.press(key)
        await until(pilot, lambda: not isinstance(app.screen, ChoiceDialog))
        await until(pilot, lambda: not any(w.group == "launch" for w in app.workers))
        assert len(cluster.called("stop")) == stops


async def test_stop_with_nothing_running_says_so(make_app: MakeApp) -> None:
    app = make_app(ScriptedCluster(scenes.idle()))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: app.desk.snapshot)
        await pilot.press("s")
        await until(pilot, lambda: toasts(app) == ["Nothing runs"])


async def test_balance_deals_by_memory_and_can_be_undone(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await pilot.press("b")
        await pilot.pause()
        assert layers(app) == (34, 7, 7)
        await pilot.press("u")
        await pilot.pause()
        assert layers(app) == (26, 8, 14)
        assert app.desk.unchanged


# --- leaving ----------------------------------------------------------------


async def test_with_nothing_running_q_leaves_and_lets_the_controller_go(
    make_app: MakeApp,
) -> None:
    cluster = ScriptedCluster(scenes.idle())
    app = make_app(cluster)
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: app.desk.snapshot)
        await pilot.press("q")
        await until(pilot, lambda: not app.is_running)
    assert cluster.called("shutdown") == [True]


@pytest.mark.parametrize(
    ("keys", "left", "shutdowns"),
    [
        (["enter"], True, []),
        (["l"], True, []),
        (["s"], True, [False]),
        (["down", "enter"], True, [False]),
        (["c"], False, []),
        (["escape"], False, []),
    ],
)
async def test_leaving_a_running_cluster_asks(
    make_app: MakeApp, keys: list[str], left: bool, shutdowns: list[bool]
) -> None:
    cluster = ScriptedCluster(scenes.homelab_serving())
    app = make_app(cluster)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await pilot.press("q")
        await dialog(pilot)
        await pilot.press(*keys)
        await until(pilot, lambda: not isinstance(app._screen_stack[-1], ChoiceDialog))
        if left:
            await until(pilot, lambda: not app.is_running)
        assert app.is_running is not left
    assert cluster.called("shutdown") == shutdowns


async def test_a_controller_that_is_gone_keeps_nobody(make_app: MakeApp) -> None:
    cluster = ScriptedCluster(scenes.idle())
    cluster.errors["shutdown"] = ControllerError("It is gone")
    app = make_app(cluster)
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: app.desk.snapshot)
        await pilot.press("q")
        await until(pilot, lambda: not app.is_running)


async def test_ctrl_c_ends_nothing(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await pilot.press("ctrl+c")
        await pilot.pause()
        assert app.is_running
        assert toasts(app) == ["Nothing is selected to copy; q quits"]


# --- connection -------------------------------------------------------------


async def test_a_lost_controller_is_said_once_and_found_again(
    make_app: MakeApp,
) -> None:
    cluster = ScriptedCluster(scenes.homelab_serving())
    app = make_app(cluster)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        cluster.errors["snapshots"] = ControllerError("No answer on the socket")
        cluster.lose()
        await until(pilot, lambda: "◌ reconnecting" in screen_text(app))
        await until(pilot, lambda: cluster.streams > 2)
        assert toasts(app) == ["The controller went away. Reconnecting…"]
        del cluster.errors["snapshots"]
        await until(pilot, lambda: "● serving" in screen_text(app))
        assert toasts(app)[1:] == ["The controller answers again"]


async def test_the_layout_is_there_before_the_first_snapshot(
    make_app: MakeApp,
) -> None:
    app = make_app(ScriptedCluster(None))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        text = screen_text(app)
        assert "◌ connecting" in text
        assert all(title in text for title in ("Peers", "Split", "Live", "Chat"))


# --- chat -------------------------------------------------------------------


def ask(app: DllmApp) -> None:
    request = ChatRequest(messages=(ChatMessage(role="user", content="Why?"),))
    chat = app._home.chat
    chat.post_message(ChatPane.Asked(chat, request))


async def test_an_answer_reaches_the_chat(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app()
    shown: list[ChatDelta] = []
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        monkeypatch.setattr(app._home.chat, "show_delta", shown.append)
        ask(app)
        await until(pilot, lambda: shown and shown[-1].done)
        assert "".join(delta.text for delta in shown).strip() == ANSWER
        assert [delta.done for delta in shown].count(True) == 1
        assert len(shown) < len(ANSWER.split())


async def test_stopping_an_answer_closes_the_stream(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = ScriptedCluster(scenes.homelab_serving())
    cluster.gate.clear()
    app = make_app(cluster)
    ends: list[str] = []
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        chat = app._home.chat
        monkeypatch.setattr(
            chat,
            "show_delta",
            lambda delta: ends.append(delta.finish_reason) if delta.done else None,
        )
        ask(app)
        await until(pilot, lambda: cluster.called("chat"))
        chat.post_message(ChatPane.Stopped(chat))
        await until(pilot, lambda: ends)
        assert ends == ["stopped"]


async def test_a_failed_answer_is_told_to_the_chat(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = ScriptedCluster(scenes.homelab_serving())
    cluster.errors["chat"] = DllmError("The server said no")
    app = make_app(cluster)
    failures: list[str] = []
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        monkeypatch.setattr(
            app._home.chat,
            "show_delta",
            lambda delta: failures.append(delta.failure.what),
        )
        ask(app)
        await until(pilot, lambda: failures)
        assert failures == ["The server said no"]


# --- memory -----------------------------------------------------------------


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
    assert memory.plan is not None
    assert counts(memory.plan.split) == (25, 9, 14)
    again = make_app()
    async with again.run_test(size=SIZE) as pilot:
        await settled(pilot)
        assert again.theme == "nord"
        assert again._home.zoomed == "split"


def spoil(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_text('{"theme": 7')


async def test_a_broken_memory_is_said_and_forgotten(
    make_app: MakeApp, memory_file: Path
) -> None:
    spoil(memory_file)
    app = make_app()
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: toasts(app))
        assert "cannot be read" in toasts(app)[0]
    assert recall(memory_file).theme == "dllm-dark"
