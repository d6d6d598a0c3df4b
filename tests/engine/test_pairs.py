"""Relays in pairs on one machine, where somebody wants them: the same cluster."""

from __future__ import annotations

import pytest

from tests.engine.conftest import User, wait_for

pytestmark = pytest.mark.engine

QUESTION = ("chat", "Who are you?", "--temperature", "0")
OURS = {"api-gateway", "llama-server", "worker1", "worker2"}
HEADS = {"relay-worker1", "relay-worker2"}
BESIDE = {"worker-relay-worker1", "worker-relay-worker2"}


def names(user: User) -> set[str]:
    return {p["name"] for p in user.status()["processes"]}


def modes(user: User) -> list[str]:
    wait_for(lambda: all(k["protocol"] for k in user.status()["links"]), "figures")
    return [str(link["mode"]) for link in user.status()["links"]]


def test_pairs_always_never_and_of_themselves(user: User, demo_model: str) -> None:
    """The answers are those without, and so is what the relays saw arrive."""
    up = ("up", "--model", demo_model, "--workers", "2", "--detach", "--replace")
    user.run(*up)
    assert modes(user) == ["metered", "metered"]
    assert "no network" in user.status()["links"][0]["why"]
    alone = user.json(*QUESTION)["text"]
    status = user.json(*up, "--relay", "pair")
    assert status["measured"]["mismatches"] == []
    assert names(user) == OURS | HEADS | BESIDE
    assert modes(user) == ["pair", "pair"]
    assert user.json(*QUESTION)["text"] == alone
    user.run("config", "set", "pair", "always")
    user.run(*up, "--relay", "single")
    assert names(user) == OURS | HEADS
    assert "pair = never" in user.status()["links"][0]["why"]
    user.run(*up)
    assert modes(user) == ["pair", "pair"], "as configured"
    user.stop()


def test_a_killed_relay_of_either_end_is_started_again(
    user: User, demo_model: str
) -> None:
    user.up(demo_model, "--workers", "1", "--relay", "pair")
    worker, answer = user.pid("worker1"), user.json(*QUESTION)["text"]
    for name in ("worker-relay-worker1", "relay-worker1"):
        user.kill_and_mend(name)
        assert f"{name} was killed by SIGKILL" in user.status()["message"]
        assert user.pid("worker1") == worker, "the worker has not noticed"
        assert user.json(*QUESTION)["text"] == answer
