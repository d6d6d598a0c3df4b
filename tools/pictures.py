"""Pictures of the screens for the README and docs: run it with ``make pictures``.

Of the scripted homelab, so that they are the same wherever they are made.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

os.environ["TEXTUAL_ANIMATIONS"] = "none"
os.environ["TZ"] = "UTC"

from tests.tui import scenes
from tests.tui.helpers import settled
from tests.tui.scripted import ScriptedCluster
from tests.tui.test_snapshots import speeds
from tui.app.app import DllmApp

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
SIZE = (120, 36)
PICTURES = {
    "cluster": ("cluster", SIZE),
    "cluster-large": ("cluster", (160, 50)),
    "traffic": ("traffic", SIZE),
    "lab": ("lab", SIZE),
    "logs": ("logs", SIZE),
    "models": ("models", SIZE),
}
"""By file name: the screen and its size."""


async def take(name: str, mode: str, size: tuple[int, int], folder: Path) -> None:
    """One picture."""
    cluster = ScriptedCluster(scenes.homelab_serving())
    app = DllmApp(
        cluster, memory_file=folder / "console.json", clock=lambda: scenes.NOW
    )
    async with app.run_test(size=size) as pilot:
        await settled(pilot)
        await speeds(pilot)
        await app.action_show_mode(mode)
        for _ in range(20):
            await pilot.pause()
            await asyncio.sleep(0.05)
        picture = app.export_screenshot(title="dllm-tui", simplify=True)
        (FOLDER / f"{name}.svg").write_text(picture)


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, (mode, size) in PICTURES.items():
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(take(name, mode, size, Path(folder)))


if __name__ == "__main__":
    main()
