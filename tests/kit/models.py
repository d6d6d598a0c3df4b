"""Random but well-formed llama models, for tests that need size and no sense."""

from __future__ import annotations

import math
from pathlib import Path

import gguf
import numpy as np

N_VOCAB = 512
N_HEAD = 4
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
CONTROL, BYTE, NORMAL = 3, 6, 1
SCALE = 0.02
RUN = 512  # numbers until a repeating tensor repeats itself
# Weights are drawn from these: a third of the work of drawing each from all there are.
NUMBERS = np.random.default_rng(0).standard_normal(1 << 16, dtype=np.float32)


def write_llama(
    file: Path,
    *,
    n_layer: int,
    n_embd: int,
    n_ff: int,
    n_expert: int = 0,
    tied: bool = False,
    n_ctx: int = 2048,
    n_vocab: int = N_VOCAB,
    repeating: bool = False,
    quantized: bool = False,
    whole: bool = False,
    split: int = 0,
    n_head: int = N_HEAD,
    n_layer_nextn: int = 0,
    vision: bool = False,
) -> None:
    """Write an f16 llama of random weights with a byte-fallback tokenizer.

    ``n_expert``: each layer's FFN is so many experts, two of them used. ``tied``: the
    output reuses the token embedding. ``repeating``: each tensor repeats a short run of
    numbers, so that its bytes compress well. ``quantized``: the attention is Q8_0, and
    with ``whole`` every matrix. ``split``: several files, each of so many tensors.
    ``n_layer_nextn``: a HY V3 with so many more layers, which draft (MTP). ``vision``:
    a tensor of a projector is in the file too, as Ollama has it.
    """
    arch = "hy_v3" if n_layer_nextn else "llama"
    writer = gguf.GGUFWriter(file, arch, split_max_tensors=split)
    writer.add_name("synthetic")
    writer.add_block_count(n_layer + n_layer_nextn)
    if n_layer_nextn:
        writer.add_nextn_predict_layers(n_layer_nextn)
        writer.add_expert_feed_forward_length(n_ff)
    writer.add_context_length(n_ctx)
    writer.add_embedding_length(n_embd)
    writer.add_feed_forward_length(n_ff)
    writer.add_head_count(n_head)
    writer.add_head_count_kv(n_head)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(n_embd // n_head)
    writer.add_vocab_size(n_vocab)
    if n_expert:
        writer.add_expert_count(n_expert)
        writer.add_expert_used_count(2)
    _add_tokenizer(writer, n_vocab)
    parts = ("" if whole else ".attn_") if quantized else None
    tensors = Tensors(writer, repeating=repeating, quantized=parts)
    n_blocks = n_layer + n_layer_nextn
    tensors.embedding_scale = 1.0 if n_layer_nextn else SCALE
    _add_tensors(tensors, n_blocks, n_embd, n_ff, n_expert, n_vocab, tied=tied)
    if vision:
        tensors.add("v.patch_embd", n_embd, n_embd)
    if n_layer_nextn:
        _make_draft(tensors, n_layer, n_blocks, n_embd)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_delta_net(file: Path) -> None:
    """Write a Qwen3 Next of random weights: gated delta nets, attention and experts."""
    n_layer, n_embd, n_head, n_ff, n_expert = 4, 64, 4, 32, 4
    size, kernel, keys, values = 16, 4, 2 * 16, 4 * 16
    writer = gguf.GGUFWriter(file, "qwen3next")
    writer.add_block_count(n_layer)
    writer.add_context_length(512)
    writer.add_embedding_length(n_embd)
    writer.add_feed_forward_length(n_embd)
    writer.add_head_count(n_head)
    writer.add_head_count_kv(2)
    writer.add_key_length(2 * size)
    writer.add_value_length(2 * size)
    writer.add_rope_dimension_count(8)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_ssm_conv_kernel(kernel)
    writer.add_ssm_inner_size(values)
    writer.add_ssm_state_size(size)
    writer.add_ssm_time_step_rank(values // size)
    writer.add_ssm_group_count(keys // size)
    writer.add_expert_count(n_expert)
    writer.add_expert_used_count(2)
    writer.add_expert_feed_forward_length(n_ff)
    writer.add_expert_shared_feed_forward_length(n_ff)
    _add_tokenizer(writer, N_VOCAB)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (N_VOCAB, n_embd),
        "output": (N_VOCAB, n_embd),
    }
    mixed = 2 * keys + values
    attention: dict[str, tuple[int, ...]] = {
        "attn_q": (4 * n_head * size, n_embd),
        "attn_k": (4 * size, n_embd),
        "attn_v": (4 * size, n_embd),
        "attn_output": (n_embd, 2 * n_head * size),
        "attn_q_norm": (2 * size,),
        "attn_k_norm": (2 * size,),
    }
    delta_net: dict[str, tuple[int, ...]] = {
        "attn_qkv": (mixed, n_embd),
        "attn_gate": (values, n_embd),
        "ssm_conv1d": (mixed, kernel),
        "ssm_ba": (2 * values // size, n_embd),
        "ssm_norm": (size,),
        "ssm_out": (n_embd, values),
    }
    experts: dict[str, tuple[int, ...]] = {
        "attn_norm": (n_embd,),
        "post_attention_norm": (n_embd,),
        "ffn_gate_inp": (n_expert, n_embd),
        "ffn_gate_exps": (n_expert, n_ff, n_embd),
        "ffn_up_exps": (n_expert, n_ff, n_embd),
        "ffn_down_exps": (n_expert, n_embd, n_ff),
        "ffn_gate_inp_shexp": (n_embd,),
        "ffn_gate_shexp": (n_ff, n_embd),
        "ffn_up_shexp": (n_ff, n_embd),
        "ffn_down_shexp": (n_embd, n_ff),
    }
    shapes["output_norm"] = (n_embd,)
    for layer in range(n_layer):
        own = attention if layer == n_layer - 1 else delta_net
        shapes |= {f"blk.{layer}.{name}": own[name] for name in own}
        shapes |= {f"blk.{layer}.{name}": experts[name] for name in experts}
    tensors = {f"{name}.weight": shapes[name] for name in shapes}
    for layer in range(n_layer - 1):
        for name in ("ssm_dt.bias", "ssm_a"):
            tensors[f"blk.{layer}.{name}"] = (values // size,)
    drawn = np.random.default_rng(0)
    for name, shape in tensors.items():
        numbers = drawn.standard_normal(shape, dtype=np.float32) * SCALE
        writer.add_tensor(name, -abs(numbers) if "ssm_a" in name else numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: gguf.GGUFWriter, n_vocab: int) -> None:
    special = ["<unk>", "<s>", "</s>"]
    words = [f"word{i}" for i in range(n_vocab - len(special) - len(BYTE_TOKENS))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*special, *BYTE_TOKENS, *words])
    writer.add_token_scores([-1.0] * n_vocab)
    writer.add_token_types(
        [CONTROL] * len(special) + [BYTE] * len(BYTE_TOKENS) + [NORMAL] * len(words)
    )
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")


class Tensors:
    """Makes up weights, the same ones every time, and adds them to a file.

    ``quantized`` is in the names of the matrices that are Q8_0.
    """

    def __init__(
        self, writer: gguf.GGUFWriter, *, repeating: bool, quantized: str | None
    ) -> None:
        self._writer = writer
        self._repeating = repeating
        self._quantized = quantized
        self._random = np.random.default_rng(0)
        self.embedding_scale = SCALE
        """The larger, the less blocks change of what they are given."""

    def add(self, name: str, *shape: int) -> None:
        scale = self.embedding_scale if name == "token_embd" else SCALE
        numbers = (NUMBERS * scale).astype(np.float16)
        count = RUN if self._repeating else math.prod(shape)
        drawn = numbers[np.frombuffer(self._random.bytes(2 * count), np.uint16)]
        weights = np.resize(drawn, shape) if self._repeating else drawn.reshape(shape)
        if self._quantized is not None and self._quantized in name:
            q8_0 = gguf.GGMLQuantizationType.Q8_0
            quants = gguf.quants.quantize(weights.astype(np.float32), q8_0)
            self._writer.add_tensor(f"{name}.weight", quants, raw_dtype=q8_0)
        else:
            self._writer.add_tensor(f"{name}.weight", weights)

    def add_norm(self, name: str, count: int) -> None:
        self._writer.add_tensor(f"{name}.weight", np.ones(count, np.float32))

    def add_first_half(self, name: str, count: int) -> None:
        weights = np.eye(count, 2 * count, dtype=np.float16)
        self._writer.add_tensor(f"{name}.weight", weights)


def _add_tensors(
    tensors: Tensors,
    n_layer: int,
    n_embd: int,
    n_ff: int,
    n_expert: int,
    n_vocab: int,
    *,
    tied: bool,
) -> None:
    add = tensors.add
    add("token_embd", n_vocab, n_embd)
    for layer in range(n_layer):
        block = f"blk.{layer}."
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(block + part, n_embd, n_embd)
        experts = (n_expert,) if n_expert else ()
        each = "_exps" if n_expert else ""
        if n_expert:
            add(block + "ffn_gate_inp", n_expert, n_embd)
        add(block + f"ffn_gate{each}", *experts, n_ff, n_embd)
        add(block + f"ffn_up{each}", *experts, n_ff, n_embd)
        add(block + f"ffn_down{each}", *experts, n_embd, n_ff)
        tensors.add_norm(block + "attn_norm", n_embd)
        tensors.add_norm(block + "ffn_norm", n_embd)
    tensors.add_norm("output_norm", n_embd)
    if not tied:
        add("output", n_vocab, n_embd)


def _make_draft(tensors: Tensors, n_layer: int, n_blocks: int, n_embd: int) -> None:
    """Have the last blocks go on from the newest token alone.

    The others nearly do, because its embedding outweighs what blocks change.
    """
    for index in range(n_blocks):
        for part in ("attn_q_norm", "attn_k_norm"):
            tensors.add_norm(f"blk.{index}.{part}", n_embd // N_HEAD)
    for index in range(n_layer, n_blocks):
        block = f"blk.{index}.nextn."
        tensors.add_first_half(f"{block}eh_proj", n_embd)
        tensors.add_norm(f"{block}enorm", n_embd)
        tensors.add_norm(f"{block}hnorm", n_embd)
