"""Whatever machines, files and models say, on every screen: shown, never obeyed."""

from __future__ import annotations

import base64
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace
from textual.drivers.headless_driver import HeadlessDriver
from textual.pilot import Pilot

from backends.errors import ModelError
from backends.state import (
    ChatDelta,
    ClusterBrief,
    ClusterSnapshot,
    Failure,
    KnownMachine,
    Leftover,
    LogChunk,
    ModelCatalogue,
    ModelInfo,
    PeerQuestion,
)
from tests.kit.console import Started
from tests.kit.hostile import HOSTILE, MARKUP, filled, hostile, troubles
from tests.tui import peer_scenes as people
from tests.tui import scenes
from tests.tui.helpers import resize, screen_text, until
from tests.tui.scripted import LOG, ScriptedCluster
from tui.app.app import DllmApp
from tui.dialogs.dialog import ChoiceDialog
from tui.dialogs.help_and_events import EventsDialog
from tui.dialogs.peers import HostKeyDialog, PeerDialog, SecretDialog
from tui.screens.cluster.answer import ChatReasoning
from tui.screens.models.picker import ModelPicker

SIZE = (160, 50)
NARROW = (60, 18)


class HostileCluster(ScriptedCluster):
    """Says in every text it gives what no console may obey."""

    def __init__(self, first: ClusterSnapshot) -> None:
        plans = {p.model: p for p in filled((scenes.DEMO_PLAN, scenes.HOMELAB_PLAN))}
        models = {m.path: m for m in filled((scenes.DEMO, scenes.GLM))}
        super().__init__(as_hostile(first), plans=plans, models=models)
        self.logs = {
            hostile(name): LOG + HOSTILE + "\n" + HOSTILE + LOG for name in self.logs
        }

    async def catalogue(self, *, refresh: bool = False) -> ModelCatalogue:
        return filled(await super().catalogue(refresh=refresh))

    async def inspect(self, path: str) -> ModelInfo:
        if path not in self.models:
            raise ModelError(f"{path}{HOSTILE} is no GGUF", HOSTILE)
        return self.models[path]

    async def read_log(
        self, name: str, offset: int, limit_bytes: int = 65536
    ) -> LogChunk:
        return await super().read_log(name, offset, min(limit_bytes, 997))

    async def peers_to_pick(self) -> tuple[KnownMachine, ...]:
        told = KnownMachine(name="m", address="ada@m", told_by="mac")
        return tuple(map(filled, (told, *await super().peers_to_pick())))


def as_hostile(snapshot: ClusterSnapshot) -> ClusterSnapshot:
    briefs = (ClusterBrief(name="other", model="/m.gguf"),)
    left = (Leftover(name="w", peer="mini", why="gone"),)
    full = replace(snapshot, clusters=briefs, leftovers=left)
    return filled(full)


@pytest.fixture(autouse=True)
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    texts: list[str] = []
    monkeypatch.setattr(HeadlessDriver, "write", lambda _, text: texts.append(text))
    return texts


def look(app: DllmApp) -> str:
    """The screen's text, once nothing in it drives a terminal or takes a click."""
    for strip in app.screen._compositor.render_strips():
        for segment in strip:
            found = troubles(segment.text)
            assert not found, f"{found} in {strip.text!r}"
            style = segment.style
            assert style is None or style.link is None
            assert style is None or "bell" not in str(style.meta)
    text = screen_text(app)
    assert not troubles(text)
    return text


async def told(pilot: Pilot[None], snapshot: ClusterSnapshot, seq: int) -> str:
    app: Any = pilot.app
    new = replace(as_hostile(snapshot), seq=seq)
    app.cluster.push(new)
    await until(pilot, lambda: app.editor.snapshot is new)
    return look(app)


def _in_front(app: DllmApp, kind: type[object]) -> bool:
    return isinstance(app.screen, kind)


async def test_on_every_screen_and_in_every_dialog(started: Started) -> None:
    running = started(HostileCluster(scenes.homelab_serving()), size=SIZE)
    async with running as (pilot, app, _):
        for key in ("f1", "f3", "f4", "f5", "f6"):
            await pilot.press(key)
            await until(pilot, lambda: MARKUP[:5] in screen_text(app))
            look(app)
            await pilot.press("y")
        await resize(pilot, *NARROW)
        for key in ("f5", "f3", "f1"):
            await pilot.press(key)
            await pilot.pause(0.05)
            look(app)
        await resize(pilot, *SIZE)
        app.tell(HOSTILE, "warning")
        app.report(filled(Failure(what="It broke", hint="Mend it")))
        await pilot.pause()
        assert MARKUP[:5] in look(app)
        for key, kind in (
            ("e", EventsDialog),
            ("N", ChoiceDialog),
            ("q", ChoiceDialog),
            ("m", ModelPicker),
        ):
            await pilot.press(key)
            await until(pilot, partial(_in_front, app, kind))
            await pilot.pause(0.1)
            assert MARKUP[:5] in look(app), key
            await pilot.press("escape")
            await pilot.pause()
        states = (
            scenes.demo_starting(),
            scenes.demo_failed(),
            people.here(),
            people.refused(),
            scenes.idle(),
        )
        for seq, snapshot in enumerate(states, 100):
            assert MARKUP[:5] in await told(pilot, snapshot, seq)


async def test_when_a_machine_asks(started: Started) -> None:
    def asks(question: PeerQuestion) -> ClusterSnapshot:
        return people.here(replace(people.MINI, question=question))

    running = started(HostileCluster(asks(people.HOST_KEY)), size=SIZE, wait=False)
    async with running as (pilot, app, _):
        await until(pilot, lambda: isinstance(app.screen, HostKeyDialog))
        assert MARKUP[:5] in look(app)
        await pilot.press("escape")
        await told(pilot, asks(people.PASSWORD), 100)
        await until(pilot, lambda: isinstance(app.screen, SecretDialog))
        assert MARKUP[:5] in look(app)
        await pilot.press("escape")
        app.push_screen(PeerDialog(filled(people.ADA), lambda: scenes.NOW))
        await until(pilot, lambda: isinstance(app.screen, PeerDialog))
        await pilot.pause()
        assert MARKUP[:5] in look(app)
        await pilot.press("y")
        assert not troubles(app.clipboard)


async def test_what_a_model_says_a_character_at_a_time(
    started: Started, written: list[str]
) -> None:
    """Sequences cut anywhere, entities that stand for characters, links."""
    said = f"so {HOSTILE} &#x1b;[9J &#x202e; [link](http://x/%1b%5d0;OWNE%07) done"
    cluster = HostileCluster(scenes.homelab_serving())
    cluster.answer = [
        *(ChatDelta(reasoning=letter) for letter in f"hm {HOSTILE} yes"),
        *(ChatDelta(text=letter) for letter in said),
        ChatDelta(done=True, finish_reason=HOSTILE),
    ]
    async with started(cluster, serving_pane="chat", size=SIZE) as (pilot, app, _):
        app._home.chat.focus_default()
        await pilot.press("h", "i", "enter")
        await until(pilot, lambda: "done" in screen_text(app))
        assert "[red]" in look(app)
        app._home.chat.query_one(ChatReasoning).unfolded = True
        await pilot.pause()
        look(app)
        now = app._home.chat.conversation
        assert now is not None
        app.copy_to_clipboard(now.turns[-1].reply.text)
    copied = [
        base64.b64decode(text[7:-1]).decode() for text in written if "]52;" in text
    ]
    assert copied
    assert not any(map(troubles, copied))
