"""The engine of this machine, for tests that give the user another home."""

from __future__ import annotations

import pytest

from backends.engine.ask import read_engine
from backends.engine.install import find_engine
from backends.errors import EngineError
from backends.machines.local import local_agent_for_now
from backends.paths import user_paths
from backends.state import EngineInfo


def _real_engine() -> EngineInfo | None:
    try:
        return find_engine(None, user_paths())
    except EngineError:
        return None


async def flags_of(engine: EngineInfo) -> frozenset[str]:
    paths = user_paths()
    async with local_agent_for_now(paths.run_dir) as agent:
        return (await read_engine(agent, engine, paths)).flags


# Found before a test gives the user another home.
ENGINE = _real_engine()


@pytest.fixture
def engine() -> EngineInfo:
    if ENGINE is None:
        pytest.skip("needs an engine: make engine")
    return ENGINE
