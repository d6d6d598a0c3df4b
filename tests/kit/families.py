"""Headers of models as they are published, of many architectures, without weights.

A file has its whole length and is a hole behind the header. llama.cpp tells from that
what a load would take; nothing can be computed with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf.constants import GGML_QUANT_SIZES

Shape = tuple[int, ...]
"""The row length first, as llama.cpp has it."""
Value = int | float | bool | str | list[int]
_Parts = Iterator[tuple[str, Shape]]


class Family(NamedTuple):
    arch: str
    like: str
    """A published model of these shapes."""
    params: Mapping[str, Value]
    tensors: Mapping[str, Shape]


def write_header(family: Family, file: Path) -> Path:
    writer = gguf.GGUFWriter(file, family.arch)
    writer.add_name(family.like)
    for key, value in family.params.items():
        add_value(writer, f"{family.arch}.{key}", value)
    writer.add_tokenizer_model("none")
    n_bytes = 0
    for name, shape in family.tensors.items():
        kind = _kind(name, shape)
        block, block_bytes = GGML_QUANT_SIZES[kind]
        size = int(np.prod(shape)) // block * block_bytes
        numbers = np.dtype(np.float32)
        rows = list(reversed(shape))
        writer.add_tensor_info(name, rows, numbers, size, raw_dtype=kind)
        n_bytes += gguf.GGUFWriter.ggml_pad(size, writer.data_alignment)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with file.open("ab") as out:
        begin = gguf.GGUFWriter.ggml_pad(out.tell(), writer.data_alignment)
        out.truncate(begin + n_bytes)
    return file


def add_value(writer: gguf.GGUFWriter, key: str, value: Value) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _kind(name: str, shape: Shape) -> Kind:
    """As quantised files have it: small tensors stay whole, matrices become Q4_K."""
    whole = ("norm", "gate_inp", "conv1d", "ssm_a", "ssm_d", "time_mix_lerp", ".bias")
    if len(shape) < 2 or any(part in name for part in whole):
        return Kind.F32
    if "_exps" in name and shape[0] % 256:
        return Kind.MXFP4
    if shape[0] % 256 == 0:
        return Kind.Q4_K
    return Kind.Q8_0 if shape[0] % 32 == 0 else Kind.F16


def _model(
    n_layer: int,
    n_embd: int,
    n_vocab: int,
    block: Callable[[int], _Parts],
    *,
    tied: bool = False,
    further: Mapping[str, Shape] | None = None,
) -> dict[str, Shape]:
    found: dict[str, Shape] = {"token_embd.weight": (n_embd, n_vocab)}
    for layer in range(n_layer):
        found |= {f"blk.{layer}.{name}": shape for name, shape in block(layer)}
    found["output_norm.weight"] = (n_embd,)
    if not tied:
        found["output.weight"] = (n_embd, n_vocab)
    return found | dict(further or {})


def _attention(
    n_embd: int, heads: int, heads_kv: int, size: int, *, biased: bool = False
) -> _Parts:
    yield "attn_norm.weight", (n_embd,)
    widths = {"q": heads * size, "k": heads_kv * size, "v": heads_kv * size}
    for name, width in widths.items():
        yield f"attn_{name}.weight", (n_embd, width)
        if biased:
            yield f"attn_{name}.bias", (width,)
    yield "attn_output.weight", (heads * size, n_embd)


def _dense(n_embd: int, n_ff: int) -> _Parts:
    yield "ffn_norm.weight", (n_embd,)
    yield "ffn_gate.weight", (n_embd, n_ff)
    yield "ffn_up.weight", (n_embd, n_ff)
    yield "ffn_down.weight", (n_ff, n_embd)


def _experts(n_embd: int, n_ff: int, count: int, norm: str = "ffn_norm") -> _Parts:
    yield f"{norm}.weight", (n_embd,)
    yield "ffn_gate_inp.weight", (n_embd, count)
    yield "ffn_gate_exps.weight", (n_embd, n_ff, count)
    yield "ffn_up_exps.weight", (n_embd, n_ff, count)
    yield "ffn_down_exps.weight", (n_ff, n_embd, count)


def _shared(n_embd: int, n_ff: int) -> _Parts:
    yield "ffn_gate_shexp.weight", (n_embd, n_ff)
    yield "ffn_up_shexp.weight", (n_embd, n_ff)
    yield "ffn_down_shexp.weight", (n_ff, n_embd)


def _norms(size: int, *names: str) -> _Parts:
    for name in names:
        yield f"{name}.weight", (size,)


def _params(
    n_layer: int,
    n_embd: int,
    n_vocab: int,
    n_ff: int,
    heads: int,
    heads_kv: int,
    size: int = 0,
    **further: Value,
) -> dict[str, Value]:
    found: dict[str, Value] = {
        "block_count": n_layer,
        "context_length": 131_072,
        "embedding_length": n_embd,
        "vocab_size": n_vocab,
        "feed_forward_length": n_ff,
        "attention.head_count": heads,
        "attention.head_count_kv": heads_kv,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.layer_norm_epsilon": 1e-6,
    }
    if size:
        found["attention.key_length"] = found["attention.value_length"] = size
        found["rope.dimension_count"] = size
    return found | {key.replace("__", "."): value for key, value in further.items()}


def _llama() -> Family:
    def block(_layer: int) -> _Parts:
        yield from _attention(4096, 32, 8, 128)
        yield from _dense(4096, 14_336)

    params = _params(32, 4096, 128_256, 14_336, 32, 8, 128)
    return Family("llama", "Llama 3.1 8B", params, _model(32, 4096, 128_256, block))


def _mixtral() -> Family:
    def block(_layer: int) -> _Parts:
        yield from _attention(4096, 32, 8, 128)
        yield from _experts(4096, 14_336, 8)

    params = _params(
        *(32, 4096, 32_000, 14_336, 32, 8, 128), expert_count=8, expert_used_count=2
    )
    return Family("llama", "Mixtral 8x7B", params, _model(32, 4096, 32_000, block))


def _qwen2() -> Family:
    def block(_layer: int) -> _Parts:
        yield from _attention(3584, 28, 4, 128, biased=True)
        yield from _dense(3584, 18_944)

    params = _params(28, 3584, 152_064, 18_944, 28, 4)
    return Family("qwen2", "Qwen2.5 7B", params, _model(28, 3584, 152_064, block))


def _qwen3() -> Family:
    def block(_layer: int) -> _Parts:
        yield from _attention(4096, 32, 8, 128)
        yield from _norms(128, "attn_q_norm", "attn_k_norm")
        yield from _dense(4096, 12_288)

    params = _params(36, 4096, 151_936, 12_288, 32, 8, 128)
    return Family("qwen3", "Qwen3 8B", params, _model(36, 4096, 151_936, block))


def _qwen3moe() -> Family:
    def block(_layer: int) -> _Parts:
        yield from _attention(2048, 32, 4, 128)
        yield from _norms(128, "attn_q_norm", "attn_k_norm")
        yield from _experts(2048, 768, 128)

    params = _params(
        *(48, 2048, 151_936, 6144, 32, 4, 128),
        expert_count=128,
        expert_used_count=8,
        expert_feed_forward_length=768,
    )
    tensors = _model(48, 2048, 151_936, block)
    return Family("qwen3moe", "Qwen3 30B A3B", params, tensors)


def _qwen3next() -> Family:
    state, groups, values = 128, 16, 32
    mixed = 2 * groups * state + values * state

    def block(layer: int) -> _Parts:
        if layer % 4 == 3:
            yield "attn_norm.weight", (2048,)
            yield "attn_q.weight", (2048, 2 * 16 * 256)
            yield "attn_k.weight", (2048, 2 * 256)
            yield "attn_v.weight", (2048, 2 * 256)
            yield "attn_output.weight", (16 * 256, 2048)
            yield from _norms(256, "attn_q_norm", "attn_k_norm")
        else:
            yield "attn_norm.weight", (2048,)
            yield "attn_qkv.weight", (2048, mixed)
            yield "attn_gate.weight", (2048, values * state)
            yield "ssm_conv1d.weight", (4, mixed)
            yield "ssm_dt.bias", (values,)
            yield "ssm_a", (values,)
            yield "ssm_ba.weight", (2048, 2 * values)
            yield "ssm_norm.weight", (state,)
            yield "ssm_out.weight", (values * state, 2048)
        yield from _experts(2048, 512, 512, "post_attention_norm")
        yield "ffn_gate_inp_shexp.weight", (2048,)
        yield from _shared(2048, 512)

    params = _params(
        *(48, 2048, 151_936, 5120, 16, 2, 256),
        ssm__conv_kernel=4,
        ssm__inner_size=values * state,
        ssm__state_size=state,
        ssm__time_step_rank=values,
        ssm__group_count=groups,
        expert_count=512,
        expert_used_count=10,
        expert_feed_forward_length=512,
        expert_shared_feed_forward_length=512,
    )
    params["rope.dimension_count"] = 64
    tensors = _model(48, 2048, 151_936, block)
    return Family("qwen3next", "Qwen3 Next 80B A3B", params, tensors)


def _gemma(
    arch: str, like: str, n_layer: int, n_embd: int, n_ff: int, heads: int, window: int
) -> Family:
    def block(_layer: int) -> _Parts:
        yield from _attention(n_embd, heads, heads // 2, 256)
        if arch == "gemma3":
            yield from _norms(256, "attn_q_norm", "attn_k_norm")
        yield from _norms(n_embd, "post_attention_norm", "post_ffw_norm")
        yield from _dense(n_embd, n_ff)

    n_vocab = 256_000 if arch == "gemma2" else 262_144
    params = _params(
        *(n_layer, n_embd, n_vocab, n_ff, heads, heads // 2, 256),
        attention__sliding_window=window,
    )
    tensors = _model(n_layer, n_embd, n_vocab, block, tied=True)
    return Family(arch, like, params, tensors)


def _phi3() -> Family:
    def block(_layer: int) -> _Parts:
        yield "attn_norm.weight", (3072,)
        yield "attn_qkv.weight", (3072, 3 * 3072)
        yield "attn_output.weight", (3072, 3072)
        yield "ffn_norm.weight", (3072,)
        yield "ffn_up.weight", (3072, 2 * 8192)
        yield "ffn_down.weight", (8192, 3072)

    params = _params(
        *(32, 3072, 32_064, 8192, 32, 32),
        rope__dimension_count=96,
        rope__scaling__original_context_length=4096,
    )
    tensors = _model(32, 3072, 32_064, block)
    return Family("phi3", "Phi 3 mini", params, tensors)


def _deepseek2() -> Family:
    rank, rope, nope, heads = 512, 64, 128, 16

    def block(layer: int) -> _Parts:
        yield "attn_norm.weight", (2048,)
        yield "attn_q.weight", (2048, heads * (nope + rope))
        yield "attn_kv_a_mqa.weight", (2048, rank + rope)
        yield "attn_kv_a_norm.weight", (rank,)
        yield "attn_k_b.weight", (nope, rank, heads)
        yield "attn_v_b.weight", (rank, nope, heads)
        yield "attn_output.weight", (heads * nope, 2048)
        if layer == 0:
            yield from _dense(2048, 10_944)
        else:
            yield from _experts(2048, 1408, 64)
            yield from _shared(2048, 2 * 1408)

    params = _params(
        *(27, 2048, 102_400, 10_944, heads, 1),
        attention__key_length=rank + rope,
        attention__value_length=rank,
        attention__key_length_mla=nope + rope,
        attention__value_length_mla=nope,
        attention__kv_lora_rank=rank,
        rope__dimension_count=rope,
        leading_dense_block_count=1,
        expert_count=64,
        expert_used_count=6,
        expert_shared_count=2,
        expert_feed_forward_length=1408,
        expert_weights_scale=1.0,
        expert_gating_func=1,
    )
    tensors = _model(27, 2048, 102_400, block)
    return Family("deepseek2", "DeepSeek V2 Lite", params, tensors)


def _gpt_oss() -> Family:
    n_embd, heads, heads_kv, size, count = 2880, 64, 8, 64, 32

    def block(_layer: int) -> _Parts:
        yield from _attention(n_embd, heads, heads_kv, size, biased=True)
        yield "attn_output.bias", (n_embd,)
        yield "attn_sinks.weight", (heads,)
        yield from _experts(n_embd, n_embd, count, "post_attention_norm")
        yield "ffn_gate_inp.bias", (count,)
        yield "ffn_gate_exps.bias", (n_embd, count)
        yield "ffn_up_exps.bias", (n_embd, count)
        yield "ffn_down_exps.bias", (n_embd, count)

    params = _params(
        *(24, n_embd, 201_088, n_embd, heads, heads_kv, size),
        attention__sliding_window=128,
        expert_count=count,
        expert_used_count=4,
        expert_feed_forward_length=n_embd,
    )
    tensors = _model(24, n_embd, 201_088, block)
    return Family("gpt-oss", "gpt-oss 20B", params, tensors)


def _mamba() -> Family:
    inner, state, rank = 5120, 16, 160

    def block(_layer: int) -> _Parts:
        yield "attn_norm.weight", (2560,)
        yield "ssm_in.weight", (2560, 2 * inner)
        yield "ssm_conv1d.weight", (4, inner)
        yield "ssm_conv1d.bias", (inner,)
        yield "ssm_x.weight", (inner, rank + 2 * state)
        yield "ssm_dt.weight", (rank, inner)
        yield "ssm_dt.bias", (inner,)
        yield "ssm_a", (state, inner)
        yield "ssm_d", (inner,)
        yield "ssm_out.weight", (inner, 2560)

    params = _params(
        *(64, 2560, 50_280, 0, 0, 0),
        ssm__conv_kernel=4,
        ssm__inner_size=inner,
        ssm__state_size=state,
        ssm__time_step_rank=rank,
    )
    tensors = _model(64, 2560, 50_280, block, tied=True)
    return Family("mamba", "Mamba 2.8B", params, tensors)


def _rwkv6() -> Family:
    n_embd, n_ff, rank, decay = 2048, 7168, 32, 64

    def block(layer: int) -> _Parts:
        for norm in ("attn_norm", "attn_norm_2"):
            yield f"{norm}.weight", (n_embd,)
            yield f"{norm}.bias", (n_embd,)
        yield "time_mix_w1.weight", (n_embd, 5 * rank)
        yield "time_mix_w2.weight", (rank, n_embd, 5)
        yield "time_mix_lerp_x.weight", (n_embd, 1, 1)
        for name in "wkvrg":
            yield f"time_mix_lerp_{name}.weight", (n_embd, 1, 1)
        yield "time_mix_first.weight", (64, n_embd // 64)
        yield "time_mix_decay.weight", (n_embd,)
        yield "time_mix_decay_w1.weight", (n_embd, decay)
        yield "time_mix_decay_w2.weight", (decay, n_embd)
        for name in ("key", "value", "receptance", "gate", "output"):
            yield f"time_mix_{name}.weight", (n_embd, n_embd)
        yield "time_mix_ln.weight", (n_embd,)
        yield "time_mix_ln.bias", (n_embd,)
        yield "channel_mix_lerp_k.weight", (n_embd, 1, 1)
        yield "channel_mix_lerp_r.weight", (n_embd, 1, 1)
        yield "channel_mix_key.weight", (n_embd, n_ff)
        yield "channel_mix_value.weight", (n_ff, n_embd)
        yield "channel_mix_receptance.weight", (n_embd, n_embd)

    params = _params(
        *(24, n_embd, 65_536, n_ff, 0, 0),
        wkv__head_size=64,
        time_mix_extra_dim=rank,
        time_decay_extra_dim=decay,
        rescale_every_n_layers=6,
    )
    further: dict[str, Shape] = {
        "token_embd_norm.weight": (n_embd,),
        "token_embd_norm.bias": (n_embd,),
        "output_norm.bias": (n_embd,),
    }
    tensors = _model(24, n_embd, 65_536, block, further=further)
    return Family("rwkv6", "RWKV 6 1.6B", params, tensors)


def _falcon_h1() -> Family:
    n_embd, n_ff, inner, state, heads = 2048, 4096, 3072, 256, 48

    def block(_layer: int) -> _Parts:
        yield from _attention(n_embd, 8, 2, 128)
        yield "ssm_in.weight", (n_embd, 2 * inner + 2 * state + heads)
        yield "ssm_conv1d.weight", (4, inner + 2 * state)
        yield "ssm_conv1d.bias", (inner + 2 * state,)
        yield "ssm_dt.bias", (heads,)
        yield "ssm_a", (1, heads)
        yield "ssm_d", (1, heads)
        yield "ssm_out.weight", (inner, n_embd)
        # llama.cpp wants this name without an ending.
        parts = dict(_dense(n_embd, n_ff))
        parts["ffn_norm"] = parts.pop("ffn_norm.weight")
        yield from parts.items()

    params = _params(
        *(24, n_embd, 65_537, n_ff, 8, 2, 128),
        ssm__conv_kernel=4,
        ssm__inner_size=inner,
        ssm__state_size=state,
        ssm__time_step_rank=heads,
        ssm__group_count=1,
    )
    tensors = _model(24, n_embd, 65_537, block)
    return Family("falcon-h1", "Falcon H1 1.5B", params, tensors)


FAMILIES = {
    family.like: family
    for family in (
        _llama(),
        _mixtral(),
        _qwen2(),
        _qwen3(),
        _qwen3moe(),
        _qwen3next(),
        _gemma("gemma2", "Gemma 2 9B", 42, 3584, 14_336, 16, 4096),
        _gemma("gemma3", "Gemma 3 4B", 34, 2560, 10_240, 8, 1024),
        _phi3(),
        _deepseek2(),
        _gpt_oss(),
        _mamba(),
        _rwkv6(),
        _falcon_h1(),
    )
}
"""By the name of a published model of these shapes."""
