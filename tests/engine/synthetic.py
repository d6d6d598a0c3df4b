"""Random but well-formed llama models, for tests that need size and no sense."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gguf
import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

N_VOCAB = 512
N_HEAD = 4
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
CONTROL, BYTE, NORMAL = 3, 6, 1


def write_llama(file: Path, *, n_layer: int, n_embd: int, n_ff: int) -> None:
    """Write an f16 llama of random weights with a byte-fallback tokenizer."""
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_name("synthetic")
    writer.add_block_count(n_layer)
    writer.add_context_length(2048)
    writer.add_embedding_length(n_embd)
    writer.add_feed_forward_length(n_ff)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(N_HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(n_embd // N_HEAD)
    writer.add_vocab_size(N_VOCAB)
    _add_tokenizer(writer)
    _add_tensors(writer, n_layer, n_embd, n_ff)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    special = ["<unk>", "<s>", "</s>"]
    words = [f"word{i}" for i in range(N_VOCAB - len(special) - len(BYTE_TOKENS))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*special, *BYTE_TOKENS, *words])
    writer.add_token_scores([-1.0] * N_VOCAB)
    writer.add_token_types(
        [CONTROL] * len(special) + [BYTE] * len(BYTE_TOKENS) + [NORMAL] * len(words)
    )
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")


def _add_tensors(writer: gguf.GGUFWriter, n_layer: int, n_embd: int, n_ff: int) -> None:
    random = np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        weights = random.standard_normal(shape, dtype=np.float32) * 0.02
        writer.add_tensor(f"{name}.weight", weights.astype(np.float16))

    def add_norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(n_embd, np.float32))

    add("token_embd", N_VOCAB, n_embd)
    for layer in range(n_layer):
        block = f"blk.{layer}."
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(block + part, n_embd, n_embd)
        add(block + "ffn_gate", n_ff, n_embd)
        add(block + "ffn_up", n_ff, n_embd)
        add(block + "ffn_down", n_embd, n_ff)
        add_norm(block + "attn_norm")
        add_norm(block + "ffn_norm")
    add_norm("output_norm")
    add("output", N_VOCAB, n_embd)
