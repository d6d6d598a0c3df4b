"""Settings and further arguments of llama-server that are refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backends.errors import PlanError
from backends.server_settings import (
    check_context,
    check_server,
    checked_arguments,
    pipelines,
    settings_apart,
)
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


def checked(*arguments: str, head: str = "local", directory: str = "/home/ada") -> str:
    return " ".join(checked_arguments(arguments, head=head, directory=directory))


@pytest.mark.parametrize(
    ("argument", "instead"),
    [
        ("--port", "--port, api_port"),
        ("--port=8123", "--port, api_port"),
        ("-c", "--context"),
        ("--ctx-size", "--context"),
        ("--tensor_split=1,1", "--split"),
        ("--n_gpu_layers", "--split"),
        ("-m", "--model"),
        ("--rpc", "--peer"),
        ("-ngl", "--split"),
        ("-ts", "--split"),
        ("--device", "--exclude"),
        ("-fit", "--split"),
        ("--host", "loopback"),
    ],
)
def test_what_the_plan_decides_is_refused(argument: str, instead: str) -> None:
    with pytest.raises(PlanError) as refused:
        checked("--temp", "0.2", argument, "8123")
    # llama-server takes underscores for dashes.
    assert argument.partition("=")[0].replace("_", "-") in refused.value.what
    assert instead in refused.value.hint


def test_other_arguments_pass_as_they_are() -> None:
    line = "--temp 0.2 -np 4 --spec-type draft-simple -ot blk.2=CPU --alias m/x"
    assert checked(*line.split()) == line


@pytest.mark.parametrize(
    ("given", "whole"),
    [
        ("-md draft.gguf", "-md /home/ada/draft.gguf"),
        ("-md ../draft.gguf", "-md /home/draft.gguf"),
        ("-md /m/draft.gguf", "-md /m/draft.gguf"),
        ("--lora a.gguf,/b.gguf", "--lora /home/ada/a.gguf,/b.gguf"),
        ("--lora-scaled a.gguf:0.5", "--lora-scaled /home/ada/a.gguf:0.5"),
        ("--chat-template-file t.jinja", "--chat-template-file /home/ada/t.jinja"),
        ("--api-key-file keys", "--api-key-file /home/ada/keys"),
    ],
)
def test_paths_count_from_the_persons_directory(given: str, whole: str) -> None:
    assert checked(*given.split()) == whole


def test_a_path_for_another_machine_must_be_whole() -> None:
    assert checked("-md", "/m/d.gguf", head="north") == "-md /m/d.gguf"
    with pytest.raises(PlanError, match=r"-md d\.gguf is not a whole path.*on north"):
        checked("-md", "d.gguf", head="north")


def test_an_option_without_its_value_is_llama_servers_to_refuse() -> None:
    assert checked("-md") == "-md"


def test_a_plans_settings_in_llama_servers_words_become_settings() -> None:
    line = "--temp 0.2 -np 4 -ctk q8_0 --cache-type-v q4_0 -fa on -t 3 --alias m"
    server, rest = settings_apart(line.split(), ServerSettings(slots=2))
    assert server == ServerSettings(
        cache_type_k="q8_0",
        cache_type_v="q4_0",
        slots=4,
        flash_attention=FlashAttention.ON,
        threads=3,
    )
    assert rest == ("--temp", "0.2", "--alias", "m")


def test_settings_are_known_in_every_spelling() -> None:
    server, rest = settings_apart(
        ["--cache_type_k", "q8_0", "-fa", "0", "--chat-template-kwargs", '{"a_b": 1}'],
        ServerSettings(),
    )
    assert server.cache_type_k == "q8_0"
    assert server.flash_attention is FlashAttention.OFF
    assert rest == ("--chat-template-kwargs", '{"a_b": 1}')


@pytest.mark.parametrize("line", ["-np -1", "-np", "-fa --temp 1", "-t many"])
def test_what_is_no_such_value_is_llama_servers_to_judge(line: str) -> None:
    given = tuple(line.split())
    assert settings_apart(given, ServerSettings()) == (ServerSettings(), given)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", True),
        ("-nkvo", False),
        ("--no-kv-offload -kvo", True),
        ("-kvo --no_kv_offload", False),
        ("-ncmoe 0 --n-cpu-ffn 0", True),
        ("-ncmoe 0 --n-cpu-ffn 1", False),
        ("-cmoe", False),
        ("-sm layer", True),
        ("-sm layer -sm row", False),
        ("-ot exps=CPU", False),
        ("--override_tensor exps=CPU", False),
    ],
)
def test_what_keeps_llama_cpp_from_pipelining(line: str, expected: bool) -> None:
    assert pipelines(line.split()) is expected
