"""Which models speak the same words, by the rules of llama-server."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from backends.demo import MODEL_PATH
from backends.errors import ModelError
from backends.speculation.vocabulary import read_vocabulary, why_not
from tests.unit.models.ggufs import write_gguf

WORDS = [f"word{index}" for index in range(300)]
BPE = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2"}
LLAMA3 = {**BPE, "tokenizer.ggml.pre": "llama-bpe"}
SPM = {"tokenizer.ggml.model": "llama"}


def compared(
    folder: Path,
    model: dict[str, Any],
    draft: dict[str, Any],
    words: Sequence[str] = WORDS,
) -> str:
    """Why a draft with these keys and words cannot draft for a model."""
    found = []
    for name, keys, tokens in (("model", model, WORDS), ("draft", draft, words)):
        file = folder / f"{name}.gguf"
        metadata = {**keys, "tokenizer.ggml.tokens": list(tokens)}
        write_gguf(file, metadata=metadata, vocabulary=False)
        found.append(read_vocabulary(file))
    return why_not(*found)


def test_the_same_words_do(tmp_path: Path) -> None:
    assert compared(tmp_path, BPE, BPE) == ""
    assert why_not(*[read_vocabulary(MODEL_PATH)] * 2) == ""


def test_the_first_five_and_a_few_at_the_end_may_differ(tmp_path: Path) -> None:
    renamed = [*(f"other{i}" for i in range(5)), *WORDS[5:]]
    assert compared(tmp_path, BPE, BPE, renamed) == ""
    assert (
        compared(tmp_path, BPE, BPE, [*WORDS, *(f"new{i}" for i in range(128))]) == ""
    )
    assert compared(tmp_path, BPE, BPE, WORDS[:172]) == ""
    more = [*WORDS, *(f"new{i}" for i in range(129))]
    assert "it has 429 tokens, the model 300" in compared(tmp_path, BPE, BPE, more)


@pytest.mark.parametrize("index", [5, 150, 299])
def test_one_other_word_is_named(tmp_path: Path, index: int) -> None:
    words = [*WORDS]
    words[index] = "\x1b[2Jnew"
    why = compared(tmp_path, BPE, BPE, words)
    assert f"its token {index} is “�[2Jnew”, the model's “word{index}”" in why


@pytest.mark.parametrize(
    ("model", "draft", "why"),
    [
        (BPE, SPM, "its tokenizer is SPM, the model's BPE"),
        (BPE, LLAMA3, "texts begin with token 11, the model's no token"),
        (LLAMA3, LLAMA3, ""),
        (LLAMA3, {**LLAMA3, "tokenizer.ggml.bos_token_id": 7}, "begin with token 7"),
        # What is not put around a text may be anything.
        (BPE, {**BPE, "tokenizer.ggml.bos_token_id": 7}, ""),
        (BPE, {**BPE, "tokenizer.ggml.eos_token_id": 7}, ""),
        (LLAMA3, {**LLAMA3, "tokenizer.ggml.add_bos_token": False}, "with no token"),
        (BPE, {**BPE, "tokenizer.ggml.add_eos_token": True}, "texts end with token 11"),
        # An id beyond the vocabulary does not count.
        (LLAMA3, {**LLAMA3, "tokenizer.ggml.bos_token_id": 5000}, ""),
        (SPM, SPM, ""),
        (SPM, {**SPM, "tokenizer.ggml.add_bos_token": False}, "with no token"),
        ({"tokenizer.ggml.model": "new"}, {"tokenizer.ggml.model": "new"}, ""),
    ],
)
def test_what_stands_around_a_text_counts(
    tmp_path: Path, model: dict[str, Any], draft: dict[str, Any], why: str
) -> None:
    found = compared(tmp_path, model, draft)
    assert why in found
    assert bool(found) == bool(why)


def test_a_file_cut_short_within_its_words_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "cut.gguf"
    file.write_bytes(MODEL_PATH.read_bytes()[:4000])
    with pytest.raises(ModelError, match="truncated"):
        read_vocabulary(file)


def test_a_vocabulary_too_large_to_be_one_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "hostile.gguf"
    tokens = b"tokenizer.ggml.tokens"
    named = struct.pack("<Q", len(tokens)) + tokens
    for count, length, why in (
        (1 << 30, 0, "claims 1073741824 strings"),
        (1, 1 << 31, "has a string of 2147483648 bytes"),
    ):
        array = struct.pack("<IIQQ", 9, 8, count, length)
        file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + named + array)
        os.truncate(file, 1 << 34)
        with pytest.raises(ModelError, match=why):
            read_vocabulary(file)
