"""Machines behind two routers meet by a relay of ours: from a token to an answer."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.engine.conftest import COMMAND_S, wait_for
from tests.hosts.conftest import CACHE
from tests.hosts.nat import PUBLIC, HomeUser, Internet, missing_for_nat
from tests.hosts.user import MODEL, QUESTION
from tests.kit.processes import kill_until_none
from tests.kit.waiting import PATIENCE_S
from tests.unit.mesh.needing_iroh import needs_iroh

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = needs_iroh
MISSED_S = 15.0
"""iroh's first tries are over then."""
RETRIED_S = 60.0
"""So often iroh looks for a better path than that by a relay."""
# Without chance: the same as long as nothing is lost, or comes twice.
CERTAIN = ("chat", "Tell a long story.", "--temperature", "0", "--max-tokens", "300")


class Meeting:
    """A lent machine in one home, a console in the other, a relay between."""

    def __init__(self, folder: Path) -> None:
        self.internet = Internet()
        self.lender_home, self.console_home = self.internet.homes
        spaces = (
            self.internet.public,
            self.lender_home.machine,
            self.console_home.machine,
        )
        users = [
            HomeUser(space, folder / name, CACHE)
            for space, name in zip(spaces, ("relay", "lender", "console"), strict=True)
        ]
        self.host, self.lender, self.console = users
        (models := self.lender.home / ".models").mkdir()
        shutil.copy(MODEL, models)
        self._running: list[subprocess.Popen[str]] = []

    def background(self, user: HomeUser, *args: str) -> subprocess.Popen[str]:
        log = (user.home / "log").open("w")
        process = user.start(*args, stdout=log, stderr=log)
        self._running.append(process)
        return process

    def start_relay(self, used_by: HomeUser | None = None) -> None:
        self.background(self.host, "relay")
        access = self.host.run("relay", "access", "--address", PUBLIC).stdout
        wait_for(lambda: "a relay at port" in self.log(self.host), "the relay")
        (used_by or self.lender).given(access, "relay", "use", "-")

    def lend(self, *options: str) -> subprocess.Popen[str]:
        name = ("--name", "nuc", "--headless", *options)
        return self.background(self.lender, "worker", "run", *name)

    def token(self) -> str:
        def made() -> str:
            process = self.lender.fork("worker", "invite")
            token, _ = process.communicate(timeout=COMMAND_S)
            return token.strip()

        wait_for(lambda: "reached by QUIC, too" in self.log(self.lender), "QUIC there")
        return str(wait_for(made, "a token"))

    def meet(self) -> dict[str, Any]:
        self.start_relay()
        self.lend()
        self.console.given(self.token(), "peers", "add", "-")
        return self.peer()

    def join(self, console: HomeUser, *options: str) -> None:
        """Have the lent machine dial a console."""
        token = console.run(
            "peers", "invite", "--name", "nuc", "--no-wait", *options
        ).stdout.strip()
        process = self.lender.start(
            "join",
            "-",
            "--headless",
            stdin=subprocess.PIPE,
            stdout=(self.lender.home / "log").open("a"),
        )
        assert process.stdin is not None
        process.stdin.write(token + "\n")
        process.stdin.close()
        self._running.append(process)
        wait_for(lambda: self.peer()["state"] == "ready", "the peer ready")

    def peer(self) -> dict[str, Any]:
        """As the controller itself tells it: a command takes long to start."""

        def looked_at() -> list[dict[str, Any]]:
            peers = self.console.look()["peers"]
            others = [one for one in peers if one["transport"] != "local"]
            return [one for one in others if one["state"] != "probing"]

        (peer,) = wait_for(looked_at, "a look at the peer")
        return dict(peer)

    def path(self) -> Any:
        return self.peer()["path"]

    def serve(self) -> None:
        self.console.up(MODEL, "--peer", "nuc")

    def answer(self) -> str:
        return self.console.run("chat", QUESTION).stdout

    @property
    def pids(self) -> dict[str, int]:
        return {p["name"]: p["pid"] for p in self.console.status()["processes"]}

    def answers_until(self, condition: Callable[[], object], what: str) -> None:
        """Ask again and again meanwhile, so that it comes about amid an answer."""
        with self.unbroken() as expected:
            deadline = time.monotonic() + PATIENCE_S
            while not condition():
                assert time.monotonic() < deadline, what
                assert self.console.run(*CERTAIN).stdout == expected
            assert self.console.run(*CERTAIN).stdout == expected

    @contextlib.contextmanager
    def amid_an_answer(self) -> Iterator[None]:
        """Something that happens while one comes, and breaks neither that nor more."""
        with self.unbroken() as expected:
            asking = self.console.start(*CERTAIN)
            assert asking.stdout is not None
            assert asking.stderr is not None
            begun = asking.stdout.read(1)
            yield
            assert asking.poll() is None
            # Not by ``communicate``, which skips what was read ahead of that letter.
            rest, err = asking.stdout.read(), asking.stderr.read()
            assert begun + rest == expected, err

    def saves(self) -> None:
        """See that no weights cross, and what else does is compressed."""
        (link,) = self.console.status()["links"]
        assert link["mode"] == "pair"
        assert link["weight_bytes_home"] > 0
        assert link["weight_bytes_sent"] == 0
        assert link["wire_bytes_up"] < link["bytes_up"] - link["weight_bytes_home"]

    @contextlib.contextmanager
    def unbroken(self) -> Iterator[str]:
        """The answer to ``CERTAIN``. Nothing may start again meanwhile."""
        expected, pids = self.console.run(*CERTAIN).stdout, self.pids
        yield expected
        assert self.pids == pids
        assert self.log(self.lender).count("has connected") == 1

    def log(self, user: HomeUser) -> str:
        return (user.home / "log").read_text()

    def close(self) -> None:
        for user in (self.host, self.lender, self.console):
            log = user.home / "log"
            print(user.home.name, log.read_text() if log.exists() else "", sep=": ")
        log = self.console.home / "state/dllm-tui/controller.log"
        print(log.read_text()[-4000:] if log.exists() else "")
        with contextlib.suppress(BaseException):
            self.console.run("down")
        for process in self._running:
            process.terminate()
            process.wait(30)
        for user in (self.host, self.lender, self.console):
            kill_until_none(user.processes)
        self.internet.close()


@pytest.fixture
def meeting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Meeting]:
    if reason := missing_for_nat():
        pytest.skip(reason)
    # Sockets live below.
    made = Meeting(tmp_path_factory.mktemp("n"))
    try:
        yield made
    finally:
        made.close()


def test_from_a_token_to_an_answer_through_two_routers(meeting: Meeting) -> None:
    begun = time.monotonic()
    assert meeting.meet()["state"] == "ready"
    paired_s = time.monotonic() - begun
    path = wait_for(lambda: (p := meeting.path()) and not p["relayed"] and p, "direct")
    direct_s = time.monotonic() - begun
    assert path["address"].startswith("203.0.113.10:")
    meeting.serve()
    assert meeting.answer()
    print(f"paired {paired_s:.1f} s, direct {direct_s:.1f} s")
    print(f"answered {time.monotonic() - begun:.1f} s; {path}")
    meeting.saves()
    shown = meeting.console.run("peers", "show", "nuc").stdout
    assert "QUIC direct to 203.0.113.10:" in shown


@pytest.mark.trial
def test_routers_that_use_another_port_for_each_are_met_by_the_relay(
    meeting: Meeting,
) -> None:
    for home in meeting.internet.homes:
        home.masquerade("fully-random")
    assert meeting.meet()["state"] == "ready"
    assert meeting.path()["relayed"]
    meeting.serve()
    assert meeting.answer()
    meeting.saves()
    assert meeting.path()["relayed"]
    assert " relay " in meeting.console.run("peers", "list").stdout


@pytest.mark.trial
def test_routers_that_missed_each_other_at_first_meet_within_minutes(
    meeting: Meeting,
) -> None:
    """QUIC tries again by itself, amid what flows; nothing of ours starts it."""
    homes = meeting.internet.homes
    for home, other in zip(homes, reversed(homes), strict=True):
        home.block_udp_to(other)
    assert meeting.meet()["state"] == "ready"
    meeting.serve()
    time.sleep(MISSED_S)
    assert meeting.path()["relayed"]
    with meeting.unbroken():
        for home in homes:
            home.masquerade()
        opened = time.monotonic()
        wait_for(lambda: not meeting.path()["relayed"], "direct", 2 * RETRIED_S)
    print(f"direct {time.monotonic() - opened:.0f} s after they could meet")


@pytest.mark.trial
def test_without_udp_it_goes_by_the_relays_tcp(meeting: Meeting) -> None:
    for home in meeting.internet.homes:
        home.block("udp")
    assert meeting.meet()["state"] == "ready"
    assert meeting.path()["relayed"]
    meeting.serve()
    assert meeting.answer()


@pytest.mark.trial
def test_a_flap_of_five_seconds_breaks_nothing(meeting: Meeting) -> None:
    meeting.meet()
    wait_for(lambda: (p := meeting.path()) and not p["relayed"], "direct")
    meeting.serve()
    with meeting.amid_an_answer(), meeting.lender_home.cut_off():
        time.sleep(5.0)
    wait_for(lambda: meeting.peer()["silent_since"] is None, "the peer back")
    assert meeting.answer()
    # As where a console is gone for long, or its owner pauses.
    assert "of its programs" not in meeting.log(meeting.lender)


@pytest.mark.trial
def test_another_address_breaks_nothing(meeting: Meeting) -> None:
    meeting.meet()
    wait_for(lambda: (p := meeting.path()) and not p["relayed"], "direct")
    meeting.serve()
    with meeting.amid_an_answer():
        meeting.console_home.move_to("192.168.7.9")
    assert meeting.path()


@pytest.mark.trial
def test_a_cable_between_both_is_taken_amid_answers(meeting: Meeting) -> None:
    lender, console = meeting.lender_home.machine, meeting.console_home.machine
    lender.cable("cable", console, "cable")
    console.ip("link set dev cable down")
    lender.ip("addr add 10.77.0.1/24 dev cable")
    console.ip("addr add 10.77.0.2/24 dev cable")
    meeting.meet()
    meeting.serve()
    assert meeting.path()
    console.ip("link set dev cable up")
    meeting.answers_until(lambda: meeting.path() is None, "TCP")
    assert " tcp " in meeting.console.run("peers", "list").stdout
    (link,) = meeting.console.status()["links"]
    assert link["reconnects"] >= 1
    # And back, when it is pulled out.
    console.ip("link set dev cable down")
    meeting.answers_until(meeting.path, "QUIC")


def test_a_machine_joins_through_two_routers(meeting: Meeting) -> None:
    meeting.start_relay(meeting.console)
    meeting.join(meeting.console)
    # Routers may miss each other on a busy machine: then the relay carries it.
    assert wait_for(meeting.path, "QUIC")
    meeting.serve()
    assert meeting.answer()


@pytest.mark.trial
def test_where_nothing_comes_in_that_side_joins(meeting: Meeting) -> None:
    """Without a relay; its router lets no TCP out, and no UDP in but answers."""
    meeting.lender_home.block("tcp")
    meeting.lend()
    token = meeting.token()
    console = meeting.console = meeting.host
    refused = console.start("peers", "add", "-", stdin=subprocess.PIPE)
    _, why = refused.communicate(token, timeout=COMMAND_S)
    assert refused.returncode != 0
    assert "QUIC" in why
    meeting.join(console, "--address", PUBLIC)
    path = wait_for(meeting.path, "QUIC")
    assert not path["relayed"]
    assert path["address"].startswith("203.0.113.10:")
    meeting.serve()
    assert meeting.answer()


@pytest.mark.trial
def test_a_killed_worker_is_told_within_seconds_and_found_again(
    meeting: Meeting,
) -> None:
    meeting.start_relay()
    lending = meeting.lend()
    meeting.console.given(meeting.token(), "peers", "add", "-")
    wait_for(lambda: meeting.peer()["state"] == "ready", "the peer ready")
    # nsenter has become the program itself.
    os.kill(lending.pid, signal.SIGKILL)
    killed_at = time.time()
    peer = wait_for(
        lambda: (p := meeting.peer()) and p["silent_since"] is not None and p,
        "the silence",
    )
    told_s = time.time() - killed_at
    assert "no answer for" in peer["note"]
    meeting.lend()
    wait_for(
        lambda: (p := meeting.peer())["silent_since"] is None and p["path"],
        "the worker that started again",
        2 * PATIENCE_S,
    )
    again_s = time.time() - killed_at
    print(f"told {told_s:.1f} s after its end, back after {again_s:.0f} s")
