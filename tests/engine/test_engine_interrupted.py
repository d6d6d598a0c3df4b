"""Builds of llama.cpp itself that are interrupted, and go on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from backends.engine import build, install, versions
from backends.engine.build import BuildProgress
from backends.paths import user_paths

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]


class Build:
    """``dllm-tui engine build`` of llama.cpp in a cache of its own."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self.env = {
            **os.environ,
            "XDG_CACHE_HOME": str(cache),
            "XDG_CONFIG_HOME": str(cache / "config"),
            "PYTHONPATH": str(ROOT),
            # Or what is compiled is only fetched.
            "CCACHE_DISABLE": "1",
        }

    def start(self) -> subprocess.Popen[str]:
        """The running command."""
        main = "from tui.cli.main import main; main()"
        return subprocess.Popen(
            [sys.executable, "-c", main, "engine", "build", "--jobs", "2"],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def log(self) -> str:
        logs = list(self.cache.glob("dllm-tui/build/*/build.log"))
        return logs[0].read_text(errors="replace") if logs else ""

    def steps(self) -> list[tuple[int, int]]:
        found = re.findall(r"^\[(\d+)/(\d+)\]", self.log(), re.M)
        return [(int(done), int(total)) for done, total in found]

    def wait_for_steps(self, n: int, process: subprocess.Popen[str]) -> None:
        """Wait until so many files were compiled."""
        deadline = time.monotonic() + 240
        while len(self.steps()) < n:
            if process.poll() is not None or time.monotonic() > deadline:
                out, err = process.communicate(timeout=5)
                pytest.fail(f"the build did not get to {n} steps: {out}{err}")
            time.sleep(0.1)

    def processes(self) -> list[str]:
        """Command lines of every process of this build."""
        marker = f"XDG_CACHE_HOME={self.cache}".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                ours = marker in (folder / "environ").read_bytes().split(b"\0")
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
            except OSError:
                continue
            if ours and line:
                found.append(line.decode(errors="replace"))
        return found


def wait_until_said(process: subprocess.Popen[str], text: str) -> None:
    assert process.stderr is not None
    assert any(text in line for line in process.stderr), f"it never said: {text}"


def end(process: subprocess.Popen[str], number: signal.Signals) -> str:
    """Send a signal; what the command said on stderr."""
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert out == ""
    assert "Traceback" not in err
    return err


@pytest.mark.trial
@pytest.mark.timeout(600)
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc")
def test_interrupted_builds_leave_nothing_running_and_go_on(tmp_path: Path) -> None:
    mine = Build(tmp_path)
    first = mine.start()
    mine.wait_for_steps(3, first)
    second = mine.start()
    wait_until_said(second, "Another build of this engine is running")
    end(second, signal.SIGINT)
    err = end(first, signal.SIGINT)
    assert "Fetching the source" in err
    assert "Interrupted." in err
    assert mine.processes() == []
    done = mine.steps()
    total = done[0][1]

    again = mine.start()
    mine.wait_for_steps(len(done) + 2, again)
    err = end(again, signal.SIGTERM)
    assert "Compiling" in err
    for word in ("Fetching", "Unpacking", "Configuring"):
        assert word not in err
    assert mine.processes() == []
    resumed = mine.steps()[len(done)][1]
    # The files that were being compiled are compiled anew, the others are not.
    assert total - len(done) <= resumed <= total - len(done) + 2


@pytest.mark.timeout(2400)
async def test_the_users_engine_is_built_once() -> None:
    location = await build.build_engine(None, user_paths())
    again: list[BuildProgress] = []
    found = await build.build_engine(None, user_paths(), progress=again.append)
    assert found == location
    assert [p.stage for p in again] == ["done"]
    raw: dict[str, Any] = json.loads(
        (Path(location.directory) / install.MANIFEST).read_text()
    )
    assert raw["sha256"] == versions.DEFAULT.sha256
