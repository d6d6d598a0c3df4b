"""The fit of a model that is elsewhere: llama.cpp's answer to its header."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.conftest import User
from tests.kit.models import write_llama
from tests.unit.models.hub import Hub


@pytest.fixture
def hub(user: User) -> Iterator[Hub]:
    """A hub with one model, which is in the user's home too."""
    file = user.home / "big.gguf"
    write_llama(file, n_layer=12, n_embd=256, n_ff=768)
    with Hub({"big-F32.gguf": file.read_bytes()}).served_aside() as one:
        yield one


def test_a_header_suffices_for_the_engines_answer(user: User, hub: Hub) -> None:
    user.env["HF_ENDPOINT"] = hub.url
    (found,) = user.json("models", "get", "owner/name", "--list")
    assert hub.served_bytes < len(hub.files["big-F32.gguf"]) // 10
    fit = found["fit"]
    assert (fit["source"], fit["note"]) == ("engine", "")
    plan = user.json(
        "plan", str(user.home / "big.gguf"), "--context", str(fit["ctx_size"])
    )
    assert plan["plan"]["layers"] == fit["layers"]
    memory = {one["device"]: one for one in plan["memory"]}
    assert fit["memory"] == [memory[one["device"]] for one in fit["memory"]]
    table = user.run("models", "get", "owner/name:F32", "--list").stdout
    (row,) = [line for line in table.splitlines() if line.startswith("F32")]
    assert row.split()[3:5] == ["yes", str(fit["ctx_size"])]
