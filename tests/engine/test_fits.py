"""The fit of a model that is elsewhere: llama.cpp's answer to its header."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.conftest import User
from tests.unit.models.hub import Hub


@pytest.fixture
def hub(big_model: str) -> Iterator[Hub]:
    """A hub with one model."""
    one = Hub({"big-F32.gguf": Path(big_model).read_bytes()})
    with one.served_aside():
        yield one


def test_a_header_suffices_for_the_engines_answer(
    user: User, hub: Hub, big_model: str
) -> None:
    user.env["HF_ENDPOINT"] = hub.url
    (found,) = user.json("models", "get", "owner/name", "--list")
    assert hub.served_bytes < len(hub.files["big-F32.gguf"]) // 10
    fit = found["fit"]
    assert (fit["source"], fit["note"]) == ("engine", "")
    plan = user.json("plan", big_model, "--context", str(fit["ctx_size"]))
    assert plan["plan"]["layers"] == fit["layers"]
    memory = {one["device"]: one for one in plan["memory"]}
    assert fit["memory"] == [memory[one["device"]] for one in fit["memory"]]
    table = user.run("models", "get", "owner/name:F32", "--list").stdout
    (row,) = [line for line in table.splitlines() if line.startswith("F32")]
    assert row.split()[3:5] == ["yes", str(fit["ctx_size"])]
