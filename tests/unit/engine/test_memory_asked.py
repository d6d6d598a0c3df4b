"""Asking llama-fit-params: arguments, rows, answers kept; programs that stand in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from backends.engine.argv import fit_argv, memory_options
from backends.engine.fit_params import (
    KEPT_MAX,
    MemoryAsker,
    MemoryQuestion,
    answer_of,
    ask_memory,
    output_apart,
    parse_rows,
)
from backends.errors import EngineError
from backends.split.experts import tensor_pattern
from backends.state import (
    EngineInfo,
    EngineSource,
    LayerRange,
    MemorySource,
    ServerSettings,
)

MIB = 1 << 20
RELAY = """#!/bin/sh
echo '{"port": 1, "pid": 1}'
cat >/dev/null
"""
TOLD = "0.01 I some log line 1 2 3\nRPC0 10 20 30 \nRPC1 1 2 3 \nHost 4 0 5 \n"


def question(*counts: int, **more: object) -> MemoryQuestion:
    given: dict[str, object] = {
        "files": ("/m.gguf",),
        "head_cpu": "local/CPU",
        "device_ids": tuple(f"w{i}/CUDA0" for i in range(len(counts))),
        "tensor_split": counts,
        "ctx_size": 2048,
        **more,
    }
    return MemoryQuestion(**given)  # type: ignore[arg-type]


def location(fit_path: str = "/e/llama-fit-params") -> EngineInfo:
    return EngineInfo(
        directory="/e",
        server_path="/e/llama-server",
        worker_path="/e/ggml-rpc-server",
        source=EngineSource.CACHE,
        fit_path=fit_path,
    )


def program(file: Path, text: str) -> str:
    file.write_text(text)
    file.chmod(0o755)
    return str(file)


def test_the_arguments_are_llama_servers_with_stub_workers() -> None:
    argv = fit_argv(
        location(),
        model="/m.gguf",
        rpc_endpoint="127.0.0.1:9",
        tensor_split=(6, 7),
        ctx_size=8192,
        server=ServerSettings(slots=2, cache_type_v="q4_0", threads=3),
        extra=("--jinja", "-ctk", "q8_0"),
    )
    assert " ".join(argv) == (
        "/e/llama-fit-params -m /m.gguf -c 8192 -np 2 -ctv q4_0 --rpc 127.0.0.1:9 "
        "--device RPC0,RPC1 -ngl 13 -ts 6,7 --no-repack -ctk q8_0 --fit-print on"
    )


@pytest.mark.parametrize(
    ("extra", "kept"),
    [
        ("--jinja --alias big -ub 256", "-ub 256"),
        ("-fa --alias x", "-fa"),
        ("-fa on --temp 0.5 -nkvo", "-fa on -nkvo"),
        ("-ngl -1 --cache-ram 0", "-ngl -1"),
        ("--api-key -c", "-c"),
        ("", ""),
    ],
)
def test_only_what_decides_about_memory_is_passed_on(extra: str, kept: str) -> None:
    assert " ".join(memory_options(extra.split())) == kept


def test_rows_come_back_under_our_ids() -> None:
    head, first, second = answer_of(parse_rows(TOLD), question(6, 7))
    assert head.device == "local/CPU"
    assert (head.model_bytes, head.compute_bytes) == (4 * MIB, 5 * MIB)
    assert first.device == "w0/CUDA0"
    assert first.kv_bytes == 20 * MIB
    assert second.total_bytes == 6 * MIB
    assert second.source is MemorySource.ENGINE


def test_a_device_that_is_not_told_of_is_an_error() -> None:
    with pytest.raises(EngineError, match="nothing of w2/CUDA0"):
        answer_of(parse_rows(TOLD), question(1, 1, 1))


def test_the_output_goes_to_a_device_of_its_own_where_llama_cpp_pipelines() -> None:
    apart = output_apart(question(6, 7))
    assert apart is not None
    assert apart.tensor_split == (6, 6, 1)
    assert apart.device_ids[:2] == ("w0/CUDA0", "w1/CUDA0")


@pytest.mark.parametrize(
    "asked",
    [
        question(13),
        question(12, 1),
        question(6, 6, head_layers=1),
        question(6, 7, extra_args=("-cmoe",)),
        question(6, 7, experts=(LayerRange("local/CPU", 1, 2),)),
    ],
)
def test_the_output_goes_to_the_head_where_it_does_not(asked: MemoryQuestion) -> None:
    apart = output_apart(asked)
    assert apart is not None
    assert apart.tensor_split == asked.tensor_split
    assert apart.extra_args[-1].endswith("=CPU")


def test_a_server_of_embeddings_keeps_all_its_outputs() -> None:
    assert output_apart(question(6, 7, extra_args=("--embedding",))) is None


async def test_an_answer_is_kept_in_memory_and_on_disk(tmp_path: Path) -> None:
    count = tmp_path / "count"
    fit = program(tmp_path / "fit", f"#!/bin/sh\necho x >>{count}\necho '{TOLD}'\n")
    relay = tmp_path / "relay"
    program(relay, RELAY)
    model = tmp_path / "m.gguf"
    model.write_text("GGUF")
    asked = question(6, 7, files=(str(model),))
    asker = MemoryAsker(tmp_path / "kept", lambda: relay)
    first = await asker.ask(location(fit), "7.0.0", asked)
    assert await asker.ask(location(fit), "7.0.0", asked) == first
    anew = MemoryAsker(tmp_path / "kept", lambda: relay)
    assert await anew.ask(location(fit), "7.0.0", asked) == first
    assert count.read_text() == "x\n"
    os.utime(model, (1, 1))
    await anew.ask(location(fit), "7.0.0", asked)
    assert count.read_text() == "x\nx\n"


async def test_the_disk_keeps_only_so_many(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    for index in range(KEPT_MAX + 20):
        (folder / f"{index}.json").write_text("[]")
    relay = tmp_path / "relay"
    program(relay, RELAY)
    fit = program(tmp_path / "fit", f"#!/bin/sh\necho '{TOLD}'\n")
    await MemoryAsker(folder, lambda: relay).ask(
        location(fit), "7.0.0", question(6, 7, files=(fit,))
    )
    assert len(list(folder.glob("*.json"))) == KEPT_MAX


@pytest.mark.parametrize(
    ("fit", "said"),
    [
        ("#!/bin/sh\necho '0.1 E bad header' >&2\nexit 1\n", "bad header"),
        ("#!/bin/sh\nkill -SEGV $$\n", "SIGSEGV"),
        ("#!/bin/sh\necho hello\n", "told nothing of local/CPU"),
        ("", "has no llama-fit-params"),
    ],
)
async def test_what_goes_wrong_is_a_sentence(
    tmp_path: Path, fit: str, said: str
) -> None:
    relay = tmp_path / "relay"
    program(relay, RELAY)
    path = program(tmp_path / "fit", fit) if fit else ""
    asker = MemoryAsker(tmp_path / "kept", lambda: relay)
    asked = question(6, 7, files=(str(relay),))
    with pytest.raises(EngineError, match=said):
        await asker.ask(location(path), "7.0.0", asked)
    assert not (tmp_path / "kept").exists()


async def test_experts_elsewhere_are_asked_about_as_they_will_be(
    tmp_path: Path,
) -> None:
    """The stub worker's port is in the name of its buffers."""
    said = tmp_path / "said"
    fit = program(tmp_path / "fit", f"#!/bin/sh\necho $* >{said}\necho '{TOLD}'\n")
    relay = tmp_path / "relay"
    program(relay, RELAY)
    moved = (LayerRange("local/CPU", 1, 2), LayerRange("w1/CUDA0", 3, 3))
    asked = question(6, 7, files=(fit,), experts=moved)
    await ask_memory(location(fit), str(relay), "7.0.0", asked)
    words = said.read_text().split()
    first, second = words[words.index("-ot") + 1].split(",")
    endpoint = words[words.index("--rpc") + 1]
    assert first == f"{tensor_pattern(moved[0])}=CPU"
    assert second == f"{tensor_pattern(moved[1])}=RPC1[{endpoint}]"


async def test_parts_of_tensors_are_not_asked_about() -> None:
    asked = question(1, 1, extra_args=("-sm", "tensor"))
    with pytest.raises(EngineError, match="does not tell the memory of parts"):
        await ask_memory(location(), "", "7.0.0", asked)


async def test_an_older_helper_program_is_told_of(tmp_path: Path) -> None:
    relay = tmp_path / "relay"
    program(relay, "#!/bin/sh\necho 'unknown command stub' >&2\nexit 2\n")
    asker = MemoryAsker(tmp_path / "kept", lambda: relay)
    with pytest.raises(EngineError, match="stub worker"):
        await asker.ask(
            location(str(relay)), "7.0.0", question(6, 7, files=(str(relay),))
        )
