"""Getting an engine in the console, where this machine has none."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from backends.state import EngineProgress, EngineStage
from tests.kit.console import Started
from tests.tui import scenes
from tests.tui.helpers import screen_text, toasts, until
from tui.flows.engine import Reached

MESSAGE = "No llama.cpp with RPC is on this machine."
NONE_HERE = replace(scenes.idle(), engine=None, message=MESSAGE, no_engine=True)


async def test_b_gets_an_engine_and_again_cancels(started: Started) -> None:
    async with started(NONE_HERE, wait=False) as (pilot, app, cluster):
        cluster.downloads.clear()
        await until(pilot, lambda: MESSAGE in screen_text(app))
        assert "b gets llama.cpp, or builds it" in screen_text(app)
        await pilot.press("b")
        await until(pilot, lambda: "50 % of 17.0 MiB" in screen_text(app))
        await pilot.press("b")
        await until(pilot, lambda: "Cancel it" in screen_text(app))
        await pilot.press("y")
        await until(pilot, lambda: "50 % of" not in screen_text(app))
        said = "\n".join(toasts(app))
        assert "getting llama.cpp again resumes" in said
        assert MESSAGE in screen_text(app)
        # On this machine's row, and in Models, too.
        app._home.go_to("peers")
        await pilot.press("p")
        await until(pilot, lambda: len(cluster.called("get_engine")) == 2)
        await until(pilot, lambda: "50 % of 17.0 MiB" in screen_text(app))
        cluster.downloads.set()
        await until(pilot, lambda: "50 % of" not in screen_text(app))
        said = "\n".join(toasts(app))
        assert "building llama.cpp from source instead" in said
        assert f"llama.cpp is here: {scenes.ENGINE.version}" in said
        await pilot.press("6")
        await until(pilot, lambda: app.current_mode == "models")
        await pilot.press("b")
        await until(pilot, lambda: len(cluster.called("get_engine")) == 3)


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (
            EngineProgress(stage=EngineStage.COMPILE, fraction=0.25),
            "Compiling llama.cpp: 25 %",
        ),
        (EngineProgress(stage=EngineStage.TRY), "Trying llama.cpp…"),
    ],
)
def test_progress_in_words(progress: EngineProgress, text: str) -> None:
    assert Reached().text(progress) == text


def test_a_download_tells_rate_and_rest() -> None:
    now = 0.0
    reached = Reached(lambda: now)
    sizes = [(0, 0), (10, 5 << 20)]
    for now, done_bytes in sizes:  # noqa: B007
        progress = EngineProgress(
            stage=EngineStage.DOWNLOAD, done_bytes=done_bytes, size_bytes=10 << 20
        )
        text = reached.text(progress)
    assert text == "Downloading llama.cpp: 50 % of 10.0 MiB · 0.52 MB/s · 10.0 s left"
