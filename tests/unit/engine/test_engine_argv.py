"""Command lines: what llama.cpp's programs are started with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backends.engine.argv import (
    LAYERS_VERBOSITY,
    PROMPT_CACHE_MIB,
    cpu_has_amx,
    server_argv,
    worker_argv,
)
from backends.engine.ask import TRACES, parse_flags
from backends.state import EngineInfo, EngineSource, FlashAttention, ServerSettings

DATA = Path(__file__).parent / "data"
HERE = EngineInfo(
    directory="/e",
    server_path="/e/llama-server",
    worker_path="/e/ggml-rpc-server",
    source=EngineSource.CACHE,
)
KNOWN = frozenset(
    (
        *("-fit", "-lv", TRACES, "--slots", "--metrics", "--no-ui", "--no-webui"),
        *("--no-repack", "--rpc"),
    )
)


def argv(flags: frozenset[str] = KNOWN, **changes: Any) -> tuple[str, ...]:
    """A command line for two workers, with changes."""
    options: dict[str, Any] = {
        "model": "/m.gguf",
        "rpc_endpoints": ("127.0.0.1:1111", "127.0.0.1:2222"),
        "device_names": ("RPC0", "RPC1"),
        "n_gpu_layers": 13,
        "tensor_split": (6, 7),
        "ctx_size": 4096,
        "server": ServerSettings(slots=2),
        "port": 8090,
        "no_repack": False,
        **changes,
    }
    return server_argv(HERE, flags, **options)


def test_a_worker_binds_to_the_loopback_only() -> None:
    assert worker_argv(HERE, port=5, devices=("CPU",), threads=3) == (
        *("/e/ggml-rpc-server", "-H", "127.0.0.1", "-p", "5", "-d", "CPU"),
        *("-t", "3"),
    )
    assert "-t" not in worker_argv(HERE, port=5, devices=("CUDA0",))


def test_a_worker_keeps_a_cache_only_if_it_is_told_to() -> None:
    assert worker_argv(HERE, port=5, devices=("CPU",), caches=True)[-1] == "-c"
    assert "-c" not in worker_argv(HERE, port=5, devices=("CPU",))


def test_the_whole_server_command_line() -> None:
    assert argv() == (
        *("/e/llama-server", "-m", "/m.gguf", "-c", "4096", "-np", "2"),
        *("--rpc", "127.0.0.1:1111,127.0.0.1:2222"),
        *("--device", "RPC0,RPC1", "-ngl", "13", "-ts", "6,7"),
        *("-fit", "off", "--slots", "--metrics", "--no-ui", "-lv", "4"),
        *("--host", "127.0.0.1", "--port", "8090"),
    )


def test_settings_of_ones_own_are_named_and_llama_cpps_are_not() -> None:
    settings = ServerSettings(
        cache_type_k="q8_0",
        cache_type_v="q4_0",
        slots=4,
        flash_attention=FlashAttention.ON,
        threads=3,
    )
    line = " ".join(argv(server=settings))
    assert "-np 4 -ctk q8_0 -ctv q4_0 -fa on -t 3 --rpc" in line
    assert not {"-ctk", "-ctv", "-fa", "-t"} & set(argv())


@pytest.mark.parametrize(
    "changes",
    [
        {"device_names": (), "n_gpu_layers": 0, "tensor_split": ()},
        {"rpc_endpoints": (), "device_names": (), "tensor_split": ()},
    ],
)
def test_no_device_means_the_cpu_of_the_head(changes: dict[str, Any]) -> None:
    line = argv(**changes)
    assert line[line.index("--device") + 1] == "none"
    assert line[line.index("-ngl") + 1] == "0"
    assert "-ts" not in line


def test_what_the_engine_does_not_know_is_left_out() -> None:
    line = argv(frozenset(("-v", "--no-webui")))
    assert "-fit" not in line
    assert "-lv" not in line
    assert "-v" not in line
    assert "--no-webui" in line


@pytest.mark.parametrize("flags", [{"-v"}, {"-v", "-lv"}, {"-lv"}])
def test_an_engine_whose_level_4_is_debugging_keeps_its_own_level(
    flags: set[str],
) -> None:
    assert not {"-v", "-lv"} & set(argv(frozenset(flags)))


def test_the_layers_are_printed_where_asked() -> None:
    loud = argv(verbosity=LAYERS_VERBOSITY)
    assert loud[loud.index("-lv") + 1] == "5"
    assert "-v" in argv(frozenset({"-v"}), verbosity=LAYERS_VERBOSITY)


def test_no_repack_is_passed_where_asked_and_known() -> None:
    assert "--no-repack" in argv(no_repack=True)
    assert "--no-repack" not in argv(no_repack=False)
    assert "--no-repack" not in argv(frozenset(), no_repack=True)


def test_flags_of_a_real_help() -> None:
    flags = parse_flags((DATA / "help.txt").read_text())
    assert {
        *("-fit", "--fit", "-lv", "--verbosity", "-dev", "--device", "--rpc"),
        *("-ngl", "--n-gpu-layers", "-ts", "--no-repack", "-c", "--ctx-size"),
    } <= flags
    assert "-1" not in flags
    assert TRACES in flags
    earlier = " - 3: info\n                         - 4: debug\n"
    assert TRACES not in parse_flags(f"-lv, --verbosity N\n{earlier}")
    assert "--frobnicate" not in flags


def test_amx_is_read_from_the_cpu(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\nflags\t\t: fpu amx_bf16 amx_tile amx_int8\n")
    assert cpu_has_amx(info)
    info.write_text("flags : fpu avx2\n")
    assert not cpu_has_amx(info)
    assert not cpu_has_amx(tmp_path / "none")


def test_the_prompt_cache_on_the_head_is_bounded() -> None:
    """llama-server's own bound is 8 GiB, which no plan accounts for."""
    bounded = argv(frozenset({"--cache-ram"}))
    at = bounded.index("--cache-ram")
    assert int(bounded[at + 1]) == PROMPT_CACHE_MIB <= 1024
    assert "--cache-ram" not in argv(frozenset())
    own = argv(frozenset({"--cache-ram"}), extra=("--cache-ram", "0"))
    assert own[-2:] == ("--cache-ram", "0")
