"""What breaks while a cluster over SSH serves: a sentence each, and no orphan."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.engine.conftest import wait_for
from tests.hosts.user import MODEL, answer, engine_folder, prepared

if TYPE_CHECKING:
    from tests.hosts.network import Network
    from tests.hosts.user import HeadUser


def serve(user: HeadUser, *names: str) -> None:
    prepared(user, *names)
    peers = [part for name in names for part in ("--peer", name)]
    user.run("up", "--model", MODEL, *peers, "--detach")


def state_of(user: HeadUser, name: str) -> str:
    return next(
        str(p["state"]) for p in user.json("peers", "list") if p["name"] == name
    )


def serving_again(user: HeadUser, why: str) -> dict[str, Any]:
    """The status once it serves again, and says why it did not for a while."""

    def again() -> dict[str, Any] | None:
        status: dict[str, Any] = user.status()
        mended = status["state"] == "serving" and why in status["message"]
        return status if mended else None

    found: dict[str, Any] = wait_for(again, f"serving again: {why}", 120)
    return found


def test_a_killed_worker_and_a_rebooted_peer_take_part_again_or_are_done_without(
    network: Network, user: HeadUser
) -> None:
    serve(user, "ada", "bob")
    before, worker = answer(user), user.pid("ada")
    bob, whole = network.peer("bob"), used(user.status())
    bob.run(["pkill", "-9", "ggml-rpc-server"])
    serving_again(user, "bob was killed by SIGKILL")
    assert user.pid("ada") == worker, "the others' workers have not noticed"
    assert answer(user) == before
    bob.kill_everything()
    serving_again(user, "bob")
    assert user.pid("ada") == worker
    assert answer(user) == before
    engine = engine_folder(bob)
    engine.rename(engine.parents[1] / "gone")
    bob.run(["pkill", "-9", "ggml-rpc-server"])
    status = serving_again(user, "went on without bob, 13 on ada/CPU")
    assert used(status) == {"ada/CPU": sum(whole.values())}
    assert answer(user) == before


def silent(user: HeadUser, name: str) -> bool:
    """Whether a peer is suspect, and no figure of it is shown."""
    peer = next(p for p in user.json("peers", "list") if p["name"] == name)
    suspect = peer["silent_since"] is not None
    assert not suspect or peer["rtt_ms"] is None
    return suspect


@pytest.mark.trial
def test_a_cable_out_for_less_than_a_minute_ends_nothing(
    network: Network, user: HeadUser
) -> None:
    serve(user, "ada", "bob")
    before = answer(user)
    network.peer("bob").link_down()
    down = time.monotonic()
    chat = user.start("chat", "Who are you?", "--temperature", "0")
    wait_for(lambda: silent(user, "bob"), "the silence is told")
    assert not silent(user, "ada")
    assert re.search(r"peer +bob .*no answer for \d+ s", user.run("status").stdout)
    time.sleep(45 - (time.monotonic() - down))
    assert user.status()["state"] == "serving"
    network.peer("bob").link_up()
    out, err = chat.communicate(timeout=120)
    assert chat.returncode == 0, err
    assert out.strip() == before.strip()
    assert user.status()["state"] == "serving"
    wait_for(lambda: not silent(user, "bob"), "it answers again")


@pytest.mark.trial
def test_a_peer_that_is_silent_is_not_waited_for(
    network: Network, user: HeadUser
) -> None:
    prepared(user, "ada")
    network.peer("ada").link_down()
    try:
        wait_for(lambda: silent(user, "ada"), "the silence is told")
        start = time.monotonic()
        refused = user.run("up", "--model", MODEL, "--peer", "ada", "--detach", code=1)
        assert time.monotonic() - start < 20
    finally:
        network.peer("ada").link_up()
    assert "ada" in refused.stderr
    assert "no answer for" in refused.stderr


@pytest.mark.trial
def test_sshd_stopped_and_back_ends_nothing(network: Network, user: HeadUser) -> None:
    """A lost session is a pause: the worker lives, and llama-server finds it again."""
    serve(user, "ada")
    before, worker = answer(user), user.pid("ada")
    network.peer("ada").stop_sshd()
    wait_for(lambda: user.status()["state"] != "serving", "it is noticed")
    assert user.status()["failure"] is None
    assert "ada" in user.status()["message"]
    network.peer("ada").start_sshd()
    serving_again(user, "ada")
    assert user.pid("ada") == worker
    assert answer(user) == before


@pytest.mark.trial
def test_a_killed_controller_starts_again_what_lost_its_tunnels(
    network: Network, user: HeadUser
) -> None:
    serve(user, "ada", "bob")
    before = answer(user)
    workers = {user.pid("ada"), user.pid("bob")}
    killed = user.kill_controller()
    after = user.wait_serving(120)
    assert after["controller_pid"] != killed
    assert {user.pid("ada"), user.pid("bob")} == workers, "the workers did not notice"
    assert "tunnel" in after["message"]
    assert answer(user) == before


@pytest.mark.trial
def test_two_heads_do_not_stop_each_others_workers(
    network: Network, user: HeadUser
) -> None:
    serve(user, "ada")
    other = type(user)(network, user.cache, state=network.home / "other")
    try:
        other.run("peers", "add", "ada")
        other.run("up", "--model", MODEL, "--peer", "ada", "--detach")
        assert answer(other) == answer(user)
        other.run("stop")
        assert answer(user)
    finally:
        other.run("stop")


def used(status: dict[str, Any]) -> dict[str, int]:
    """Layers by device, of those that have any."""
    shares = status["plan"]["split"]["shares"]
    return {s["device"]: s["layers"] for s in shares if s["layers"]}


@pytest.mark.trial
def test_a_peer_gone_for_long_is_done_without_until_it_is_back(
    network: Network, user: HeadUser
) -> None:
    serve(user, "ada", "bob")
    before, whole = answer(user), used(user.status())
    network.peer("bob").power_off()
    try:
        status = serving_again(user, "went on without it")
        assert "bob" in status["message"]
        assert used(status) == {"ada/CPU": sum(whole.values())}
        assert answer(user) == before
        assert state_of(user, "bob") == "unreachable"
        refused = user.run("up", "--model", MODEL, "--peer", "bob", "--detach", code=1)
        assert "bob cannot take part now" in refused.stderr
        user.kill_controller()
        user.wait_serving(120)
        assert used(user.status()) == {"ada/CPU": sum(whole.values())}
    finally:
        network.peer("bob").power_on()
    assert used(serving_again(user, "bob is back")) == whole
    assert answer(user) == before


@pytest.mark.trial
def test_a_controller_killed_with_its_peers_stops_them_when_told(
    network: Network, user: HeadUser
) -> None:
    serve(user, "ada")
    os.kill(user.status()["controller_pid"], signal.SIGKILL)
    user.run("stop")
    wait_for(lambda: not network.peer("ada").processes(), "nothing left on ada")
