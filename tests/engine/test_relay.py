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


def serve(user: User, model: str, *more: str) -> None:
    user.run("up", "--model", model, "--detach", "--replace", *more)


def ask(user: User, text: str = LONG, tokens: int = 120) -> Any:
    return user.json("chat", text, "--temperature", "0", "--max-tokens", str(tokens))


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


def test_trace_and_metrics_tell_the_same(user: User, demo_model: str) -> None:
    serve(user, demo_model, "--split", "6,7")
    ask(user, tokens=30)
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


def test_an_unknown_link_is_named(user: User, demo_model: str) -> None:
    serve(user, demo_model, "--split", "6,7")
    refused = user.run("links", "slow", "worker9", "--latency", "1ms", code=2)
    assert "worker9" in refused.stderr
    assert "worker1, worker2" in refused.stderr
    bad = user.run("lab", "set", "worker1", "--latency", "soon", code=2)
    assert "20ms" in bad.stderr
