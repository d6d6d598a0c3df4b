"""A GPU for tests: Mesa's software Vulkan, or a real one; see ``tests.gpu.engine``."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.engine.conftest import big_model, demo_model, user
from tests.gpu import engine

__all__ = ["big_model", "demo_model", "user"]
_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.gpu)
            if reason := missing():
                item.add_marker(pytest.mark.skip(reason=reason))


@cache
def missing() -> str:
    """Why nothing here can run; empty when it can."""
    found = engine.directory()
    if found is None:
        return "no Vulkan engine is built here: make test-gpu"
    if engine.DEVICE not in listed(found):
        return f"the engine sees no {engine.DEVICE}: install mesa-vulkan-drivers"
    return ""


def listed(directory: Path) -> str:
    done = subprocess.run(
        [str(directory / "llama-server"), "--list-devices"],
        env=engine.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.fixture(autouse=True)
def visible(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in engine.environment().items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def gpu_engine() -> Path:
    found = engine.directory()
    assert found is not None
    return found
