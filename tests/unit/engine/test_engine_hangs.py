"""An engine that does not answer: it is ended with everything it started."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import psutil
import pytest

from backends.engine.ask import list_devices
from backends.errors import EngineError
from backends.machines.host import local_host_for_now
from backends.state import EngineInfo, EngineSource

if TYPE_CHECKING:
    from pathlib import Path


def program(folder: Path, text: str) -> str:
    """An engine of that behaviour."""
    path = folder / "llama-server"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


async def gone(marker: str) -> bool:
    """Whether no process with that argument is left, soon."""
    for _ in range(100):
        if not any(
            marker in (process.info["cmdline"] or [])
            for process in psutil.process_iter(["cmdline"])
        ):
            return True
        await asyncio.sleep(0.02)
    return False


@pytest.mark.parametrize("leader", ["wait", "exit 0"])
async def test_nothing_of_a_silent_engine_is_left(tmp_path: Path, leader: str) -> None:
    marker = f"322.{os.getpid()}{len(leader)}"
    engine = program(tmp_path, f"sleep {marker} & {leader}")
    found = EngineInfo(
        directory=str(tmp_path),
        source=EngineSource.PATH,
        server_path=engine,
        worker_path=engine,
    )
    answer = "gave no answer within 0.6 s"
    async with local_host_for_now(tmp_path / "run") as host:
        if leader == "wait":
            with pytest.raises(EngineError, match=answer):
                await list_devices(host, found, timeout_s=0.6)
        else:
            assert await list_devices(host, found, timeout_s=0.6) == ()
    assert await gone(marker)
