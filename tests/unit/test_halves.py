"""The two halves stay apart at run time, and the console starts light."""

from __future__ import annotations

import subprocess
import sys

import pytest


def modules_after(statement: str) -> set[str]:
    """Names of the modules a fresh interpreter has loaded after a statement."""
    code = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    run = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    return set(run.stdout.split())


def test_backends_load_no_terminal() -> None:
    loaded = modules_after(
        "import backends.controller.__main__, backends.doctor.examine"
    )
    assert not loaded & {"textual", "rich", "click", "tui"}


@pytest.mark.parametrize(
    "heavy", ["aiohttp", "gguf", "numpy", "psutil", "tomlkit", "asyncssh"]
)
def test_the_console_starts_without_heavy_imports(heavy: str) -> None:
    loaded = modules_after("from tui.cli.main import import_console; import_console()")
    assert heavy not in loaded
