"""The console on a real cluster: pick, drag, launch, ask, relaunch, stop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from textual.pilot import Pilot

from backends.paths import user_paths
from backends.split.layout import counts
from backends.state import ClusterState
from tests.engine.conftest import WAIT_S, User
from tests.engine.driving import client_of
from tests.tui.helpers import last_answer, screen_text
from tui.app.app import DllmApp
from tui.screens.cluster.chat_pane import Composer

pytestmark = pytest.mark.engine


async def until(pilot: Pilot[None], condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            shown = screen_text(pilot.app)
            raise AssertionError(f"not in time: {what}, but\n{shown}")
        await asyncio.sleep(0.05)
        await pilot.pause()


async def test_a_session_from_launch_to_stop(
    user: User, demo_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of(user, monkeypatch)
    monkeypatch.delenv("NO_COLOR", raising=False)
    memory = user_paths().console_file
    app = DllmApp(client, memory_file=memory, initial_model=demo_model)
    async with app.run_test(size=(120, 36)) as pilot:
        editor = app.editor

        def state() -> ClusterState | None:
            return editor.snapshot.state if editor.snapshot else None

        def measured() -> tuple[int, ...]:
            found = editor.snapshot.measured if editor.snapshot else None
            return tuple(r.last - r.first + 1 for r in found.layers) if found else ()

        await until(pilot, lambda: editor.plan is not None, "a plan for the model")
        assert editor.plan is not None
        planned = tuple(n for n in counts(editor.plan.split) if n)
        await pilot.press("l")
        await until(pilot, lambda: state() is ClusterState.SERVING, "serving")
        assert measured() == planned

        app.query_one(Composer).focus()
        await pilot.press(*"What is a split?", "enter")
        chat = app.query_one("#chat")
        await until(
            pilot,
            lambda: "layers" in last_answer(app),
            "an answer",
        )
        assert chat.display

        app._home.go_to("split")
        await pilot.press("left", "left", "l")
        wanted = (planned[0] - 2, planned[1] + 2)
        await until(pilot, lambda: measured() == wanted, f"relaunched as {wanted}")
        await until(pilot, lambda: state() is ClusterState.SERVING, "serving again")

        await pilot.press("s")
        await until(pilot, lambda: app.screen.is_modal, "the question")
        await pilot.press("y")
        await until(pilot, lambda: state() is ClusterState.IDLE, "stopped")
    await client.shutdown()
    user.assert_nothing_left()
