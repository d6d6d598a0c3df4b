"""A user of one's own for every test: private state, the real engine from the cache."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from backends.client.http import request
from backends.demo import MODEL_PATH
from backends.state import ClusterSnapshot
from tests.kit.engines import engine
from tests.kit.forking import ForkingPopen
from tests.kit.models import write_llama
from tests.kit.processes import kill_until_none, processes_of
from tui.cli.status import cluster_json

__all__ = ["engine"]

WAIT_S = 60.0
COMMAND_S = 180.0
"""Longer than any command takes; its start alone takes half a minute on a machine that
is busy with much else."""
PAUSE_MIN_S = 0.02
PAUSE_MAX_S = 0.2
LOG_CHARS = 10_000
FORKS = sys.platform == "linux"
RUN = "import sys; sys.argv[0] = 'dllm-tui'; from tui.entry import main; main()"


def wait_for(condition: Callable[[], Any], what: str, timeout_s: float = WAIT_S) -> Any:
    """Poll until a condition gives something true; fail the test otherwise.

    Ever less often, for whoever is asked has work to do; a look that costs much, as a
    command does, leaves as long to what is waited for.
    """
    begun = time.monotonic()
    deadline = begun + timeout_s
    pause_s = PAUSE_MIN_S
    while begun < deadline:
        if value := condition():
            return value
        time.sleep(min(max(time.monotonic() - begun, pause_s), 1.0))
        pause_s = min(pause_s * 1.3, PAUSE_MAX_S)
        begun = time.monotonic()
    pytest.fail(f"not within {timeout_s} s: {what}")


def running_pid(status: dict[str, Any], name: str) -> int | None:
    for process in status["processes"]:
        if process["name"] == name and process["state"] != "exited":
            return int(process["pid"])
    return None


async def _told(controller: Path) -> ClusterSnapshot:
    async with request(controller, "GET", "/v1/snapshot") as response:
        return msgspec.json.decode(await response.read(), type=ClusterSnapshot)


class User:
    """One user's environment, commands and processes."""

    def __init__(self, home: Path) -> None:
        self.home = home
        scripts = sysconfig.get_path("scripts")
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith("DLLM_TEST")},
            "XDG_CONFIG_HOME": str(home / "config"),
            "XDG_DATA_HOME": str(home / "data"),
            "XDG_STATE_HOME": str(home / "state"),
            "XDG_RUNTIME_DIR": str(home / "run"),
            "XDG_CACHE_HOME": os.environ.get(
                "XDG_CACHE_HOME", str(Path.home() / ".cache")
            ),
            "PATH": f"{scripts}:{os.environ['PATH']}",
            "NO_COLOR": "1",
        }

    def start(self, *args: str, **options: Any) -> subprocess.Popen[str]:
        """A running ``dllm-tui`` command."""
        return self._popen(subprocess.Popen, ["dllm-tui", *args], **options)

    def _popen(
        self, kind: type[subprocess.Popen[Any]], words: list[str], **options: Any
    ) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        streams = {"stdout": pipe, "stderr": pipe, "stdin": subprocess.DEVNULL}
        options = streams | options
        return kind(words, env=self.env, cwd=self.home, text=True, **options)

    def fork(self, *args: str) -> subprocess.Popen[str]:
        """The same as a fork of the test, which spares the imports.

        What the command starts itself is real.
        """
        words = [sys.executable, "-P", "-c", RUN, *args]
        return self._popen(ForkingPopen if FORKS else subprocess.Popen, words)

    def run(self, *args: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """A finished ``dllm-tui`` command; its exit code is checked."""
        process = self.fork(*args)
        try:
            out, err = process.communicate(timeout=COMMAND_S)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            pytest.fail(f"dllm-tui {' '.join(args)} hung:\n{out}\n{err}")
        assert process.returncode == code, f"{args} gave {process.returncode}:\n{err}"
        assert "Traceback" not in err
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    def up(
        self, model: str, *more: str, code: int = 0
    ) -> subprocess.CompletedProcess[str]:
        return self.run("up", "--model", model, "--detach", *more, code=code)

    def json(self, *args: str, code: int = 0) -> Any:
        return json.loads(self.run(*args, "--json", code=code).stdout)

    def ask(self, question: str, **more: object) -> str:
        """Ask the API, without chance; the text of its answer."""
        body = {"messages": [{"role": "user", "content": question}], "temperature": 0}
        request = urllib.request.Request(
            f"{self.status()['api_url']}/chat/completions",
            json.dumps(body | more).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=180) as answer:
            return str(json.load(answer)["choices"][0]["message"]["content"])

    def status(self) -> Any:
        """``status --json``, whatever the state: asked of the controller itself.

        Without one it is the command, which starts one to adopt what was left.
        """
        try:
            return self._asked()
        except OSError:
            process = self.start("status", "--json")
        out, err = process.communicate(timeout=COMMAND_S)
        assert out, err
        return json.loads(out)

    def look(self) -> Any:
        try:
            return self._asked()
        except OSError:
            return cluster_json(ClusterSnapshot())

    def _asked(self) -> Any:
        snapshot = asyncio.run(_told(self.home / "run/dllm-tui/controller.sock"))
        return json.loads(msgspec.json.encode(cluster_json(snapshot)))

    def pid(self, name: str) -> int | None:
        return running_pid(self.status(), name)

    def running(self, name: str) -> int:
        """The pid of a process that runs. A signal to 0 would reach the tests."""
        pid = self.pid(name)
        assert pid, f"{name} does not run"
        return pid

    def kill(self, name: str) -> int:
        pid = self.running(name)
        os.kill(pid, signal.SIGKILL)
        return pid

    def kill_controller(self) -> int:
        """kill -9 it, and wait until it is gone; its pid."""
        controller = psutil.Process(self.status()["controller_pid"])
        controller.kill()
        wait_for(lambda: not controller.is_running(), "the controller gone")
        return controller.pid

    def kill_and_mend(self, name: str) -> None:
        before = self.kill(name)

        def serving_again() -> bool:
            # One look for both: between two, the cluster may have begun to restart.
            status = self.look()
            now = running_pid(status, name)
            return status["state"] == "serving" and now not in (None, before)

        wait_for(serving_again, f"a new {name}, and serving")

    def wait_serving(self, timeout_s: float = WAIT_S) -> Any:
        def serving() -> Any:
            status = self.status()
            return status if status["state"] == "serving" else None

        return wait_for(serving, "serving", timeout_s)

    def processes(self) -> list[psutil.Process]:
        return processes_of(self.home)

    @property
    def controller_log(self) -> str:
        file = self.home / "state/dllm-tui/controller.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def tell_log(self) -> None:
        print(self.controller_log[-LOG_CHARS:])

    def stop(self) -> None:
        """Stop the cluster; nothing of it, nor its controller, may stay."""
        self.run("stop")
        self.assert_nothing_left()

    def assert_nothing_left(self) -> None:
        wait_for(lambda: not self.processes(), "everything gone", 60)


@contextmanager
def somebody() -> Iterator[User]:
    """A user with nothing running; whatever it left is killed afterwards."""
    home = Path(tempfile.mkdtemp(prefix="dllm-"))
    (home / "run").mkdir(mode=0o700)
    someone = User(home)
    try:
        yield someone
    finally:
        kill_until_none(someone.processes)
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def user() -> Iterator[User]:
    with somebody() as someone:
        yield someone
        someone.tell_log()


@pytest.fixture(scope="session")
def demo_model() -> str:
    return str(MODEL_PATH)


@pytest.fixture(scope="module")
def launched(demo_model: str) -> Iterator[User]:
    """Somebody whose cluster of two workers serves, for all tests of a file."""
    with somebody() as user:
        user.up(demo_model, "--workers", "2")
        yield user
        user.tell_log()
        user.stop()


@pytest.fixture(scope="session")
def big_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("models") / "big.gguf"
    write_llama(file, n_layer=12, n_embd=768, n_ff=2048)
    return str(file)
