"""What the chat looks like: an answer, reasoning, waiting, failing, its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from backends.state import (
    ChatBrief,
    ChatDelta,
    ChatTimings,
    Failure,
    Sampling,
)
from tests.tui import scenes
from tests.tui.chatting import DONE, answer, ask, drawn_whole, said
from tests.tui.helpers import screen_text, until
from tests.tui.looks import SIZES, name_of
from tests.tui.stages import ChatStage
from tui.dialogs.ask import LineDialog
from tui.dialogs.pick import ChatsDialog
from tui.dialogs.sampling import SamplingDialog
from tui.screens.cluster.chat_pane import Composer

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.pilot import Pilot

    Compare = Callable[..., bool]

ANSWER = """\
Because air scatters **short** wavelengths more strongly than long ones:

1. Sunlight holds all colours.
2. Molecules are far smaller than a wavelength, so scattering grows with the
   *fourth power* of the frequency: `I ∝ 1/λ⁴`.

```python
def scatter(wavelength_nm: float) -> float:
    return 1 / wavelength_nm**4
```

| colour | nm  | relative |
|--------|-----|----------|
| violet | 400 | 9.4      |
| red    | 700 | 1.0      |

## And at sunset?
The path is longer, so most of the blue is gone before it reaches us.
"""
EARLIER = (said("Hello?", "Hello! What can I do for *you*?"),)
CHATS = [
    ("default", "GLM-4.7-Flash-Q4_K_M", "Hello?"),
    ("default", "GLM-4.7-Flash-Q4_K_M", "Why is the sky blue, and why red at sunset?"),
    ("lab", "Qwen3-Coder-30B-A3B-Instruct-Q5_K_M", "A parser for GGUF headers"),
]
REASONING = ChatDelta(
    reasoning="A classic. Mention Rayleigh, and that the eye sees violet less well."
)
ENDED = ChatDelta(
    done=True,
    finish_reason="stop",
    timings=ChatTimings(tokens=142, tok_per_s=21.34, first_token_s=0.88),
)
FAILED = ChatDelta(
    done=True,
    failure=Failure(
        what="worker1 was killed (SIGKILL)",
        hint="It ran out of memory: give it fewer layers",
    ),
)


def conversation(*deltas: ChatDelta, until_shown: str) -> Any:
    """Ask, and let these pieces come."""

    async def run(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, ChatStage)
        await app.restore(EARLIER, Sampling(temperature=0.7))
        await until(pilot, lambda: "Hello!" in screen_text(app))
        app.query_one(Composer).write("Why is the sky blue?")
        await pilot.press("enter")
        await until(pilot, lambda: app.asked)
        app.give(*deltas)
        await until(pilot, lambda: until_shown in screen_text(app))
        if any(delta.done for delta in deltas):
            await until(pilot, lambda: drawn_whole(app))

    return run


@pytest.mark.parametrize("size", SIZES, ids=name_of)
def test_an_answer(snap_compare: Compare, size: tuple[int, int]) -> None:
    run = conversation(
        REASONING, ChatDelta(text=ANSWER), ENDED, until_shown="142 tokens"
    )
    assert snap_compare(ChatStage(), terminal_size=size, run_before=run)


def test_reasoning(snap_compare: Compare) -> None:
    run = conversation(REASONING, until_shown="A classic")
    assert snap_compare(ChatStage(), terminal_size=(80, 24), run_before=run)


def test_waiting_in_little_room(snap_compare: Compare) -> None:
    run = conversation(ChatDelta(prompt_progress=0.43), until_shown="43 %")
    assert snap_compare(ChatStage(), terminal_size=(58, 8), run_before=run)


def test_a_failure(snap_compare: Compare) -> None:
    run = conversation(
        ChatDelta(text="Because air"), FAILED, until_shown="worker1 was killed"
    )
    assert snap_compare(ChatStage("dllm-light"), terminal_size=(80, 24), run_before=run)


def test_closed(snap_compare: Compare) -> None:
    async def close(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, ChatStage)
        app.pane.set_ready(False, "nothing runs: {cluster.launch} launches")
        await until(pilot, lambda: "l launches" in screen_text(app))

    assert snap_compare(ChatStage(), terminal_size=(80, 24), run_before=close)


def test_settings(snap_compare: Compare) -> None:
    async def open_settings(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, ChatStage)
        await app.restore(EARLIER, Sampling(temperature=0.7))
        await until(pilot, lambda: "Hello! What can" in screen_text(app))
        await pilot.press("escape", "p")
        await until(pilot, lambda: isinstance(app.screen, SamplingDialog))
        await pilot.press(*"Be brief.", "tab", "tab", *"2", "tab")
        await until(pilot, lambda: "top p takes" in screen_text(app))

    assert snap_compare(ChatStage(), terminal_size=(80, 24), run_before=open_settings)


def test_answers_compared(snap_compare: Compare) -> None:
    """An earlier question, asked again in other words; another followed the first."""

    async def compare(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, ChatStage)
        for question, text in (("Why is it blue?", "Rayleigh."), ("And red?", "Dust.")):
            await ask(app, pilot, question)
            await answer(app, pilot, ChatDelta(text=text), DONE)
        await pilot.press("escape", *["left_curly_bracket"] * 2, "E", *" Briefly.")
        await pilot.press("enter")
        await until(pilot, lambda: len(app.asked) == 3)
        await answer(app, pilot, ChatDelta(text="Scattering."), DONE)
        await until(pilot, lambda: "1 question followed" in screen_text(app))
        app.clear_notifications()
        await until(pilot, lambda: "Asked again" not in screen_text(app))

    assert snap_compare(ChatStage(), terminal_size=(80, 24), run_before=compare)


def test_chats(snap_compare: Compare) -> None:
    async def pick(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, ChatStage)
        await app.restore(EARLIER)
        await until(pilot, lambda: "Hello! What can" in screen_text(app))
        day_s = 86_400.0
        chats = [
            ChatBrief(
                id=str(number),
                cluster=cluster,
                model=f"/models/{model}.gguf",
                title=title,
                turns=3 * number + 1,
                changed_at=scenes.NOW - number * day_s,
            )
            for number, (cluster, model, title) in enumerate(CHATS)
        ]
        app.push_screen(ChatsDialog(chats, "1", "default", scenes.NOW))
        await until(pilot, lambda: "3 chats" in screen_text(app))
        await pilot.press("down")
        await pilot.pause()

    assert snap_compare(ChatStage(), terminal_size=(80, 24), run_before=pick)


def test_naming(snap_compare: Compare) -> None:
    async def name(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, ChatStage)
        await app.restore(EARLIER)
        await until(pilot, lambda: "Hello! What can" in screen_text(app))
        await pilot.press("escape", "R")
        await until(pilot, lambda: isinstance(app.screen, LineDialog))
        await pilot.press(*"The sky")
        await pilot.pause()

    assert snap_compare(ChatStage(), terminal_size=(80, 24), run_before=name)
