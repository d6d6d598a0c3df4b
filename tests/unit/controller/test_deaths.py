"""What is told of a process that ended: the reason, and what to do about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from backends.controller.deaths import failure_of
from backends.machines.agent import ProcessRecord
from backends.state import LogChunk, ProcessRole, ProcessState

DATA = Path(__file__).parents[1] / "engine" / "data"


class Shelf:
    def __init__(self, log: str) -> None:
        self._log = log

    async def read_log(self, name: str, offset: int, limit_bytes: int) -> LogChunk:
        return LogChunk(name=name, text=self._log, offset=0, next_offset=len(self._log))


def ended(code: int | None = 1) -> ProcessRecord:
    return ProcessRecord(
        name="default/llama-server",
        role=ProcessRole.SERVER,
        state=ProcessState.EXITED,
        pid=1,
        argv=("/my engines/llama-server", "-m", "m.gguf", "--frobnicate"),
        exit_code=code,
    )


@pytest.mark.parametrize(
    ("log", "flag"), [("badarg", "--frobnicate"), ("badval", "-c")]
)
async def test_a_refused_argument_is_named_with_where_the_others_stand(
    log: str, flag: str
) -> None:
    host = Shelf((DATA / f"fail_{log}.log").read_text())
    failure = await failure_of(cast("Any", host), ended())
    assert flag in failure.what
    assert f"Leave {flag} out of what follows the two dashes (--)" in failure.hint
    assert "'/my engines/llama-server' --help" in failure.hint


async def test_another_end_is_to_be_read_in_the_log() -> None:
    host = Shelf((DATA / "fail_trunc.log").read_text())
    failure = await failure_of(cast("Any", host), ended())
    assert failure.hint == "Launch again; if it repeats, its log says why."


async def test_what_clients_asked_is_not_among_the_last_words() -> None:
    """As both engines print it for requests that they cannot read."""
    log = """\
0.03.149.990 W srv    operator(): got exception: {"error":{"message":"my secret"}}
0.03.166.580 I slot print_timing: id  3 | task 0 | prompt eval time = 5.70 ms
parse: error parsing grammar: expecting ::= at my secret

root ::= [secret
"secret too
0.03.169.907 E failed to parse grammar
/src/ggml.c:9: GGML_ASSERT(ne > 0) failed
"""
    failure = await failure_of(cast("Any", Shelf(log)), ended())
    assert failure.log_tail == (
        "0.03.149.990 W srv    operator(): got exception: …",
        "0.03.166.580 I slot print_timing: id  3 | task 0 | prompt eval time = 5.70 ms",
        "parse: error parsing grammar: …",
        "0.03.169.907 E failed to parse grammar",
        "/src/ggml.c:9: GGML_ASSERT(ne > 0) failed",
    )


async def test_a_load_from_a_sparse_file_ends_with_the_relays_reason() -> None:
    """Of a relay of this cluster, and of what it said last."""

    class Logs(Shelf):
        seen = tuple(
            msgspec.structs.replace(ended(), name=name, role=ProcessRole.RELAY)
            for name in ("other/relay-a", "default/relay-b", "default/relay-mini")
        )
        logs = {
            "other/relay-a": "dllm-relay: a: x is a hole in the thin file here",
            "default/relay-b": "dllm-relay: b: linked with the relay of b",
            "default/relay-mini": "2026-01-31T23:59:59.123Z E "
            "dllm-relay: mini: y is a hole in the thin file here",
        }

        async def read_log(self, name: str, *rest: int) -> LogChunk:
            text = self.logs.get(name, self._log)
            return LogChunk(name=name, text=text, offset=0, next_offset=len(text))

    host = Logs("Remote RPC server crashed or returned malformed response")
    failure = await failure_of(cast("Any", host), ended(None))
    assert failure.what.endswith(": mini: y is a hole in the thin file here")
    assert failure.hint.startswith("Put the model there, or a sparse file")
    host.seen = host.seen[:2]
    failure = await failure_of(cast("Any", host), ended(None))
    assert failure.what.endswith(": a worker died or closed the connection")
