"""Blobs that Ollama made for its own engine, told by their headers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backends.models.layers import read_model
from backends.models.search import OWN_ARCHITECTURES
from tests.unit.models.ggufs import F32, LLAMA, Tensors, llama_tensors, write_gguf

GEMMA3 = {**LLAMA, "attention.layer_norm_rms_epsilon": 1e-6}


def caveat(
    folder: Path,
    arch: str = "llama",
    params: dict[str, Any] = LLAMA,
    **more: tuple[int, ...],
) -> str:
    """Of a small model of that architecture with some tensors more."""
    tensors: Tensors = llama_tensors()
    for name, shape in more.items():
        tensors[name.replace("__", ".")] = (shape, F32)
    return read_model(write_gguf(folder / "m", params, tensors, arch=arch)).caveat


def test_what_llama_cpp_converts_has_no_caveat(tmp_path: Path) -> None:
    assert caveat(tmp_path) == ""
    assert caveat(tmp_path, "gpt-oss") == ""
    assert caveat(tmp_path, "hy_v3") == ""
    assert caveat(tmp_path, "gemma3", GEMMA3) == ""
    sections = {**LLAMA, "rope.dimension_sections": [16, 24, 24, 0]}
    assert caveat(tmp_path, "qwen35", sections, blk__0__ssm_dt__bias=(8,)) == ""


@pytest.mark.parametrize("arch", OWN_ARCHITECTURES)
def test_an_architecture_of_ollama(tmp_path: Path, arch: str) -> None:
    said = caveat(tmp_path, arch)
    assert f"its architecture is named {arch}" in said
    if own := OWN_ARCHITECTURES[arch]:
        assert f"(llama.cpp calls it {own})" in said


def test_a_projector_among_the_tensors(tmp_path: Path) -> None:
    more = {"v__blk__0__attn_q__weight": (8, 8), "v__patch_embd__weight": (8, 8)}
    said = caveat(tmp_path, "gemma3", GEMMA3, **more)
    assert "2 vision tensors (v.…) among those of the text" in said
    assert "1 MTP tensor (mtp" in caveat(
        tmp_path, "qwen35", LLAMA, mtp__fc__weight=(8, 8)
    )


def test_keys_and_names_that_llama_cpp_refuses(tmp_path: Path) -> None:
    sections = {**LLAMA, "rope.dimension_sections": [16, 24, 24]}
    said = caveat(tmp_path, "qwen35", sections)
    assert "qwen35.rope.dimension_sections has 3 entries, not 4" in said
    assert "ssm_dt" in caveat(tmp_path, "qwen35", LLAMA, blk__0__ssm_dt=(8,))
    said = caveat(tmp_path, "gemma3")
    assert "it has no gemma3.attention.layer_norm_rms_epsilon" in said
    assert said.count(". ") == 1, "one sentence, and what to do"
