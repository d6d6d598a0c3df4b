"""Look at the console in a real terminal: ``python -m tests.tui.play serving``."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.tui import peer_scenes, scenes
from tests.tui.lifelike import LifelikePeers
from tui.app.app import DllmApp

SCENES = {
    "idle": scenes.idle,
    "serving": scenes.homelab_serving,
    "starting": scenes.demo_starting,
    "failed": scenes.demo_failed,
    "demo": scenes.demo_serving,
    "peers": peer_scenes.here,
    "refused": peer_scenes.refused,
}
PLANS = {scenes.GLM.path: peer_scenes.SPREAD_PLAN}
MODELS = {"idle": scenes.DEMO.path, "peers": scenes.GLM.path}


async def main(scene: str) -> None:
    """Run the console on a scripted cluster until it is left."""
    with tempfile.TemporaryDirectory() as folder:
        plans = PLANS if scene == "peers" else None
        cluster = LifelikePeers(SCENES[scene](), plans=plans)
        model = MODELS.get(scene)
        app = DllmApp(
            cluster, memory_file=Path(folder) / "console.json", initial_model=model
        )
        await app.run_async()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "idle"))
