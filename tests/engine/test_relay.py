"""The relay in a real cluster: transparent, true, and slow only when told to be."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from backends.client import http
from tests.engine.conftest import User, wait_for

pytestmark = pytest.mark.engine

LONG = "write a long text about splits"


def links(user: User) -> Any:
    """The links once their figures have settled."""
    wait_for(lambda: not user.status()["speed"]["requests_active"], "idle")
    return wait_for(
        lambda: (
            (found := user.status()["links"])
            and all(link["round_trips_per_token"] for link in found)
            and found
        ),
        "figures per token",
    )


async def fetch(socket: Path, target: str) -> str:
    async with http.request(socket, "GET", target) as response:
        return (await response.read()).decode()


def assert_trace_and_metrics_tell_the_same(user: User) -> None:
    user.ask(LONG, max_tokens=30)
    links(user)
    file = user.home / "trace.json"
    user.run("trace", str(file))
    events = json.loads(file.read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert {event["name"] for event in slices} == {
        *("head", "up", "compute", "down", "wait")
    }
    assert all(event["dur"] >= 0 for event in slices)
    socket = user.home / "run" / "dllm-tui" / "controller.sock"
    text = asyncio.run(fetch(socket, "/metrics"))
    assert re.search(
        r'^dllm_link_round_trips_per_token\{worker="worker1"\} 1.0$', text, re.M
    )
    assert re.search(r'dllm_command_count_total\{command="GET_TENSOR"', text)


# --- Relays in pairs on one machine, where somebody wants them: the same cluster ---

QUESTION = "Who are you?"
OURS = {"api-gateway", "llama-server", "worker1", "worker2"}
HEADS = {"relay-worker1", "relay-worker2"}
BESIDE = {"worker-relay-worker1", "worker-relay-worker2"}


def names(user: User) -> set[str]:
    return {p["name"] for p in user.status()["processes"]}


def modes(user: User) -> list[str]:
    wait_for(lambda: all(k["protocol"] for k in user.status()["links"]), "figures")
    return [str(link["mode"]) for link in user.status()["links"]]


def test_relays_measure_alone_and_in_pairs_as_configured(
    user: User, demo_model: str
) -> None:
    """The answers are those without, and so is what the relays saw arrive."""
    up = ("up", "--model", demo_model, "--workers", "2", "--detach", "--replace")
    user.run(*up)
    assert modes(user) == ["metered", "metered"]
    assert "no network" in user.status()["links"][0]["why"]
    assert_trace_and_metrics_tell_the_same(user)
    refused = user.run("links", "slow", "worker9", "--latency", "1ms", code=2)
    assert "worker9" in refused.stderr
    assert "worker1, worker2" in refused.stderr
    bad = user.run("lab", "set", "worker1", "--latency", "soon", code=2)
    assert "20ms" in bad.stderr
    alone = user.ask(QUESTION)
    user.run("links", "slow", "worker1", "--latency", "1ms")
    user.run("config", "set", "pair", "always")
    status = user.json(*up)
    assert status["measured"]["mismatches"] == []
    assert names(user) == OURS | HEADS | BESIDE
    assert modes(user) == ["pair", "pair"]
    assert user.ask(QUESTION) == alone
    labs = [link["lab"] and link["lab"]["latency_ms"] for link in status["links"]]
    assert labs == [1.0, None], "a lab is of the links, whatever is launched on them"
    user.run(*up, "--relay", "single")
    assert names(user) == OURS | HEADS
    assert "pair = never" in user.status()["links"][0]["why"]
    user.stop()


@pytest.mark.trial
def test_a_killed_relay_of_either_end_is_replaced(user: User, demo_model: str) -> None:
    user.up(demo_model, "--workers", "1", "--relay", "pair")
    worker, answer = user.pid("worker1"), user.ask(QUESTION)
    for name in ("worker-relay-worker1", "relay-worker1"):
        user.kill_and_mend(name)
        assert f"{name} was killed by SIGKILL" in user.status()["message"]
        assert user.pid("worker1") == worker, "the worker has not noticed"
        assert user.ask(QUESTION) == answer
