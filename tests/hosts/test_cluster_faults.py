"""What breaks while a cluster over SSH serves: a sentence each, and no orphan."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import psutil

from tests.engine.conftest import wait_for
from tests.hosts.test_cluster import MODEL, answer, prepared, user

if TYPE_CHECKING:
    from tests.hosts.network import Network
    from tests.hosts.user import HeadUser

__all__ = ["user"]


def serve(user: HeadUser, *names: str) -> None:
    prepared(user, *names)
    peers = [part for name in names for part in ("--peer", name)]
    user.run("up", "--model", MODEL, *peers, "--detach")


def failure(user: HeadUser) -> dict[str, Any]:
    wait_for(lambda: user.status()["state"] == "failed", "failed", 120)
    found: dict[str, Any] = user.status()["failure"]
    return found


def state_of(user: HeadUser, name: str) -> str:
    return next(
        str(p["state"]) for p in user.json("peers", "list") if p["name"] == name
    )


def test_a_killed_worker_is_blamed(network: Network, user: HeadUser) -> None:
    serve(user, "ada", "bob")
    network.peer("bob").run(["pkill", "-9", "ggml-rpc-server"])
    found = failure(user)
    assert "bob was killed by SIGKILL" in found["what"]
    assert found["log_tail"]
    wait_for(lambda: not network.peer("ada").processes(), "nothing left on ada")


def test_a_rebooted_peer(network: Network, user: HeadUser) -> None:
    serve(user, "ada", "bob")
    network.peer("bob").kill_everything()
    assert "bob" in failure(user)["what"]
    wait_for(lambda: state_of(user, "bob") == "ready", "bob is back")
    wait_for(lambda: not network.peer("bob").processes(), "nothing left on bob")
    wait_for(lambda: not network.peer("ada").processes(), "nothing left on ada")
    user.run("up", "--model", MODEL, "--peer", "ada", "--peer", "bob", "--detach")
    assert answer(user)


def test_a_cable_out_for_a_while_only_pauses(network: Network, user: HeadUser) -> None:
    serve(user, "ada", "bob")
    before = answer(user)
    network.peer("bob").link_down()
    chat = user.start("chat", "Who are you?", "--temperature", "0")
    wait_for(
        lambda: any("no answer for" in p["note"] for p in user.json("peers", "list")),
        "the silence is told",
    )
    time.sleep(18)
    assert user.status()["state"] == "serving"
    network.peer("bob").link_up()
    out, err = chat.communicate(timeout=120)
    assert chat.returncode == 0, err
    assert out.strip() == before.strip()
    assert user.status()["state"] == "serving"


def test_sshd_stopped_and_back_is_not_noticed_by_what_runs(
    network: Network, user: HeadUser
) -> None:
    serve(user, "ada")
    network.peer("ada").stop_sshd()
    found = failure(user)
    assert "ada" in found["what"]
    network.peer("ada").start_sshd()
    wait_for(lambda: state_of(user, "ada") == "ready", "ada is back")
    wait_for(lambda: not network.peer("ada").processes(), "what was left is stopped")


def test_a_killed_controller_starts_again_what_lost_its_tunnels(
    network: Network, user: HeadUser
) -> None:
    serve(user, "ada", "bob")
    before = answer(user)
    workers = {user.pid("ada"), user.pid("bob")}
    killed = user.status()["controller_pid"]
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: not psutil.pid_exists(killed), "it is gone")
    after = wait_for(
        lambda: (s := user.status())["state"] == "serving" and s, "serving again", 120
    )
    assert after["controller_pid"] != killed
    assert {user.pid("ada"), user.pid("bob")} == workers, "the workers did not notice"
    assert "tunnel" in after["message"]
    assert answer(user) == before


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


def test_a_head_on_a_peer_outlives_the_controller(
    network: Network, user: HeadUser
) -> None:
    prepared(user, "ada")
    user.run("peers", "copy", "ada", MODEL)
    both = ("--head", "ada", "--peer", "ada")
    user.run("up", "--model", MODEL, *both, "--detach")
    before = answer(user)
    server = user.pid("llama-server")
    killed = user.status()["controller_pid"]
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: not psutil.pid_exists(killed), "it is gone")
    wait_for(lambda: user.status()["state"] == "serving", "adopted", 120)
    assert user.pid("llama-server") == server, "nothing there needed our tunnels"
    assert answer(user) == before


def test_a_peer_gone_for_good_is_named_and_the_rest_stopped(
    network: Network, user: HeadUser
) -> None:
    serve(user, "ada", "bob")
    network.peer("bob").power_off()
    try:
        found = failure(user)
        assert "bob" in found["what"]
        assert found["hint"]
        wait_for(lambda: not network.peer("ada").processes(), "nothing left on ada")
        assert state_of(user, "bob") == "unreachable"
        refused = user.run("up", "--model", MODEL, "--peer", "bob", "--detach", code=1)
        assert "bob cannot take part now" in refused.stderr
    finally:
        network.peer("bob").power_on()


def test_a_controller_killed_with_its_peers_stops_them_when_told(
    network: Network, user: HeadUser
) -> None:
    serve(user, "ada")
    os.kill(user.status()["controller_pid"], signal.SIGKILL)
    user.run("stop")
    wait_for(lambda: not network.peer("ada").processes(), "nothing left on ada")
