"""Settings of llama-server that cannot be meant, and the words they are refused in."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backends.errors import PlanError
from backends.server_settings import check_context, check_server
from backends.state import FlashAttention, ModelInfo, ServerSettings

MODEL = ModelInfo(
    path="m.gguf",
    arch="llama",
    n_layer=1,
    n_embd=192,
    n_vocab=1000,
    n_head=3,
    n_head_kv=1,
    n_ctx_train=1024,
    k_head_lengths=(64,),
    v_head_lengths=(96,),
)


def check(**settings: Any) -> None:
    check_server(ServerSettings(**settings), 4096, MODEL)


@pytest.mark.parametrize(
    ("settings", "what", "hint"),
    [
        ({"slots": 0}, "0 slots", "1 to 256"),
        ({"slots": 257}, "257 slots", "1 to 256"),
        ({"slots": 256}, None, ""),
        ({"threads": 0}, "0 threads", "1 to 1024"),
        ({"cache_type_k": "q8"}, "no KV cache type q8", "q8_0"),
        ({"cache_type_k": "q8_0", "cache_type_v": "q5_1"}, None, ""),
        (
            {"cache_type_v": "q4_0", "flash_attention": FlashAttention.OFF},
            "without flash attention",
            "--cache-type-v f16",
        ),
        ({"cache_type_k": "q4_0", "flash_attention": FlashAttention.OFF}, None, ""),
    ],
)
def test_what_llama_cpp_refuses_is_refused_first(
    settings: dict[str, Any], what: str | None, hint: str
) -> None:
    if what is None:
        check(**settings)
        return
    with pytest.raises(PlanError) as refused:
        check(**settings)
    assert what in refused.value.what
    assert hint in refused.value.hint


def test_heads_must_be_whole_blocks() -> None:
    model = msgspec.structs.replace(MODEL, k_head_lengths=(40, 64))
    with pytest.raises(PlanError, match="heads have 40 values, no multiple of 32"):
        check_server(ServerSettings(cache_type_k="q8_0"), 4096, model)
    check_server(ServerSettings(cache_type_k="bf16"), 4096, model)


def test_compressed_attention_has_one_type_for_both() -> None:
    model = msgspec.structs.replace(MODEL, one_cache_type=True)
    with pytest.raises(PlanError, match="K cannot be stored as q8_0 and V as f16"):
        check_server(ServerSettings(cache_type_k="q8_0"), 4096, model)
    both = ServerSettings(cache_type_k="q8_0", cache_type_v="q8_0")
    check_server(both, 4096, model)


def test_slots_need_some_context_each() -> None:
    with pytest.raises(PlanError, match="too small for 8 slots") as refused:
        check_server(ServerSettings(slots=8), 100, MODEL)
    assert "128 tokens" in refused.value.hint


def test_a_context_has_a_least_and_a_most() -> None:
    check_context(8 * 1024, MODEL)
    with pytest.raises(PlanError, match="trained for 1024"):
        check_context(8 * 1024 + 1, MODEL)
    with pytest.raises(PlanError, match="too small"):
        check_context(15, MODEL)
