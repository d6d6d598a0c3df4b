"""From a name to a serving worker on other machines, one command line each."""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import psutil

from tests.engine.conftest import wait_for
from tests.hosts.user import MODEL, answer, answer_here, prepared
from tests.kit.processes import name_of, words_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.hosts.network import Network
    from tests.hosts.user import HeadUser


MODULES = ("backends.controller", "backends.gateway")


def listeners(user: HeadUser) -> Counter[str]:
    """How many TCP ports the programs of the user's listen at on this machine."""
    programs: dict[int, set[str]] = defaultdict(set)
    for process in user.processes():
        words = words_of(process)
        modules = (module for module in MODULES if module in words)
        name = next(modules, name_of(process)).removeprefix("backends.")
        for connection in process.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN:
                programs[connection.laddr[1]].add(name)
    return Counter(", ".join(sorted(names)) for names in programs.values())


def test_two_workers_and_the_head_here(network: Network, user: HeadUser) -> None:
    prepared(user, "ada", "bob")
    status = user.json(
        "up", "--model", MODEL, "--peer", "ada", "--peer", "bob", "--detach"
    )
    assert status["measured"]["mismatches"] == []
    over_ssh = answer(user)
    status = user.status()
    assert {p["peer"] for p in status["processes"]} == {"local", "ada", "bob"}
    assert [link["mode"] for link in status["links"]] == ["pair", "pair"]
    # The controller keeps the gateway's port open while it is started again.
    ours = {"controller, gateway": 1, "llama-server": 1, "dllm-relay": 2}
    assert listeners(user) == ours
    user.run("stop")
    assert answer_here(user) == over_ssh


def test_the_head_on_a_peer(network: Network, user: HeadUser) -> None:
    prepared(user, "ada", "bob", "cy")
    copied = user.json("models", "copy", MODEL, "ada")
    assert network.peer("ada").inside(copied["path"]).stat().st_size
    user.run(
        *("up", "--model", MODEL, "--head", "ada", "--peer", "bob", "--peer", "cy"),
        "--detach",
    )
    status = user.status()
    server = next(p for p in status["processes"] if p["name"] == "llama-server")
    assert server["peer"] == "ada"
    assert status["measured"]["mismatches"] == []
    over_ssh = answer(user)
    links = wait_for(
        lambda: [link for link in user.status()["links"] if link["protocol"]],
        "the relays on the head are read",
    )
    assert len(links) == 2
    log = user.run("logs", "llama-server").stdout
    assert "bob" not in log
    assert "srv" in log
    user.run("stop")
    assert answer_here(user) == over_ssh


def test_a_head_there_needs_the_model_and_outlives_the_controller(
    network: Network, user: HeadUser
) -> None:
    prepared(user, "ada")
    there = ("--model", MODEL, "--head", "ada", "--detach")
    wrong = user.run("up", *there, "--workers", "1", code=1)
    assert "ada has no copy of dllm-demo.gguf" in wrong.stderr
    assert "dllm-tui models copy" in wrong.stderr
    user.run("models", "copy", MODEL, "ada")
    user.run("up", *there, "--peer", "ada")
    before = answer(user)
    server = user.pid("llama-server")
    user.kill_controller()
    user.wait_serving(120)
    assert user.pid("llama-server") == server, "nothing there needed our tunnels"
    assert answer(user) == before
    # A worker here for it.
    user.run("up", *there, "--workers", "2", "--replace")
    assert answer(user) == before
    assert user.pid("worker1")


def test_peers_of_every_kind_at_once(
    network: Network, user: HeadUser, tmp_path: Path
) -> None:
    """IPv6, through a jump host, a login shell that is no sh and prints a banner."""
    ada, _, cy = network.peers
    network.write_ssh_config(
        options={
            "ada": {"HostName": ada.address6},
            "bob": {"ProxyJump": "ada"},
        }
    )
    fish = shutil.which("fish") or shutil.which("tcsh") or "/bin/dash"
    cy.set_login_shell(fish)
    (cy.home / ".config" / "fish").mkdir(parents=True)
    (cy.home / ".config" / "fish" / "config.fish").write_text("echo Welcome to cy\n")
    model = tmp_path / 'it\'s a "model" $(touch x).gguf'
    shutil.copy(MODEL, model)
    prepared(user, "ada")
    for name in ("bob", "cy"):
        user.run("peers", "add", name)
        user.run("peers", "provision", name)
    peers = [part for name in ("ada", "bob", "cy") for part in ("--peer", name)]
    user.run("up", "--model", str(model), *peers, "--split", "4,4,5", "--detach")
    status = user.status()
    assert status["measured"]["mismatches"] == []
    assert [row[0] for row in status["measured"]["layers"]] == [
        "ada/CPU",
        "bob/CPU",
        "cy/CPU",
    ]
    over_ssh = answer(user)
    user.run("models", "copy", str(model), "cy")
    user.run("stop")
    assert answer_here(user) == over_ssh
