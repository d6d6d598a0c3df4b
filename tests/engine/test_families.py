"""Our arithmetic of memory beside llama.cpp's answer, for models of many kinds.

Each has two splits at two contexts; ``make bench-memory`` compares many more.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.engine.install import find_engine
from backends.models.layers import read_model
from backends.paths import user_paths
from tests.kit.families import FAMILIES, write_header
from tests.native.stock import engine
from tools.bench.bench_memory import PART, VERSIONS, Case, answers, compare

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("name", FAMILIES)
async def test_memory_at_drag_speed_is_near_the_engines_answer(
    tmp_path: Path, name: str
) -> None:
    number = list(FAMILIES).index(name)
    info = find_engine(str(engine(VERSIONS[number % 2])), user_paths())
    model = read_model(write_header(FAMILIES[name], tmp_path / "m.gguf"))
    third = (model.n_layer + 1) // 3
    cases = [
        Case(8192, "q8_0", (third, third, model.n_layer + 1 - 2 * third)),
        Case(1024, "f16", (2 * third,)),
    ]
    told = await answers(info, model, cases)
    found = compare(model, cases, told, info.rpc_protocol)
    assert len(found) == 6
    for one in found:
        assert one.part < PART, one
