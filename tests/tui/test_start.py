"""A start of the console loads what the first screen needs, and nothing else."""

from __future__ import annotations

import subprocess
import sys

HEAVY = (
    "aiohttp",
    "asyncssh",
    "gguf",
    "h11",
    "numpy",
    "psutil",
    "tree_sitter",
    "textual.widgets._data_table",
    "textual.widgets._markdown",
    "tui.dialogs.help_and_events",
    "tui.screens.logs.screen",
    "tui.screens.models.screen",
    "tui.screens.models.picker",
)


def test_nothing_heavy_is_imported_before_the_first_paint() -> None:
    code = "import sys, tui.app.app; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert not loaded & set(HEAVY)
