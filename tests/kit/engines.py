"""The engine of this machine, for tests that give the user another home."""

from __future__ import annotations

import pytest

from backends.engine.install import find_engine
from backends.errors import EngineError
from backends.paths import user_paths
from backends.state import EngineInfo


def _real_engine() -> EngineInfo | None:
    try:
        return find_engine(None, user_paths())
    except EngineError:
        return None


# Found before a test gives the user another home.
ENGINE = _real_engine()


@pytest.fixture
def engine() -> EngineInfo:
    if ENGINE is None:
        pytest.skip("needs an engine: make engine")
    return ENGINE
