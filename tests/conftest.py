"""What holds for all tests."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from backends.paths import Paths

if TYPE_CHECKING:
    from pathlib import Path

    from _pytest.terminal import TerminalReporter

TOLD_CHARS = 6000
"""Of what a test said before it was tried again, of each kind."""

# These machines are shared: one may stand still for longer than any example takes.
settings.register_profile(
    "shared", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("shared")


def pytest_collection_finish() -> None:
    """Spare thousands of tests a search for garbage among what stays to the end."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Tell why a test was tried twice: it may be a fault that shows itself rarely."""
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.write_sep("_", f"first try of {report.nodeid}")
        for text in (report.longreprtext, report.capstdout, report.capstderr):
            terminalreporter.write_line(text[-TOLD_CHARS:])


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """Directories of somebody who has nothing yet; none is made."""
    return Paths(
        config_dir=tmp_path / "config",
        state_dir=tmp_path / "state",
        cache_dir=tmp_path / "cache",
        runtime_dir=tmp_path / "run",
    )
