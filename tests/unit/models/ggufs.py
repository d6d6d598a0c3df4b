"""Real GGUF files for the tests, written by ``gguf.GGUFWriter``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFEndian, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES

from tests.kit.families import add_value

F32 = GGMLQuantizationType.F32
Shape = tuple[int, ...]
"""Elements per dimension in ggml's order: the row length first."""
Tensors = dict[str, tuple[Shape, GGMLQuantizationType]]

LLAMA = {
    "block_count": 3,
    "embedding_length": 64,
    "context_length": 1024,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
}
TOKENS = [f"token{index}" for index in range(32)]


def n_bytes(shape: Shape, kind: GGMLQuantizationType) -> int:
    block, block_bytes = GGML_QUANT_SIZES[kind]
    return int(np.prod(shape)) // block * block_bytes


def llama_tensors(n_layer: int = 3, *, tied: bool = False) -> Tensors:
    """Names and shapes of a small dense model."""
    tensors: Tensors = {"token_embd.weight": ((64, 32), F32)}
    for layer in range(n_layer):
        for name, shape in (
            ("attn_norm", (64,)),
            ("attn_q", (64, 64)),
            ("attn_k", (64, 32)),
            ("attn_v", (64, 32)),
            ("attn_output", (64, 64)),
            ("ffn_norm", (64,)),
            ("ffn_gate", (64, 96)),
            ("ffn_up", (64, 96)),
            ("ffn_down", (96, 64)),
        ):
            tensors[f"blk.{layer}.{name}.weight"] = (shape, F32)
    tensors["output_norm.weight"] = ((64,), F32)
    if not tied:
        tensors["output.weight"] = ((64, 32), F32)
    return tensors


def write_gguf(
    path: Path,
    params: Mapping[str, Any] | None = None,
    tensors: Tensors | None = None,
    *,
    arch: str = "llama",
    metadata: Mapping[str, Any] | None = None,
    endian: GGUFEndian = GGUFEndian.LITTLE,
    alignment: int | None = None,
    vocabulary: bool = True,
) -> Path:
    """Write a model whose weights are zero.

    Args:
        path: the file.
        params: hyperparameters, without the architecture in front; `LLAMA` if None.
        tensors: what it holds; a small llama if None.
        arch: the architecture.
        metadata: further keys, written as they are.
        endian: byte order.
        alignment: of tensor data, bytes; GGUF's default if None.
        vocabulary: whether it has a tokenizer.
    """
    writer = GGUFWriter(path, arch, endianess=endian)
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    for key, value in (LLAMA if params is None else params).items():
        add_value(writer, f"{arch}.{key}", value)
    for key, value in (metadata or {}).items():
        add_value(writer, key, value)
    if vocabulary:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(TOKENS)
        writer.add_token_scores([0.5] * len(TOKENS))
        writer.add_token_types([1] * len(TOKENS))
    for name, (shape, kind) in (
        llama_tensors() if tensors is None else tensors
    ).items():
        writer.add_tensor(name, _zeros(shape, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _zeros(shape: Shape, kind: GGMLQuantizationType) -> npt.NDArray[Any]:
    block, block_bytes = GGML_QUANT_SIZES[kind]
    rows = tuple(reversed(shape[1:]))
    if kind == F32:
        return np.zeros((*rows, shape[0]), dtype=np.float32)
    return np.zeros((*rows, shape[0] // block * block_bytes), dtype=np.uint8)


def write_split(
    folder: Path, name: str, count: int, *, wrong_number: int | None = None
) -> list[Path]:
    """The small llama in `count` parts; a part may claim to be another one."""
    tensors = list(llama_tensors().items())
    per_part = -(-len(tensors) // count)
    paths = []
    for index in range(count):
        number = index if wrong_number is None or index == 0 else wrong_number
        split = {"split.no": number, "split.count": count}
        path = folder / f"{name}-{index + 1:05d}-of-{count:05d}.gguf"
        share = dict(tensors[index * per_part : (index + 1) * per_part])
        params = LLAMA if index == 0 else {}
        write_gguf(path, params, share, metadata=split, vocabulary=index == 0)
        paths.append(path)
    return paths
