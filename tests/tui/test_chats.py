"""Conversations in the whole console: shared, switched, named, deleted, exported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot
from textual.widgets import Input

from backends.errors import ControllerError, DllmError
from backends.split.layout import ranges, with_counts
from backends.state import ChatDelta, ClusterSnapshot
from tests.kit.console import Started
from tests.tui import scenes
from tests.tui.helpers import (
    in_front,
    screen_text,
    settled,
    toasts,
    until,
    wheel_down,
)
from tests.tui.scripted import ScriptedCluster
from tests.tui.snapshot_sizes import MakeApp
from tui.app.app import DllmApp
from tui.dialogs.dialog import ChoiceDialog, LineDialog
from tui.dialogs.pick import ChatRows, ChatsDialog
from tui.screens.cluster.answer import ChatAnswer
from tui.screens.cluster.chat_pane import Composer
from tui.screens.cluster.transcript import ChatTranscript

SIZE = (120, 36)


async def ask(app: DllmApp, pilot: Pilot[None], question: str) -> None:
    """Ask and wait for the whole answer; leaves the text field."""
    await settled(pilot)
    await until(pilot, lambda: app._home.chat.conversation)
    app._home.go_to("chat")
    await until(pilot, lambda: isinstance(app.focused, Composer))
    await pilot.press(*question, "enter")
    await until(pilot, lambda: questions(app)[-1:] == [question])
    await until(pilot, lambda: not app._home.chat.answering)
    await pilot.press("escape")
    await until(pilot, lambda: isinstance(app.focused, ChatTranscript))


def questions(app: DllmApp) -> list[str]:
    now = app._home.chat.conversation
    return [turn.question for turn in now.turns] if now else []


async def shows_the_answer(app: DllmApp) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await until(pilot, lambda: "21 tokens" in screen_text(app))
        assert questions(app) == ["Why?"]
        assert "Air scatters short" in screen_text(app)
        assert "studio" in screen_text(app).partition("first token")[2]


async def test_an_answer_goes_on_when_its_console_is_gone_and_is_kept(
    make_app: MakeApp, tmp_path: Path
) -> None:
    cluster = ScriptedCluster(scenes.homelab_serving(), chats_folder=tmp_path)
    cluster.gate.clear()
    app = make_app(cluster)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        app._home.go_to("chat")
        await pilot.press(*"Why?", "enter")
        await until(pilot, lambda: cluster.called("chat"))
    cluster.gate.set()
    later = ScriptedCluster(scenes.homelab_serving(), chats_folder=tmp_path)
    await shows_the_answer(make_app(cluster))
    await shows_the_answer(make_app(later))
    assert cluster.called("chat ask") == ["Why?"]


async def test_chats_are_named_left_and_opened_again(started: Started) -> None:
    async with started(wait=False) as (pilot, app, _):
        await ask(app, pilot, "Why?")
        await pilot.press("R")
        await in_front(pilot, LineDialog)
        await pilot.press(*"the sky", "enter")
        await until(pilot, lambda: "Chat · the sky" in screen_text(app))
        await pilot.press("n")
        await until(pilot, lambda: questions(app) == [])
        await ask(app, pilot, "Whose?")
        await pilot.press("o")
        await in_front(pilot, ChatsDialog)
        shown = screen_text(app)
        assert shown.index("Whose?") < shown.index("the sky")
        assert "● Whose?" in shown
        assert "2 chats" in shown
        await pilot.press(*"sky")
        await until(pilot, lambda: "1 of 2 chats" in screen_text(app))
        await pilot.press("enter")
        await until(pilot, lambda: questions(app) == ["Why?"])
        await pilot.press("u")
        await until(pilot, lambda: questions(app) == ["Whose?"])
        await pilot.press("o")
        await in_front(pilot, ChatsDialog)
        rows = app.screen.query_one(ChatRows)
        await until(pilot, lambda: rows.size.height == 2)
        await wheel_down(pilot, rows)
        await until(pilot, lambda: rows.selected == 1)
        await pilot.click(rows, offset=(5, 1))
        await until(pilot, lambda: questions(app) == ["Why?"])


async def test_a_chat_is_exported_deleted_and_brought_back(
    started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cluster = ScriptedCluster(scenes.homelab_serving(), chats_folder=tmp_path / "chats")

    def files() -> int:
        return len(list((tmp_path / "chats").iterdir()))

    async with started(cluster, wait=False) as (pilot, app, _):
        await ask(app, pilot, "Why?")
        await until(pilot, lambda: files() == 1)
        await pilot.press("x")
        await in_front(pilot, LineDialog)
        assert app.screen.query_one(Input).value == str(tmp_path / "why.md")
        await pilot.press("enter")
        written = tmp_path / "why.md"
        await until(pilot, lambda: f"Wrote {written}" in toasts(app))
        text = written.read_text()
        assert text.startswith("# Why?\n\nGLM-4.7-Flash-Q4_K_M")
        assert "Air scatters short" in text
        assert "*21.3 tok/s · first token 0.88 s · 21 tokens · studio" in text
        await pilot.press("x")
        await in_front(pilot, LineDialog)
        await pilot.press("enter")
        await until(pilot, lambda: "is there already" in screen_text(app))
        assert written.read_text() == text
        app.screen.query_one(Input).value = "why.json"
        await pilot.press("enter")
        again = tmp_path / "why.json"
        await until(pilot, lambda: f"Wrote {again}" in toasts(app))
        (turn,) = json.loads(again.read_text())["turns"]
        assert turn["question"] == "Why?"
        assert turn["replies"][0]["timings"]["tok_per_s"] == 21.3
        await until(pilot, lambda: not app.screen.is_modal)
        await pilot.press("delete")
        await in_front(pilot, ChoiceDialog)
        assert "1 question and their answers" in screen_text(app)
        await pilot.press("enter")
        await until(pilot, lambda: not isinstance(app.screen, ChoiceDialog))
        assert questions(app) == ["Why?"]
        await pilot.press("delete")
        await in_front(pilot, ChoiceDialog)
        await pilot.press("y")
        await until(pilot, lambda: questions(app) == [])
        await until(pilot, lambda: files() == 0)
        await pilot.press("u")
        await until(pilot, lambda: questions(app) == ["Why?"])
        await until(pilot, lambda: files() == 1)


async def test_the_answer_of_another_split_stands_beside(started: Started) -> None:
    async with started(scenes.demo_serving(), wait=False) as (pilot, app, cluster):
        await ask(app, pilot, "Why?")
        await until(pilot, lambda: "worker1 6 | worker2 7" in screen_text(app))
        assert cluster.now is not None
        assert cluster.now.plan is not None
        split = with_counts(cluster.now.plan.split, (0, 9, 4))
        plan = replace(cluster.now.plan, split=split)
        cluster.push(
            replace(
                cluster.now,
                seq=cluster.now.seq + 1,
                plan=plan,
                planned=ranges(split),
                generation=cluster.now.generation + 1,
            )
        )
        await pilot.press("r")
        await until(pilot, lambda: "worker1 9 | worker2 4" in screen_text(app))
        assert "answer 2 of 2" in screen_text(app)
        await pilot.press("left_square_bracket")
        await until(pilot, lambda: "worker1 6 | worker2 7" in screen_text(app))
        assert len(app.query(ChatAnswer)) == 1


async def test_refused_questions_and_a_chat_for_each_model(started: Started) -> None:
    cluster = ScriptedCluster(scenes.homelab_serving())
    cluster.answer = [ChatDelta(ahead=2), *cluster.answer]
    cluster.pieces_given = 1
    cluster.errors["chat ask"] = ControllerError("The connection broke")
    async with started(cluster) as (pilot, app, _):
        await until(pilot, lambda: app._home.chat.conversation)
        app._home.go_to("chat")
        cluster.gate.clear()
        await pilot.press(*"Why?", "enter")
        await until(pilot, lambda: toasts(app) == ["The connection broke"])
        assert app.query_one(Composer).text == "Why?", "it is back in the field"
        assert not app._home.chat.answering
        cluster.errors.clear()
        await pilot.press("enter")
        await until(pilot, lambda: "2 requests ahead" in screen_text(app))
        cluster.gate.set()
        await until(pilot, lambda: "21 tokens" in screen_text(app))
        cluster.errors["chat"] = DllmError("The server said no")
        await pilot.press(*"And?", "enter")
        await until(pilot, lambda: "The server said no." in screen_text(app))
        await pilot.press("escape")
        asked = questions(app)
        assert asked == ["Why?", "And?"]
        first = cluster.now
        assert first is not None

        def push(scene: ClusterSnapshot, later: int) -> None:
            seq, name = first.seq + later, first.cluster
            cluster.push(replace(scene, seq=seq, cluster=name))

        push(scenes.demo_serving(), 1)
        await until(pilot, lambda: questions(app) == [])
        push(first, 2)
        await until(pilot, lambda: questions(app) == asked)
        push(scenes.idle(), 3)
        await until(pilot, lambda: "l launches" in screen_text(app))
        assert questions(app) == asked, "also where nothing runs"
