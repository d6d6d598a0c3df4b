"""What the API of peers does beside the peers themselves."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

from backends.controller.peer_api import PeerApi
from backends.plan_files import PlanFile, read_plan, save_plan
from tests.kit.clusters import paths_in


async def test_saved_plans_and_launches_follow_a_machine_that_is_renamed(
    tmp_path: Path,
) -> None:
    paths = paths_in(tmp_path)
    plan = PlanFile(model="/m.gguf", split={"mini/MTL0": 13})
    folders = paths.plans_dir, paths.launches_dir
    files = [save_plan(folder, "evening", plan) for folder in folders]
    parts: Any = SimpleNamespace(
        peers=AsyncMock(),
        clusters=SimpleNamespace(serves=None, calibrations=AsyncMock()),
        inventory=SimpleNamespace(paths=paths),
    )
    await cast("Any", PeerApi(parts))._renamed("mini", "ada")
    assert [read_plan(file).split for file in files] == [{"ada/MTL0": 13}] * 2
