"""A controller is replaced, lost and found again; what serves does not notice."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from urllib.parse import urlsplit

import psutil
import pytest

from backends.state import API_VERSION
from tests.engine.conftest import User, wait_for
from tests.kit.processes import with_word

pytestmark = pytest.mark.engine

EARLIER_RELEASE = """
import sys
import backends.controller.__main__ as controller
controller.API_VERSION = int(sys.argv[1])
sys.exit(controller.main())
"""


def serving_pids(user: User) -> dict[str, int]:
    return {p["name"]: p["pid"] for p in user.status()["processes"]}


def test_an_upgrade_replaces_the_controller_and_nothing_else(
    user: User, demo_model: str
) -> None:
    user.run("up", "--model", demo_model, "--workers", "2", "--detach")
    before = serving_pids(user)
    first = psutil.Process(user.status()["controller_pid"])
    first.send_signal(signal.SIGTERM)
    wait_for(lambda: not first.is_running(), "the first controller gone")
    earlier = subprocess.Popen(
        [sys.executable, "-c", EARLIER_RELEASE, str(API_VERSION - 1)], env=user.env
    )
    listening = user.home / "run" / "dllm-tui" / "controller.sock"
    wait_for(listening.exists, "the earlier release listening")
    # A command replaces it; who only asks it does not.
    status = user.json("status")
    assert earlier.wait(10) == 0
    assert status["controller_pid"] not in (first.pid, earlier.pid)
    user.wait_serving()
    assert serving_pids(user) == before
    user.stop()


def test_a_lost_runtime_directory_costs_no_cluster(user: User, demo_model: str) -> None:
    """As a session manager does at the last logout."""
    user.run("up", "--model", demo_model, "--workers", "2", "--detach")
    before = user.status()
    shutil.rmtree(user.home / "run" / "dllm-tui")
    after = user.status()
    assert after["controller_pid"] == before["controller_pid"]
    assert after["state"] == "serving"
    assert "layer" in user.run("chat", "What is a split?").stdout
    # The next controller finds the relays' figures too, where they were.
    psutil.Process(after["controller_pid"]).kill()

    def measured() -> list[str]:
        return [x["worker"] for x in user.status()["links"] if x["protocol"]]

    wait_for(lambda: measured() == ["worker1", "worker2"], "figures of both")
    user.stop()


def test_stop_ends_processes_whose_directories_are_lost(
    user: User, demo_model: str
) -> None:
    user.run("up", "--model", demo_model, "--workers", "1", "--detach")
    controller = psutil.Process(user.status()["controller_pid"])
    controller.kill()
    wait_for(lambda: not controller.is_running(), "the controller gone")
    shutil.rmtree(user.home / "state" / "dllm-tui" / "run")
    doctor = user.start("doctor")
    out, _ = doctor.communicate(timeout=60)
    assert "nobody looks after these" in out
    assert "Orphan(" not in out
    assert "worker1" in user.run("stop").stderr
    user.assert_nothing_left()


def test_of_two_launches_at_once_one_is_told(user: User, demo_model: str) -> None:
    splits = ("6,7", "5,8")
    ups = [
        user.start("up", "--model", demo_model, "--split", split, "--detach")
        for split in splits
    ]
    ends = [(up.communicate(timeout=120)[1], up.returncode) for up in ups]
    assert sorted(code for _, code in ends) == [0, 1], ends
    (lost,) = [said for said, code in ends if code]
    assert "Serving" not in lost
    assert demo_model in lost
    won = next(s for s, (_, code) in zip(splits, ends, strict=True) if not code)
    layers = user.status()["measured"]["layers"]
    assert ",".join(str(last - first + 1) for _, first, last in layers) == won
    user.stop()


def test_doctor_counts_a_taken_port_of_ones_own_choice(user: User) -> None:
    """The exit code says so too."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = user.home / "config" / "dllm-tui"
        config.mkdir(parents=True)
        port = taken.getsockname()[1]
        (config / "config.toml").write_text(f"api_port = {port}\n")
        said = user.run("doctor", code=1).stdout
    assert f"✗ api port     {port} is taken by" in said


class PortThief:
    """Takes a port as soon as a gateway is there that is about to."""

    def __init__(self, user: User, port: int) -> None:
        self._user = user
        self._port = port
        self._before = self._gateways()
        self._thread = threading.Thread(target=self._lie_in_wait)
        self.socket = socket.socket()
        # The connections of the server before may linger.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    def __enter__(self) -> PortThief:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        self.socket.close()

    def _gateways(self) -> set[int]:
        return {p.pid for p in with_word(self._user.processes(), "backends.gateway")}

    def _lie_in_wait(self) -> None:
        deadline = time.monotonic() + 30
        while self._gateways() <= self._before and time.monotonic() < deadline:
            time.sleep(0.001)
        with contextlib.suppress(OSError):
            self.socket.bind(("127.0.0.1", self._port))
            self.socket.listen()


def test_a_port_taken_at_the_last_moment_is_left_to_its_owner(
    user: User, demo_model: str
) -> None:
    launch = ("up", "--model", demo_model, "--workers", "1", "--detach")
    status = user.json(*launch)
    for _ in range(20):
        user.run("stop")
        # Which one is taken next depends on what other tests have by then.
        api_port = urlsplit(status["api_url"]).port
        assert api_port
        with PortThief(user, api_port):
            status = user.json(*launch)
        if status["message"]:
            break
    # Other tests take ports too: it may have been another's that was lost.
    taken = re.search(r"Port (\d+) is in use by", status["message"])
    assert taken, status["message"]
    assert "started again with another port" in status["message"]
    assert f":{taken[1]}/" not in status["api_url"]
    assert user.json("chat", "Who are you?")["text"]
