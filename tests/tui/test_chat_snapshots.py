"""What the chat looks like: an answer, reasoning, waiting, failing, its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from backends.state import ChatDelta, ChatMessage, ChatTimings, Failure, Sampling
from tests.tui.helpers import screen_text, until
from tests.tui.stages import ChatStage
from tui.widgets.composer import Composer
from tui.widgets.sampling_dialog import SamplingDialog

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
EARLIER = (
    ChatMessage(role="user", content="Hello?"),
    ChatMessage(role="assistant", content="Hello! What can I do for *you*?"),
)
REASONING = ChatDelta(
    reasoning="A classic. Mention Rayleigh, and that the eye sees violet less well."
)
DONE = ChatDelta(
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
LOOKS = [
    pytest.param((80, 24), "dllm-dark", id="80x24-dark"),
    pytest.param((120, 36), "dllm-dark", id="120x36-dark"),
    pytest.param((120, 36), "dllm-light", id="120x36-light"),
]


def conversation(*deltas: ChatDelta, until_shown: str) -> Any:
    """Ask, and let these pieces come."""

    async def run(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, ChatStage)
        app.pane.restore(EARLIER, Sampling(temperature=0.7))
        await until(pilot, lambda: "Hello!" in screen_text(app))
        app.query_one(Composer).write("Why is the sky blue?")
        await pilot.press("enter")
        await until(pilot, lambda: app.asked)
        for delta in deltas:
            app.pane.show_delta(delta)
        await until(pilot, lambda: until_shown in screen_text(app))

    return run


@pytest.mark.parametrize(("size", "theme"), LOOKS)
def test_an_answer(snap_compare: Compare, size: tuple[int, int], theme: str) -> None:
    run = conversation(
        REASONING, ChatDelta(text=ANSWER), DONE, until_shown="142 tokens"
    )
    assert snap_compare(ChatStage(theme), terminal_size=size, run_before=run)


def test_reasoning(snap_compare: Compare) -> None:
    run = conversation(REASONING, until_shown="thinking")
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
        app.pane.set_ready(False, "nothing runs: l launches")
        await until(pilot, lambda: "l launches" in screen_text(app))

    assert snap_compare(ChatStage(), terminal_size=(80, 24), run_before=close)


@pytest.mark.parametrize("size", [(60, 18), (80, 24)], ids=["60x18", "80x24"])
def test_settings(snap_compare: Compare, size: tuple[int, int]) -> None:
    async def open_settings(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, ChatStage)
        app.pane.restore(EARLIER, Sampling(temperature=0.7))
        await pilot.press("escape", "p")
        await until(pilot, lambda: isinstance(app.screen, SamplingDialog))
        await pilot.press(*"Be brief.", "tab", "tab", *"2", "tab")
        await until(pilot, lambda: "top p takes" in screen_text(app))

    assert snap_compare(ChatStage(), terminal_size=size, run_before=open_settings)
