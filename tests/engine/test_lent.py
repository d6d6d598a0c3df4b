"""A machine that its owner lends: from a token to an answer, and its loss."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from backends.demo import MODEL_PATH
from backends.mesh.dialling import reachable
from backends.mesh.discovery import near
from tests.engine.conftest import COMMAND_S, User, somebody, wait_for
from tests.engine.test_streams_go_on import CHAT, COMPLETIONS, Answer
from tests.native.stock import free_port

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


def outward_address() -> str:
    """The address of the default route; others come and go with tests of hosts."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))  # Sends nothing.
        except OSError:
            return reachable("0.0.0.0")[0]
        return str(probe.getsockname()[0])


class Owner:
    """Somebody with a machine to lend."""

    def __init__(self, user: User) -> None:
        self.user = user
        self.port = free_port()
        self.process: subprocess.Popen[str] | None = None

    def begins(self, *args: str) -> None:
        lends_others = ("--models", str(MODEL_PATH.parent))
        options = ("--headless", *(() if "--models" in args else lends_others))
        # Its processes are those of its home: nothing else of the test is.
        with (self.user.home / "worker.log").open("a") as log:
            self.process = self.user.start(*args, *options, stdout=log, stderr=log)

    def lends(self, *more: str, at: str = "127.0.0.1") -> None:
        self.begins("worker", "--listen", f"{at}:{self.port}", *more)
        wait_for(lambda: self.told.get("pid") == self.pid, "the worker")

    @property
    def told(self) -> dict[str, object]:
        file = self.user.home / "data/dllm-tui/consoles.json"
        return dict(json.loads(file.read_text())) if file.exists() else {}

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def token(self) -> str:
        return self.user.run("worker", "invite").stdout.strip()

    @property
    def log(self) -> str:
        return (self.user.home / "worker.log").read_text()

    def engines(self) -> list[psutil.Process]:
        found = []
        for process in self.user.processes():
            with contextlib.suppress(psutil.Error):
                # One that ended has no words until it is waited for.
                if any("rpc-server" in word for word in process.cmdline()[:1]):
                    found.append(process)
        return found

    def ends(self) -> None:
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        self.process.wait(30)


@pytest.fixture
def owner() -> Iterator[Owner]:
    with somebody() as user:
        made = Owner(user)
        yield made
        print(made.log)
        made.ends()
        user.assert_nothing_left()


def workers_of(user: User) -> set[str]:
    """The workers that answers come through now."""
    return {link["worker"] for link in user.status()["links"]}


def test_from_a_token_to_an_answer_in_which_the_worker_is_killed(
    user: User, owner: Owner, demo_model: str
) -> None:
    """Its rpc-server ends with it: when it is back, the answer goes on there."""
    owner.lends()
    token = owner.token()
    begun = time.monotonic()
    user.run("peers", "add", token, "--name", "lent")
    user.up(demo_model, "--workers", "1", "--peer", "lent")
    answer = Answer(user, COMPLETIONS, n_predict=20)
    print(f"from the token to 20 tokens: {time.monotonic() - begun:.1f} s")
    assert answer.text
    assert "lent" in workers_of(user)
    (link,) = (one for one in user.status()["links"] if one["worker"] == "lent")
    assert link["mode"] == "pair"
    # Its owner has the model: of the weights nothing crosses.
    assert link["weight_bytes_home"]
    used = user.run("peers", "add", token, "--name", "again", code=1)
    assert "used already" in used.stderr
    assert len(owner.engines()) == 1
    expected = Answer(user, CHAT).text

    def killed() -> None:
        os.kill(owner.pid, signal.SIGKILL)
        assert owner.process is not None
        owner.process.wait(30)
        owner.lends()

    answer = Answer(user, CHAT, 10, killed)
    assert answer.text == expected
    assert answer.is_done
    wait_for(lambda: "lent" in workers_of(user), "its return")
    user.stop()
    wait_for(lambda: not owner.engines(), "the end of what ran there")


@pytest.mark.trial
def test_a_model_is_copied_where_its_owner_lets_it(
    user: User, owner: Owner, demo_model: str
) -> None:
    folder = owner.user.home / "models"
    folder.mkdir()
    owner.lends("--models", str(folder))
    user.run("peers", "add", owner.token(), "--name", "lent")
    refused = user.run("models", "copy", demo_model, "lent", code=1)
    assert "only with --models-writable" in refused.stderr + refused.stdout
    owner.ends()
    owner.lends("--models", str(folder), "--models-writable")

    def is_back() -> bool:
        return bool(user.json("peers", "list")[0]["state"] == "ready")

    wait_for(is_back, "its return")
    user.run("models", "copy", demo_model, "lent")
    (copy,) = folder.iterdir()
    assert copy.read_bytes() == Path(demo_model).read_bytes()
    assert "same" in user.run("models", "verify", demo_model, "--peer", "lent").stdout
    user.stop()


@pytest.mark.trial
def test_data_goes_directly_where_an_address_is_open(
    user: User, owner: Owner, demo_model: str
) -> None:
    address = outward_address()
    if address == "127.0.0.1" or ":" in address:
        pytest.skip("this machine has no address but the loopback's")
    owner.lends(at=address)
    user.run("peers", "add", owner.token(), "--name", "lent")
    user.up(demo_model, "--workers", "1", "--peer", "lent")
    assert Answer(user, COMPLETIONS, n_predict=20).text
    (link,) = (one for one in user.status()["links"] if one["worker"] == "lent")
    assert link["way"] == "direct", link["way_reason"]
    user.stop()


def test_a_machine_joins_from_its_side(
    user: User, owner: Owner, demo_model: str
) -> None:
    port = str(free_port())
    user.run("config", "set", "join_port", port)
    waiting = user.start("peers", "invite", "--address", "127.0.0.1", "--name", "lent")
    assert waiting.stdout is not None
    token = waiting.stdout.readline().strip()
    owner.begins("join", token)
    wait_for(lambda: "Joined" in owner.log, "the pairing")
    told, _ = waiting.communicate(timeout=COMMAND_S)
    assert waiting.returncode == 0
    assert "ready" in told
    user.up(demo_model, "--workers", "1", "--peer", "lent")
    assert Answer(user, COMPLETIONS, n_predict=20).text
    assert "lent" in workers_of(user)
    # A new controller is dialled again.
    user.kill_controller()
    user.run("status")
    user.wait_serving()
    assert Answer(user, COMPLETIONS, n_predict=20).text
    user.stop()


def serving(user: User, owner: Owner, model: str, *limits: str) -> str:
    """Serve a model with one worker here and one lent; its undisturbed answer."""
    owner.lends(*limits)
    user.run("peers", "add", owner.token(), "--name", "lent")
    user.up(model, "--workers", "1", "--peer", "lent")
    return Answer(user, CHAT).text


@pytest.mark.trial
def test_a_pause_in_the_middle_of_an_answer(
    user: User, owner: Owner, demo_model: str
) -> None:
    """It goes on without that machine, as with any that is lost."""
    serving(user, owner, demo_model)
    # The command takes as long as some hundred tokens.
    expected = Answer(user, CHAT, max_tokens=900).text

    def paused() -> None:
        owner.user.run("worker", "pause")

    answer = Answer(user, CHAT, 50, paused, max_tokens=900)
    assert answer.text == expected
    assert answer.is_done
    wait_for(lambda: not owner.engines(), "the end of what ran there")
    assert "lent" not in workers_of(user)
    (peer,) = user.json("peers", "list")
    assert peer["note"] == "lent is not lent now: its owner has paused it"
    assert "1 in the middle of a stream" in user.run("events").stdout
    owner.user.run("worker", "resume")
    wait_for(lambda: "lent" in workers_of(user), "its return", 120)
    user.stop()


@pytest.mark.trial
def test_a_killed_worker_frees_its_machine(
    user: User, owner: Owner, demo_model: str
) -> None:
    """It ends what ran for others, though nobody starts it again."""
    serving(user, owner, demo_model)
    assert owner.engines()
    os.kill(owner.pid, signal.SIGKILL)
    assert owner.process is not None
    owner.process.wait(30)
    wait_for(lambda: not owner.user.processes(), "the end of all that ran there")
    # A console knows only once it can look again.
    owner.lends()
    wait_for(lambda: user.json("peers", "list")[0]["state"] == "ready", "its return")
    user.stop()


def test_found_on_the_network_and_paired_by_digits(
    user: User, owner: Owner, demo_model: str
) -> None:
    # Nobody is told of an address that others cannot reach.
    (address,) = near([outward_address()]) or pytest.skip("no private address")
    owner.lends(at=address)
    place = f"{address}:{owner.port}"

    def is_found() -> bool:
        return any(one["address"] == place for one in user.json("peers", "discover"))

    wait_for(is_found, "the announcement")
    begun = time.monotonic()
    adding = subprocess.Popen(
        ["dllm-tui", "peers", "add", place, "--name", "lent"],
        env=user.env,
        cwd=user.home,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_for(lambda: owner.told.get("asking"), "the question")
    asking = owner.told["asking"]
    assert isinstance(asking, dict)
    owner.user.run("worker", "accept", str(asking["digits"]))
    told, _ = adding.communicate("y\n", timeout=COMMAND_S)
    assert adding.returncode == 0, told
    assert f"{asking['digits'][:3]} {asking['digits'][3:]}" in told
    user.up(demo_model, "--workers", "1", "--peer", "lent")
    assert Answer(user, COMPLETIONS, n_predict=20).text
    print(f"from digits to 20 tokens: {time.monotonic() - begun:.1f} s")
    assert "lent" in workers_of(user)
    (found,) = (
        one for one in user.json("peers", "discover") if one["address"] == place
    )
    assert found["peer"] == "lent"
    user.stop()


@pytest.mark.trial
def test_its_rpc_server_is_killed_in_the_middle_of_an_answer(
    user: User, owner: Owner, demo_model: str
) -> None:
    expected = serving(user, owner, demo_model, "--memory", "4GiB", "--devices", "CPU")
    answer = Answer(user, CHAT, 50, lambda: owner.engines()[0].kill())
    assert answer.text == expected
    assert "lent" in workers_of(user)
    told = user.run("up", demo_model, "--head", "lent", "--replace", code=1).stderr
    assert "lent" in told
    refused = user.run("peers", "setup", "lent", code=1).stderr
    assert "lent is lent by its owner" in refused
    user.stop()


@pytest.mark.trial
def test_two_consoles_use_one_machine(
    user: User, owner: Owner, demo_model: str
) -> None:
    owner.lends()
    with somebody() as other:
        for each in (user, other):
            each.run("peers", "add", owner.token(), "--name", "lent")
            each.up(demo_model, "--workers", "0", "--peer", "lent")
            assert Answer(each, COMPLETIONS, n_predict=5).text
        assert len(owner.engines()) == 2
        names = [one["name"] for one in owner.user.json("worker", "list")]
        assert len(set(names)) == 2
        owner.user.run("worker", "revoke", names[0])
        wait_for(lambda: len(owner.engines()) == 1, "the end of what ran for it")
        assert Answer(other, COMPLETIONS, n_predict=5).text
        other.stop()
    revoked = "lent lets this console in no more. Its owner has revoked it"
    wait_for(lambda: revoked in user.json("peers", "list")[0]["note"], "the reason")
    # What ran there for it has ended: nothing is left to be stopped.
    user.run("down")
    wait_for(lambda: not user.processes(), "the end of the controller")
