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

N_EMBD, N_VOCAB = 192, 2048
LONG = "write a long text about splits"
# Bytes of one decoded token on one stage, as the protocol page derives them.
FIXED_UP_BYTES = 1570 + 20 + 13 + 321
OUTPUT_UP_BYTES = 318
REPLY_HEADER_BYTES = 8


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


@pytest.mark.parametrize("split", ["6,7", "4,4,5"])
def test_answers_are_the_same_with_and_without(
    user: User, demo_model: str, split: str
) -> None:
    """Greedy text, token for token, with a prompt of many batches too."""
    prompts = [LONG, "What is a split? " * 90]
    answers = []
    for more in (["--relay", "off"], []):
        serve(user, demo_model, "--split", split, "--ctx", "1024", *more)
        answers.append([ask(user, text)["text"] for text in prompts])
        assert bool(user.status()["links"]) == (not more)
    assert answers[0] == answers[1]
    assert all(answers[0])


@pytest.mark.parametrize("split", ["6,7", "4,4,5"])
def test_one_round_trip_per_token_and_every_byte_accounted_for(
    user: User, demo_model: str, split: str
) -> None:
    serve(user, demo_model, "--split", split)
    ask(user)
    found = links(user)
    assert len(found) == len(split.split(","))
    for index, link in enumerate(found):
        is_output = index == len(found) - 1
        last = link["passes"][-1]
        fixed = FIXED_UP_BYTES + 4 * N_EMBD + is_output * OUTPUT_UP_BYTES
        mask_bytes = last["bytes_up"] - fixed
        assert mask_bytes in (2 * 256, 2 * 512), "the mask of 256 or 512 cells"
        payload = N_VOCAB if is_output else N_EMBD
        assert last["bytes_down"] == REPLY_HEADER_BYTES + 4 * payload
        assert link["round_trips_per_token"] == 1.0
        assert link["mode"] == "metered"
        assert link["protocol"].count(".") == 2
        assert link["commands"]["GET_TENSOR"]["p99_us"] > 0


@pytest.mark.trial
def test_latency_is_added_once_per_way_and_link(user: User, demo_model: str) -> None:
    """10 ms each way on two links cost a token 40 ms, not more: it is pipelined."""
    serve(user, demo_model, "--split", "6,7")

    def token_ms() -> float:
        return 1000 / float(ask(user)["timings"]["tok_per_s"])

    token_ms()
    plain = min(token_ms() for _ in range(3))
    user.run("lab", "set", "all", "--latency", "10ms")
    shown = user.json("lab", "show")
    assert {lab["latency_ms"] for lab in shown.values()} == {10.0}
    slowed = min(token_ms() for _ in range(3))
    assert slowed >= 40
    # Delaying each of the seven messages would make it 280 ms.
    assert slowed - plain < 140
    user.run("lab", "clear")
    wait_for(lambda: not any(user.json("lab", "show").values()), "cleared")


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
