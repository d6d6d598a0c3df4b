"""The system prompt and sampling of a chat, by its dialog."""

from __future__ import annotations

from backends.state import (
    ChatMessage,
    Sampling,
)
from tests.tui.chatting import EARLIER, ask, sampling
from tests.tui.helpers import screen_text, until
from tests.tui.stages import ChatStage
from tui.dialogs.sampling import SamplingDialog


async def test_settings_are_applied_to_the_next_question() -> None:
    app = ChatStage()
    async with app.run_test(size=(80, 24)) as pilot:
        await app.restore(EARLIER, Sampling(top_k=3))
        await pilot.press("escape", "p")
        await until(pilot, lambda: isinstance(app.screen, SamplingDialog))
        await pilot.press(*"Be brief.", "tab", *"0.5", "enter")
        await until(pilot, lambda: not isinstance(app.screen, SamplingDialog))
        assert sampling(app) == Sampling(temperature=0.5, top_k=3)
        app.pane.focus_default()
        await ask(app, pilot)
        assert app.asked[0].messages[0] == ChatMessage(
            role="system", content="Be brief."
        )
        assert app.pane.border_subtitle == "system prompt · own sampling"


async def test_a_wrong_setting_keeps_the_dialog_open() -> None:
    app = ChatStage()
    async with app.run_test(size=(80, 24)) as pilot:
        await app.restore(EARLIER)
        await pilot.press("escape", "p")
        await until(pilot, lambda: isinstance(app.screen, SamplingDialog))
        await pilot.press("tab", *"hot", "enter")
        assert "temperature takes a number, 0–5." in screen_text(app)
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, SamplingDialog))
        assert sampling(app) == Sampling()


async def test_reset_empties_every_setting() -> None:
    app = ChatStage()
    async with app.run_test(size=(80, 24)) as pilot:
        await app.restore(EARLIER, Sampling(top_k=3, seed=1))
        await pilot.press("escape", "p")
        await until(pilot, lambda: isinstance(app.screen, SamplingDialog))
        await pilot.click("#reset")
        await pilot.press("f2")
        await until(pilot, lambda: not isinstance(app.screen, SamplingDialog))
        assert sampling(app) == Sampling()
