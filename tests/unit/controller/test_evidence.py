"""What is told of a process that ended: the reason, and what to do about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from backends.controller.evidence import failure_of
from backends.machines.host import ProcessRecord
from backends.state import LogChunk, ProcessRole, ProcessState

DATA = Path(__file__).parents[1] / "engine" / "data"


class Shelf:
    """A host with one log."""

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
    failure = await failure_of(cast("Any", host), ended(), 1.0)
    assert flag in failure.what
    assert f"Leave {flag} out of what follows the two dashes (--)" in failure.hint
    assert "'/my engines/llama-server' --help" in failure.hint


async def test_another_end_is_to_be_read_in_the_log() -> None:
    host = Shelf((DATA / "fail_trunc.log").read_text())
    failure = await failure_of(cast("Any", host), ended(), 1.0)
    assert failure.hint == "Launch again; if it repeats, its log says why."
