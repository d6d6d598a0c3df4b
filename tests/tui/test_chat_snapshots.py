"""What the chat looks like: an answer, reasoning, waiting, failing, its settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from textual.pilot import Pilot

from backends.state import ChatBrief, ChatDelta, ChatTimings, Failure, Sampling
from tests.tui import scenes
from tests.tui.chatting import DONE, answer, drawn_whole, said, talk
from tests.tui.helpers import screen_text, until
from tests.tui.snapshot_sizes import Look, Size, at_both_sizes
from tests.tui.stages import ChatStage
from tui.dialogs.pick import ChatsDialog
from tui.dialogs.sampling import SamplingDialog
from tui.screens.cluster.chat_pane import Composer

Steps = Callable[[ChatStage, Pilot[None]], Awaitable[None]]

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
COOL = Sampling(temperature=0.7)
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


@pytest.fixture
def looks_the_same(look: Look) -> Look:
    def see(steps: Steps, size: Size = (80, 24), theme: str = "dllm-dark") -> None:
        async def run(pilot: Pilot[None]) -> None:
            assert isinstance(pilot.app, ChatStage)
            await steps(pilot.app, pilot)

        look(ChatStage(theme), size, run)

    return see


async def restored(
    app: ChatStage, pilot: Pilot[None], sampling: Sampling | None = None
) -> None:
    await app.restore(EARLIER, sampling)
    await until(pilot, lambda: "Hello! What can" in screen_text(app))


def conversation(*deltas: ChatDelta, until_shown: str) -> Steps:
    """Ask, and let these pieces come."""

    async def run(app: ChatStage, pilot: Pilot[None]) -> None:
        await restored(app, pilot, COOL)
        app.query_one(Composer).write("Why is the sky blue?")
        await pilot.press("enter")
        await until(pilot, lambda: app.asked)
        app.give(*deltas)
        await until(pilot, lambda: until_shown in screen_text(app))
        if any(delta.done for delta in deltas):
            await until(pilot, lambda: drawn_whole(app))

    return run


@at_both_sizes
def test_an_answer(looks_the_same: Look, size: Size) -> None:
    pieces = REASONING, ChatDelta(text=ANSWER), ENDED
    looks_the_same(conversation(*pieces, until_shown="142 tokens"), size)


def test_reasoning(looks_the_same: Look) -> None:
    looks_the_same(conversation(REASONING, until_shown="A classic"))


def test_waiting_in_little_room(looks_the_same: Look) -> None:
    reading = conversation(ChatDelta(prompt_progress=0.43), until_shown="43 %")
    looks_the_same(reading, (58, 8))


def test_a_failure(looks_the_same: Look) -> None:
    pieces = ChatDelta(text="Because air"), FAILED
    failing = conversation(*pieces, until_shown="worker1 was killed")
    looks_the_same(failing, theme="dllm-light")


def test_settings(looks_the_same: Look) -> None:
    async def open_settings(app: ChatStage, pilot: Pilot[None]) -> None:
        await restored(app, pilot, COOL)
        await pilot.press("escape", "p")
        await until(pilot, lambda: isinstance(app.screen, SamplingDialog))
        await pilot.press(*"Be brief.", "tab", "tab", *"2", "tab")
        await until(pilot, lambda: "top p takes" in screen_text(app))

    looks_the_same(open_settings)


def test_answers_compared(looks_the_same: Look) -> None:
    """An earlier question, asked again in other words; another followed the first."""

    async def compare(app: ChatStage, pilot: Pilot[None]) -> None:
        await talk(app, pilot, "Why is it blue?", "Rayleigh.")
        await talk(app, pilot, "And red?", "Dust.")
        await pilot.press("escape", *["left_curly_bracket"] * 2, "E", *" Briefly.")
        await pilot.press("enter")
        await until(pilot, lambda: len(app.asked) == 3)
        await answer(app, pilot, ChatDelta(text="Scattering."), DONE)
        await until(pilot, lambda: "1 question followed" in screen_text(app))
        app.clear_notifications()
        await until(pilot, lambda: "Asked again" not in screen_text(app))

    looks_the_same(compare)


def test_chats(looks_the_same: Look) -> None:
    async def pick(app: ChatStage, pilot: Pilot[None]) -> None:
        await restored(app, pilot)
        chats = [
            ChatBrief(
                id=str(number),
                cluster=cluster,
                model=f"/models/{model}.gguf",
                title=title,
                turns=3 * number + 1,
                changed_at=scenes.NOW - number * 86_400.0,
            )
            for number, (cluster, model, title) in enumerate(CHATS)
        ]
        app.push_screen(ChatsDialog(chats, "1", "default", scenes.NOW))
        await until(pilot, lambda: "3 chats" in screen_text(app))
        await pilot.press("down")
        await pilot.pause()

    looks_the_same(pick)
