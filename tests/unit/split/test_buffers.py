"""What cache types, slots and flash attention make of a plan's memory."""

from __future__ import annotations

import msgspec
import pytest

from backends.split.buffers import (
    CACHE_TYPES,
    device_compute_bytes,
    kv_bytes,
    slot_tokens,
    stored_bytes,
)
from backends.state import FlashAttention, Layer, ModelInfo, ServerSettings

CTX = 32_768
LAYER = Layer(index=0, bytes=0, kv_bytes_per_token=1024, k_bytes_per_token=768)
MODEL = ModelInfo(
    path="m.gguf",
    arch="llama",
    n_layer=1,
    n_embd=256,
    n_vocab=1000,
    n_head=4,
    layers=(LAYER,),
)
UNFUSED = FlashAttention.OFF


def kv(**settings: object) -> int:
    server = msgspec.convert(settings, ServerSettings)
    return kv_bytes(MODEL, CTX, server)[0]


def test_k_and_v_are_stored_each_in_its_own_type() -> None:
    assert kv() == 1024 * CTX
    assert kv(cache_type_k="q8_0") == (768 * 34 // 64 + 256) * CTX
    assert kv(cache_type_v="q4_0") == (768 + 256 * 18 // 64) * CTX
    assert kv(cache_type_k="f32", cache_type_v="f32") == 2 * kv()


@pytest.mark.parametrize("name", CACHE_TYPES)
def test_blocks_are_as_gguf_has_them(name: str) -> None:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    values, n_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[name.upper()]]
    assert stored_bytes(values * 10, name) == n_bytes * 10


def test_a_type_of_another_release_is_reckoned_as_f16() -> None:
    assert kv(cache_type_k="tq9") == kv()


def test_slots_share_the_context_in_whole_pads() -> None:
    assert slot_tokens(CTX, ServerSettings(slots=4)) == CTX // 4
    assert kv(slots=4) == kv()
    # A third of 1000 tokens is 333, which takes two pads of 256.
    assert slot_tokens(1000, ServerSettings(slots=3)) == 512
    assert kv_bytes(MODEL, 1000, ServerSettings(slots=3))[0] == 1024 * 512 * 3


def test_every_slot_has_a_window_of_its_own() -> None:
    windowed = msgspec.structs.replace(LAYER, kv_window=1024)
    model = msgspec.structs.replace(MODEL, layers=(windowed,))
    cells = 1024 + 512
    assert kv_bytes(model, CTX)[0] == 1024 * cells
    assert kv_bytes(model, CTX, ServerSettings(slots=4))[0] == 1024 * cells * 4


def test_without_flash_attention_all_pairs_are_kept() -> None:
    off = device_compute_bytes(MODEL, CTX, 1, ServerSettings(flash_attention=UNFUSED))
    heads, mask = 4 * 512 * 4 * CTX, 512 * 4 * CTX
    assert 0 < off - heads - mask < 4 << 20
    shared = ServerSettings(flash_attention=UNFUSED, slots=4)
    assert device_compute_bytes(MODEL, CTX, 1, shared) < off / 3
