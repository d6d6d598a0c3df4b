"""One sentence for every known failure, on the real output of each."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from backends.engine.logs import clean_lines, end_reason

DATA = Path(__file__).parent / "data"


@pytest.mark.parametrize(
    ("name", "code", "number", "sentence"),
    [
        ("nomodel", 1, None, "cannot open the model /nope.gguf (No such file"),
        ("trunc", 1, None, "the model file is cut short"),
        ("vocab", 1, None, "the model cannot be loaded: check_tensor_dims: tensor"),
        ("noworker", None, signal.SIGABRT, "the worker at 127.0.0.1:1 cannot be"),
        ("died", None, signal.SIGABRT, "a worker died or closed the connection"),
        ("badarg", 1, None, "it does not know the argument --frobnicate"),
        ("badval", 1, None, "refuses the argument -c (its value is not a number)"),
        ("baddev", 1, None, "refuses the argument --device (invalid device: RPC7)"),
        ("portused", 1, None, "port 56300 is in use by another program"),
        ("wport", 0, None, "its port is in use by another program"),
        ("wdev", 1, None, "it has no device CUDA0"),
        (
            "rpcalloc",
            1,
            None,
            "no memory for 45.8 GiB on RPC0[127.0.0.1:56211]; give this device fewer",
        ),
    ],
)
def test_captured_failures(
    name: str, code: int | None, number: int | None, sentence: str
) -> None:
    lines = clean_lines((DATA / f"fail_{name}.log").read_text())
    found = end_reason(lines, code, number)
    assert found is not None
    assert sentence in found
    assert not found.endswith(".")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "E RPC server version mismatch: 8.0.0",
            "a worker speaks RPC 8.0.0, which this llama-server does not",
        ),
        (
            "/src/ggml-rpc.cpp:580: RPC handshake failed for 10.0.0.2:50052",
            "the worker at 10.0.0.2:50052 speaks another RPC version",
        ),
        (
            "E llama_model_load: error loading model: unknown model architecture: 'zz'",
            "this llama.cpp does not know the architecture zz",
        ),
        (
            "/a b/ggml.c:3041: GGML_ASSERT(a->ne[2] == b->ne[0]) failed",
            "llama.cpp stopped at its own check a->ne[2] == b->ne[0]",
        ),
        (
            "/x/y/llama-graph.cpp:17: fatal error",
            "llama.cpp gave up: fatal error (llama-graph.cpp:17)",
        ),
    ],
)
def test_lines_of_failures(line: str, sentence: str) -> None:
    found = end_reason([line], None, signal.SIGABRT)
    assert found is not None
    assert found.startswith(sentence)


def test_a_kill_from_outside_outweighs_what_was_printed() -> None:
    lines = ["E something: failed to load model"]
    found = end_reason(lines, None, signal.SIGKILL)
    assert found is not None
    assert "killed" in found


@pytest.mark.parametrize(
    ("code", "number", "word"),
    [
        (None, signal.SIGILL, "instructions"),
        (None, signal.SIGSEGV, "crashed"),
        (None, signal.SIGPIPE, "client left"),
        (127, None, "missing"),
    ],
)
def test_without_output_the_status_speaks(
    code: int | None, number: int | None, word: str
) -> None:
    found = end_reason([], code, number)
    assert found is not None
    assert word in found


def test_nothing_is_made_up() -> None:
    assert end_reason(["all is well"], 0, None) is None
    assert end_reason([], None, None) is None
