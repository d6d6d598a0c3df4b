"""Things die, ports are taken, files vanish: a clear sentence each time, no orphan."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from itertools import product
from pathlib import Path
from shlex import quote

import psutil
import pytest

from backends.controller.exit_reasons import DEATHS_MAX
from backends.engine.install import find_engine
from backends.paths import user_paths
from tests.engine.conftest import COMMAND_S, User, running_pid, wait_for
from tests.engine.terminal import Terminal
from tests.kit.processes import is_agent, kill_all, name_of, with_word, words_of
from tests.native.stock import free_port

pytestmark = pytest.mark.engine
# Questions (--version, --help) pass; a server that is to serve waits.
SERVER = """#!/bin/sh
case " $* " in *" --port "*) while [ -e {gate} ]; do sleep 0.02; done ;; esac
exec {server} "$@"
"""


class Gate:
    """Keeps the llama-server of a user from beginning, until a worker is suspended.

    So a load cannot end before a test lets it.
    """

    def __init__(self, user: User) -> None:
        self._user = user
        self._closed = user.home / "gate"
        self.close()
        real = find_engine(None, user_paths())
        folder = user.home / "engine"
        folder.mkdir()
        for program in (real.worker_path, real.fit_path):
            (folder / os.path.basename(program)).symlink_to(program)
        script = folder / "llama-server"
        paths = {"gate": str(self._closed), "server": real.server_path}
        script.write_text(SERVER.format(**{k: quote(v) for k, v in paths.items()}))
        script.chmod(0o755)
        user.env["DLLM_ENGINE_DIR"] = str(folder)

    def close(self) -> None:
        self._closed.touch()

    def freeze_load(self) -> psutil.Process:
        """Let the load begin with a suspended worker, which is returned."""
        wait_for(lambda: self._running("--port", "llama-server"), "llama-server")
        worker = self._running("-p", "ggml-rpc-server")[0]
        worker.suspend()
        wait_for(lambda: worker.status() == psutil.STATUS_STOPPED, "it is suspended")
        self._closed.unlink()
        return worker

    def _running(self, option: str, name: str) -> list[psutil.Process]:
        return with_word(self._user.processes(), option, name)


def serve(user: User, model: str, *more: str) -> None:
    user.up(model, "--workers", "2", *more)


def failed(user: User) -> dict[str, object]:
    wait_for(lambda: user.look()["state"] == "failed", "state failed")
    failure: dict[str, object] = user.status()["failure"]
    return failure


def engine_processes(user: User) -> list[psutil.Process]:
    names = ("llama-server", "ggml-rpc-server", "rpc-server", "dllm-relay")
    # One that ends as it is looked at has no words any more, and cannot be told apart.
    others = [p for p in user.processes() if not is_agent(p) and words_of(p)]
    return [p for p in others if name_of(p) in names]


def kill_again_and_again(user: User, name: str) -> dict[str, object]:
    """The failure once it is not started again any more."""
    for _ in range(DEATHS_MAX - 1):
        user.kill_and_mend(name)
    user.kill(name)
    failure = failed(user)
    assert f"{DEATHS_MAX} times within two minutes" in str(failure["what"])
    assert "not started once more" in str(failure["hint"])
    return failure


@pytest.mark.trial
def test_a_worker_that_keeps_dying_is_done_without(user: User, demo_model: str) -> None:
    # Of its own: that another test took the usual one would be told, too.
    serve(user, demo_model, "--port", str(free_port()))
    for _ in range(DEATHS_MAX - 1):
        user.kill_and_mend("worker2")
    user.kill("worker2")
    wait_for(lambda: devices(user) - {"worker2/CPU"} == devices(user) != set(), "rest")
    assert user.ask("Who are you?")
    told = user.json("events")
    launched, serving = told[:2]
    assert (launched["kind"], launched["by"]["program"]) == ("launch", "up")
    assert launched["by"]["user"] == psutil.Process().username()
    assert serving["kind"] == "serving"
    assert "worker2/CPU" in serving["text"]
    # What is the same as a moment ago is told once; that it is given up is new.
    first, died = (event for event in told if event["kind"] == "died")
    assert first["text"] in died["text"]
    assert "5 times" in died["text"]
    assert (died["process"], died["exit_signal"]) == ("worker2", signal.SIGKILL)
    assert died["evidence"]
    assert any("went on without worker2" in event["text"] for event in told)


def devices(user: User) -> set[str]:
    status = user.look()
    measured = status["measured"]
    if status["state"] != "serving" or not measured:
        return set()
    return {device for device, *_ in measured["layers"]}


def test_a_server_that_keeps_dying_is_blamed_and_a_new_launch_is_adopted(
    user: User, demo_model: str
) -> None:
    serve(user, demo_model)
    url = user.status()["api_url"]
    failure = kill_again_and_again(user, "llama-server")
    assert "llama-server was killed by SIGKILL" in str(failure["what"])
    assert failure["argv"]
    assert failure["log_tail"]
    assert failure["exit_signal"] == signal.SIGKILL
    wait_for(lambda: not engine_processes(user), "workers stopped too")
    for _ in range(2):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{url}/completions", b"{}")
        assert refused.value.code == 503
        assert b"killed by SIGKILL" in refused.value.read()
        # Nor does a controller that comes after end it.
        kill_all(with_word(user.processes(), "backends.controller"))
        assert user.status()["state"] == "failed"
    # Launched again it serves; the next controller adopts it, pairs of relays too,
    # whose keys stay as they were.
    serve(user, demo_model, "--relay", "pair")
    assert user.status()["api_url"] == url
    assert user.status()["state"] == "serving"
    before = user.status()
    user.kill_controller()
    after = user.wait_serving()
    assert after["controller_pid"] != before["controller_pid"]
    assert after["measured"] == before["measured"]
    assert after["served_since"] == before["served_since"]
    assert user.json("events")[-1]["kind"] == "taken up"
    pids = [{p["name"]: p["pid"] for p in s["processes"]} for s in (before, after)]
    assert pids[0] == pids[1]
    assert user.ask("What is a split?")
    user.stop()
    asked, stopped = user.json("events")[-2:]
    assert (asked["kind"], asked["by"]["program"]) == ("stop", "down")
    assert stopped["text"].startswith("Stopped: api-gateway, llama-server")


def test_a_killed_relay_is_started_again(launched: User) -> None:
    worker = launched.pid("worker1")
    answer = launched.ask("Who are you?")
    launched.kill_and_mend("relay-worker1")
    status = launched.status()
    assert "relay-worker1 was killed by SIGKILL" in status["message"]
    assert "started again" in status["message"]
    assert status["measured"]["mismatches"] == []
    events = launched.json("events")
    at = next(i for i, event in enumerate(events) if event["kind"] == "died")
    died, mended, again = events[at : at + 3]
    assert (died["process"], died["exit_signal"]) == ("relay-worker1", 9)
    assert "started again" in mended["text"]
    assert "serves again after" in again["text"]
    assert launched.pid("worker1") == worker, "the worker has not noticed"
    assert launched.ask("Who are you?") == answer
    wait_for(lambda: read(launched), "the new relay is read")


def read(user: User) -> bool:
    links = user.look()["links"]
    return bool(links) and all(link["protocol"] for link in links)


def test_a_new_controller_learns_the_split_from_relays(launched: User) -> None:
    """They keep it while they live; nothing of it is in llama-server's log."""
    before = launched.wait_serving()
    assert before["measured"]["layers"]
    launched.kill_controller()
    journal = launched.home / "state" / "dllm-tui" / "clusters" / "default.json"
    record = json.loads(journal.read_text())
    assert record["measured"] == before["measured"]
    journal.write_text(json.dumps({**record, "measured": None, "server": ""}))
    again = wait_for(lambda: launched.status()["measured"], "measured again")
    assert again == before["measured"]
    assert launched.pid("llama-server") == running_pid(before, "llama-server")


def test_a_command_that_ends_during_the_load_leaves_nothing(
    user: User, demo_model: str
) -> None:
    """After Ctrl-C by itself; after kill -9 the controller ends the cluster it held."""
    gate = Gate(user)
    up = user.start("up", "--model", demo_model, "--workers", "2")
    gate.freeze_load()
    up.send_signal(signal.SIGINT)
    _, err = up.communicate(timeout=COMMAND_S)
    assert up.returncode == 130, err
    assert "Interrupted" in err
    assert "Traceback" not in err
    user.assert_nothing_left()
    gate.close()
    demo = user.start("demo", "--headless", "--model", demo_model)
    gate.freeze_load()
    demo.kill()
    demo.communicate(timeout=COMMAND_S)
    user.assert_nothing_left()


def test_ctrl_c_during_an_answer_stops_only_the_answer(launched: User) -> None:
    launched.run("links", "slow", "all", "--latency", "250ms")
    chat = launched.start("chat", "Who are you?")
    wait_for(lambda: launched.status()["speed"]["requests_active"], "it answers")
    chat.send_signal(signal.SIGINT)
    _, err = chat.communicate(timeout=COMMAND_S)
    assert chat.returncode == 130
    assert "Traceback" not in err
    wait_for(lambda: not launched.status()["speed"]["requests_active"], "slot free")
    assert launched.status()["state"] == "serving"
    launched.run("links", "reset")


def test_many_clients_start_one_controller(user: User) -> None:
    """A stale socket in the way, four commands at once: one controller answers all."""
    runtime = user.home / "run" / "dllm-tui"
    runtime.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(runtime / "controller.sock"))
    (user.home / "state" / "dllm-tui" / "run" / "old").mkdir(parents=True)
    commands = [user.start("status", "--json") for _ in range(4)]
    for command in commands:
        _, err = command.communicate(timeout=COMMAND_S)
        assert command.returncode == 0, err

    def controllers() -> int:
        return len(with_word(user.processes(), "backends.controller"))

    wait_for(lambda: controllers() == 1, "the losers of the race are gone", 60)
    assert (runtime / "controller.sock").stat().st_mode & 0o777 == 0o600


def _fill(file: Path) -> None:
    with file.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        while stream.write(b"x" * 512):
            pass


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_disk_is_told(user: User, demo_model: str) -> None:
    """No room for process directories: a sentence, nothing started."""
    state = user.home / "state"
    state.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(state)], check=True
    )
    try:
        _fill(state / "filler")
        refused = user.run("up", "--model", demo_model, "--detach", code=1)
        assert "space" in refused.stderr
        wait_for(lambda: not engine_processes(user), "nothing was started, or ended")
        user.stop()
    finally:
        subprocess.run(["umount", "-l", str(state)], check=True)


def test_chat_waits_while_cluster_is_brought_up(launched: User) -> None:
    """Right after its controller was killed, and while a worker is started again."""
    os.kill(launched.status()["controller_pid"], signal.SIGKILL)
    assert launched.json("chat", "What is a split?")["text"]
    launched.kill("worker1")
    assert launched.json("chat", "What is a split?")["text"]
    launched.wait_serving()


def test_hang_up_ends_a_foreground_cluster(user: User, demo_model: str) -> None:
    with Terminal(user, "up", "--model", demo_model, "--workers", "2") as terminal:
        wait_for(lambda: engine_processes(user), "the engine started")
        terminal.close()
        user.assert_nothing_left()


def test_hang_up_of_the_console_closes_nothing(launched: User) -> None:
    """It ends the console and leaves the cluster serving."""
    server = launched.pid("llama-server")
    for deaf in (False, True):
        with Terminal(launched, deaf=deaf) as terminal:
            terminal.wait_for(b"serving")
            terminal.close()
            terminal.process.wait(30)
        assert launched.pid("llama-server") == server
        assert launched.status()["state"] == "serving"


# --- A process that something holds is told at once, and again when it goes on ---

TOLD = {signal.SIGSTOP: "not responding", signal.SIGCONT: "running"}
IDLE_S = 5.0
IDLE_PART_MAX = 0.02


def state(user: User, name: str) -> str:
    (process,) = [p for p in user.status()["processes"] if p["name"] == name]
    return str(process["state"])


def test_each_is_told(launched: User) -> None:
    names = ("worker1", "relay-worker1", "llama-server", "api-gateway")
    for name, (number, told) in product(names, TOLD.items()):
        os.kill(launched.running(name), number)
        wait_for(lambda: state(launched, name) == told, f"{name} is {told}")  # noqa: B023
    events = launched.run("events").stdout
    for name in names:
        assert f"{name} does not respond" in events
        assert f"{name} responds again" in events


def test_looking_costs_an_idle_controller_nothing(launched: User) -> None:
    controller = psutil.Process(launched.status()["controller_pid"])
    busy = [controller, *controller.children(recursive=True)]

    def idles() -> bool:
        """Not until what the tests before have asked for is done."""
        before_s = sum(sum(p.cpu_times()[:2]) for p in busy)
        time.sleep(IDLE_S)
        used_s = sum(sum(p.cpu_times()[:2]) for p in busy) - before_s
        print("part of a processor", used_s / IDLE_S)
        return used_s / IDLE_S < IDLE_PART_MAX

    wait_for(idles, f"less than {IDLE_PART_MAX:.0%} of a processor")
