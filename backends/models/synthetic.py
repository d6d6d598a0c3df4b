"""A model of zeros that measures a device: a llama of any size in a sparse file.

Zeros take no room on a disk, and between two relays that compress they cross in no
time. A CPU multiplies them faster than other weights, which ``split.cost`` knows.
"""

from __future__ import annotations

import os
from math import prod
from pathlib import Path
from typing import NamedTuple

import psutil

from backends.split.cost import ZEROS_NAME

N_VOCAB = 320
N_CTX = 2048
N_HEAD = 16
NORMAL, CONTROL, BYTE = 1, 3, 6
"""Types of tokens, as in ``llama.h``."""


class Shape(NamedTuple):
    """The size of such a model, and the type of its matrices."""

    n_layer: int
    n_embd: int
    n_ff: int
    quant: str = "Q4_K"

    @property
    def name(self) -> str:
        return f"{self.n_layer}x{self.n_embd}x{self.n_ff}-{self.quant}"


def synthetic_model(file: Path, shape: Shape) -> None:
    """Write the model unless it is there."""
    if file.exists():
        return
    # Both take a while to import.
    import gguf
    import numpy as np

    file.parent.mkdir(parents=True, exist_ok=True)
    _remove_left(file)
    part = file.with_suffix(f".{os.getpid()}.part")
    n_layer, n_embd, n_ff, quant = shape
    writer = gguf.GGUFWriter(part, "llama")
    writer.add_name(ZEROS_NAME + shape.name)
    writer.add_block_count(n_layer)
    writer.add_context_length(N_CTX)
    writer.add_embedding_length(n_embd)
    writer.add_feed_forward_length(n_ff)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(N_HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(n_embd // N_HEAD)
    writer.add_vocab_size(N_VOCAB)
    writer.add_tokenizer_model("llama")
    # The likeliest token is the first one, as all are alike: it ends nothing.
    words = [f"▁{n}" for n in range(N_VOCAB - 258)]
    writer.add_token_list(
        [*words, "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256))]
    )
    writer.add_token_scores([-1.0] * N_VOCAB)
    writer.add_token_types([NORMAL] * len(words) + [CONTROL] * 2 + [BYTE] * 256)
    writer.add_bos_token_id(len(words))
    writer.add_eos_token_id(len(words) + 1)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")

    def add(name: str, *sizes: int) -> None:
        is_matrix = len(sizes) > 1
        type_ = gguf.GGMLQuantizationType[quant if is_matrix else "F32"]
        values, n_bytes = gguf.GGML_QUANT_SIZES[type_]
        rows = (*sizes[:-1], sizes[-1] // values * n_bytes)
        kind = np.dtype(np.uint8 if is_matrix else np.float32)
        shape = rows if is_matrix else sizes
        writer.add_tensor_info(f"{name}.weight", shape, kind, prod(rows), type_)

    add("token_embd", N_VOCAB, n_embd)
    for at in range(n_layer):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{at}.{name}", n_embd, n_embd)
        add(f"blk.{at}.ffn_gate", n_ff, n_embd)
        add(f"blk.{at}.ffn_up", n_ff, n_embd)
        add(f"blk.{at}.ffn_down", n_embd, n_ff)
        add(f"blk.{at}.attn_norm", n_embd)
        add(f"blk.{at}.ffn_norm", n_embd)
    add("output_norm", n_embd)
    add("output", N_VOCAB, n_embd)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        writer.close()
        pad = writer.data_alignment
        sizes = [part.stat().st_size, *(t.nbytes for t in writer.tensors[0].values())]
        os.truncate(part, sum(-(-size // pad) * pad for size in sizes))
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def _remove_left(file: Path) -> None:
    # Of programs that were killed while they wrote.
    for part in file.parent.glob(f"{file.stem}.*.part"):
        pid = part.suffixes[-2].removeprefix(".")
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            part.unlink(missing_ok=True)
