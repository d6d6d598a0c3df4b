"""Which models found could guess ahead for another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from backends.models.drafts import Judge, head_way
from backends.models.layers import read_model
from backends.state import ModelFile
from tests.unit.models.ggufs import TOKENS, write_gguf

if TYPE_CHECKING:
    from pathlib import Path

WORDS = {"tokenizer.ggml.tokens": TOKENS}
SPM = {**WORDS, "tokenizer.ggml.model": "llama"}
BPE = {**WORDS, "tokenizer.ggml.model": "gpt2"}


def judged(folder: Path, **changes: object) -> str:
    """Why a small model of the same words, with changes, is none to guess with."""
    model = write_gguf(folder / "model.gguf", metadata=SPM, vocabulary=False)
    other = write_gguf(folder / "other.gguf", metadata=BPE, vocabulary=False)
    size = model.stat().st_size
    file = {"path": str(model), "name": "small", "size_bytes": size // 4, **changes}
    if changes.get("path") == "other":
        file["path"] = str(other)
    judge = Judge(read_model(model), str(model))
    return judge.candidate(ModelFile(source="models", **file)).why_not  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"size_bytes": 10**9}, "larger than a quarter"),
        ({"path": "other"}, "its tokenizer is BPE"),
        ({"path": "mini:/m/small.gguf"}, "on mini alone"),
        ({"path": "/nowhere/small.gguf"}, "Cannot read"),
        ({"arch": "eagle3"}, "a head for draft-eagle3"),
        ({"thin": "thin: 0–3 of m.gguf"}, "thin: 0–3 of m.gguf"),
    ],
)
def test_why_not(tmp_path: Path, changes: dict[str, object], why: str) -> None:
    assert why in judged(tmp_path, **changes)


def test_one_of_the_same_words_and_a_quarter_of_the_size_does(tmp_path: Path) -> None:
    assert judged(tmp_path) == ""
    assert head_way("llama") == ""
