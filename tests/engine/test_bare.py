"""A bare peer: an rpc-server that somebody else started, known by its address."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest

from backends.engine.install import find_engine
from backends.paths import user_paths
from tests.engine.conftest import COMMAND_S, User, wait_for
from tests.native.stock import free_port

ASK = "Who are you?"


class Somebody:
    def __init__(self) -> None:
        self.port = free_port()
        self.start()

    def start(self) -> None:
        worker = find_engine(None, user_paths()).worker_path
        self.process = subprocess.Popen(
            [worker, "-H", "127.0.0.1", "-p", str(self.port), "-d", "CPU"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_for(self.listens, "it listens")

    def listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def somebody() -> Iterator[Somebody]:
    someone = Somebody()
    yield someone
    someone.end()


def add(user: User, somebody: Somebody) -> str:
    address = f"127.0.0.1:{somebody.port}"
    return user.run("peers", "add", "box", "--bare", address).stdout


def test_it_serves_and_stays(user: User, somebody: Somebody, demo_model: str) -> None:
    user.run("up", "--model", demo_model, "--workers", "1", "--detach")
    alone = user.ask(ASK)
    user.run("stop")
    add(user, somebody)
    user.run("up", "--model", demo_model, "--peer", "box", "--detach")
    assert user.ask(ASK) == alone
    (link,) = wait_for(
        lambda: [k for k in user.status()["links"] if k["round_trips_per_token"]],
        "its passes are judged",
    )
    assert link["mode"] == "metered"
    assert link["protocol"]
    assert link["round_trips_per_token"] == 1
    user.stop()
    assert somebody.process.poll() is None


@pytest.mark.trial
def test_one_that_is_at_work_is_not_asked_whether_it_is_there(
    user: User, somebody: Somebody, demo_model: str
) -> None:
    """It keeps two connections waiting, and takes no third before its client leaves."""
    add(user, somebody)
    user.run("up", "--model", demo_model, "--peer", "box", "--detach")
    again = ("--peer", "box", "--context", "512", "--replace", "--detach")
    for relay in (("--relay", "off"), ()):
        user.run("up", "--model", demo_model, *again, *relay)
        assert user.ask(ASK)
    server = user.running("llama-server")
    for _ in range(3):
        user.kill_controller()
        user.wait_serving()
    assert user.running("llama-server") == server


@pytest.mark.trial
def test_it_may_have_a_name(user: User, somebody: Somebody, demo_model: str) -> None:
    user.run("peers", "add", "box", "--bare", f"localhost:{somebody.port}")
    user.run("up", "--model", demo_model, "--peer", "box", "--detach")
    assert user.ask(ASK)


def test_its_end_is_blamed(user: User, somebody: Somebody, demo_model: str) -> None:
    add(user, somebody)
    user.run("up", "--model", demo_model, "--peer", "box", "--detach")
    somebody.end()
    chat = user.start("chat", ASK)
    chat.communicate(timeout=COMMAND_S)
    wait_for(lambda: user.status()["state"] == "failed", "failed")
    assert "box is gone" in user.status()["failure"]["what"]
    assert "connection refused" in user.status()["failure"]["what"]


@pytest.mark.trial
def test_one_that_another_client_holds_is_told_and_survives(
    user: User, somebody: Somebody
) -> None:
    """A stock rpc-server dies of a client that leaves before its answer has come."""
    with socket.create_connection(("127.0.0.1", somebody.port)):
        assert "another client may hold it" in add(user, somebody).lower()
    wait_for(lambda: user.json("peers", "list")[0]["state"] == "ready", "it answers")
    assert somebody.process.poll() is None
    user.run("stop")
    time.sleep(0.5)
    assert somebody.process.poll() is None


def test_what_is_no_rpc_server_is_told(user: User) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        told = user.run("peers", "add", "box", "--bare", f"127.0.0.1:{port}")
    assert "does not answer as an rpc-server" in told.stdout
    wrong = user.run("peers", "add", "x", "--bare", "nonsense", code=2)
    assert "nonsense" in wrong.stderr
    user.run("stop")


@pytest.mark.trial
def test_suspended_one_does_not_hang_a_command(user: User, somebody: Somebody) -> None:
    somebody.process.send_signal(signal.SIGSTOP)
    assert "does not answer" in add(user, somebody)
    somebody.process.send_signal(signal.SIGCONT)
    wait_for(lambda: user.json("peers", "list")[0]["state"] == "ready", "it answers")
