"""The identity of a process, the same as the native helper writes it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from backends.peers.identity import is_same, start_id
from tests.unit.peers.local_processes import spec

if TYPE_CHECKING:
    from pathlib import Path

    from backends.peers.local import LocalHost


async def test_it_is_what_the_helper_wrote(host: LocalHost, run_dir: Path) -> None:
    record = await host.start(spec())
    written = json.loads((run_dir / "p/process.json").read_text())
    assert start_id(record.pid) == written["start_id"]
    assert is_same(record.pid, written["start_id"])


def test_it_is_stable_and_differs_between_processes() -> None:
    own = start_id(os.getpid())
    assert own is not None
    assert own == start_id(os.getpid())
    assert is_same(os.getpid(), own)
    assert not is_same(os.getpid(), own + "0")
    assert not is_same(os.getpid(), "")


def test_a_zombie_and_a_reaped_process_have_none() -> None:
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert start_id(process.pid) is None
    process.wait()
    assert start_id(process.pid) is None
    assert not is_same(process.pid, "")


@pytest.mark.parametrize("pid", [0, -1, 1 << 30])
def test_numbers_that_are_no_process(pid: int) -> None:
    assert start_id(pid) is None


@pytest.mark.skipif(sys.platform != "linux", reason="names of Linux processes")
def test_brackets_and_spaces_in_a_name_do_not_matter(tmp_path: Path) -> None:
    program = tmp_path / "a) Z 1 (b c"
    program.symlink_to("/bin/sleep")
    process = subprocess.Popen([str(program), "600"])
    try:
        before = start_id(process.pid)
        assert before is not None
        assert before.count(":") == 1
        assert before.split(":")[1].isdigit()
    finally:
        process.kill()
        process.wait()
