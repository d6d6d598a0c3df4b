"""A draft on the head: same text, fewer trips, nothing of it on any link.

One engine by default; with ``DLLM_DRAFTS=all`` every pinned one.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from backends.speculation.gain import WORTH
from tests.engine.conftest import User, wait_for
from tests.kit.models import write_llama
from tests.native.stock import engine

pytestmark = pytest.mark.engine

EVERYTHING = os.environ.get("DLLM_DRAFTS") == "all"
PLACED = ("ALLOC_BUFFER", "SET_TENSOR", "SET_TENSOR_HASH", "INIT_TENSOR")
"""The commands that bring weights and caches to a worker."""
TOLD_EVERY_S = 0.5
"""Relays tell what they count twice as often."""
LOOKS = 4
"""So many must show the same."""
TOKENS = 60
TRIPS_PER_TOKEN_MAX = 0.5
SEEDS = range(64 if EVERYTHING else 4)
DRAWN = {"temperature": 1.5, "n_predict": 16}
SAME_MIN = 0.5
"""Share of drawn answers that stay the same.

A pass of several tokens rounds differently, so equally likely candidates may change
places. Drafts that had a say in it would change nearly every answer."""
PAUSE_S = 3.0
"""Between looks at what takes a while: each starts a program."""
QUESTION = {
    "prompt": "What is a split?",
    "n_predict": TOKENS,
    "temperature": 0,
    "ignore_eos": True,
}


def launch(user: User, model: str, draft: str) -> list[Any]:
    """The links, 10 ms away each way, once all that a launch sends is counted."""
    up = ("up", "--model", model, "--workers", "2", "--detach")
    user.run(*up, "--draft", draft)
    looks = [user.status()["links"]]
    while len(looks) < LOOKS or placed(looks[-1]) != placed(looks[-LOOKS]):
        time.sleep(TOLD_EVERY_S)
        looks.append(user.status()["links"])
    user.run("lab", "set", "all", "--latency", "10ms")
    return list(looks[-1])


def placed(links: list[Any]) -> list[Any]:
    found = [link["commands"] for link in links]
    return [
        {n: (told[n]["count"], told[n]["bytes_up"]) for n in PLACED if n in told}
        for told in found
    ]


def drawn(user: User) -> list[str]:
    user.run("lab", "clear")
    return [asked(user, seed=seed, **DRAWN)["content"] for seed in SEEDS]


def asked(user: User, **more: float) -> Any:
    url = user.status()["api_url"].removesuffix("/v1")
    body = json.dumps({**QUESTION, **more}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/completion", body, headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def counted(user: User) -> list[Any]:
    def all_there() -> list[Any] | None:
        made = [link["generation"] for link in user.status()["links"]]
        return made if all(each["tokens"] >= TOKENS for each in made) else None

    return list(wait_for(all_there, "every token counted"))


@pytest.mark.parametrize("version", ["7.0.0", "8.0.0"] if EVERYTHING else ["7.0.0"])
def test_a_draft_on_the_head_saves_trips_and_changes_nothing_else(
    user: User, demo_model: str, version: str
) -> None:
    user.env["DLLM_ENGINE_DIR"] = str(engine(version))
    plain = launch(user, demo_model, "none")
    text = asked(user)["content"]
    plainly = drawn(user)
    # Relays that go on would count on.
    user.run("stop")
    drafted = launch(user, demo_model, demo_model)
    assert placed(drafted) == placed(plain)
    assert all(placed(drafted))
    answer = asked(user)
    assert answer["content"] == text
    assert answer["timings"]["draft_n_accepted"] > 0
    for made in counted(user):
        assert made["trips"] / made["tokens"] <= TRIPS_PER_TOKEN_MAX
    wait_for(
        lambda: user.status()["speed"]["acceptance"]["accepted"], "acceptance counted"
    )
    status = user.status()
    # No request can say how much to draft: that is settled at the launch.
    shorter = asked(user, **{"speculative.n_max": 1})
    assert shorter["timings"]["draft_n"] == answer["timings"]["draft_n"]
    acceptance = status["speed"]["acceptance"]
    assert acceptance["accepted"] == answer["timings"]["draft_n_accepted"]
    assert sum(acceptance["by_position"]) == acceptance["accepted"]
    assert status["plan"]["speculation"]["device"] == "local/CPU"
    assert status["measured"]["mismatches"] == []
    same = [ours == theirs for ours, theirs in zip(drawn(user), plainly, strict=True)]
    assert len(set(plainly)) == len(plainly)
    assert sum(same) >= SAME_MIN * len(same)
    user.run("stop")


@pytest.mark.trial
@pytest.mark.parametrize("version", ["7.0.0", "8.0.0"] if EVERYTHING else ["8.0.0"])
def test_a_relay_dies_in_mid_draft(user: User, demo_model: str, version: str) -> None:
    user.env["DLLM_ENGINE_DIR"] = str(engine(version))
    launch(user, demo_model, demo_model)
    text = asked(user)["content"]
    before = user.status()["speed"]["tokens"]
    with ThreadPoolExecutor() as pool:
        cut = pool.submit(asked_or_told, user)
        wait_for(lambda: user.status()["speed"]["tokens"] > before, "in the middle")
        server = user.pid("llama-server")
        user.kill("relay-worker1")
        outcome = cut.result(timeout=120)
    assert outcome["error"] or outcome["content"].startswith(text)
    wait_for(lambda: user.pid("llama-server") not in (None, server), "another", 180)
    user.wait_serving(180)
    answer = asked(user)
    assert answer["content"] == text
    for made in counted(user):
        assert made["trips"] / made["tokens"] <= TRIPS_PER_TOKEN_MAX
    mine, cut_off = (one["timings"]["draft_n_accepted"] for one in (answer, outcome))
    # What was cut off is asked again, or had ended just before.
    wait_for(lambda: accepted(user) in (mine, mine + cut_off), "acceptance counted")
    assert user.status()["speed"]["acceptance"]["passes"] > 0
    user.run("stop")


def asked_or_told(user: User) -> Any:
    try:
        return {"error": None, **asked(user, n_predict=4 * TOKENS)}
    except urllib.error.HTTPError as error:
        told = json.load(error)["error"]["message"]
        return {"error": told, "timings": {"draft_n_accepted": 0}}


def accepted(user: User) -> int:
    acceptance = user.status()["speed"]["acceptance"] or {
        "accepted": 0,
        "by_position": [],
    }
    assert sum(acceptance["by_position"]) == acceptance["accepted"]
    return int(acceptance["accepted"])


def reserved(status: Any) -> dict[str, int]:
    buffers = status["measured"]["buffers"]
    return {each["device"]: each["kv_bytes"] for each in buffers}


@pytest.fixture
def mtp_model(tmp_path: Path) -> str:
    file = tmp_path / "mtp.gguf"
    write_llama(file, n_layer=4, n_embd=64, n_ff=128, n_layer_nextn=1)
    return str(file)


@pytest.mark.parametrize("version", ["7.0.0", "8.0.0"] if EVERYTHING else ["8.0.0"])
def test_layers_of_model_itself_draft(user: User, mtp_model: str, version: str) -> None:
    user.env["DLLM_ENGINE_DIR"] = str(engine(version))
    assert user.json("models", "drafts", mtp_model)["heads"] == ["draft-mtp"]
    up = ("up", "--model", mtp_model, "--workers", "1", "--detach")
    user.run(*up)
    text = asked(user)["content"]
    plain = reserved(user.status())
    told = user.run(*up, "--replace", "--draft", "mtp")
    assert "each drafted token takes round trips there" in told.stdout + told.stderr
    answer = asked(user)
    assert answer["content"] == text
    assert answer["timings"]["draft_n_accepted"] > TOKENS / 2
    status = user.status()
    assert status["plan"]["speculation"]["device"] == "worker1/CPU"
    assert reserved(status) == plain
    assert status["measured"]["mismatches"] == []
    user.run("stop")


def settled(user: User) -> Any:
    """The status once the comparison is over."""

    def known() -> Any:
        time.sleep(PAUSE_S)
        status = user.status()
        now = status["draft_now"]
        serves = status["state"] == "serving" and status["speed"]["slots"]
        return status if serves and now and not now["doing"] else None

    return wait_for(known, "the comparison", 240)


@pytest.mark.trial
def test_auto_keeps_the_fastest(user: User, mtp_model: str, tmp_path: Path) -> None:
    user.run("config", "set", "model_dirs", str(tmp_path))
    up = ("up", "--model", mtp_model, "--workers", "1", "--detach")
    user.run(*up, "--draft", "auto", "--threads", "1", "--worker-threads", "1")
    status = settled(user)
    now = status["draft_now"]
    trials = {one["draft"]: one for one in now["trials"]}
    assert set(trials) == {"none", "ngram", "mtp"}
    assert all(one["tok_per_s"] > 0 for one in trials.values())
    assert trials["mtp"]["acceptance"] > 0.5
    gains = {draft: one["speedup"] for draft, one in trials.items()}
    best = max(gains, key=lambda draft: gains[draft])
    assert now["draft"] == (best if gains[best] >= WORTH else "none")
    server = next(p for p in status["processes"] if p["name"] == "llama-server")
    assert ("--spec-type" in server["argv"]) == (now["draft"] != "none")
    assert status["plan"]["server"]["draft"] == "auto"
    assert user.json("models", "drafts", mtp_model)["ngram"] == [trials["ngram"]]
    assert asked(user)["content"]
    # Launched again, it takes the result: nothing is measured.
    user.run("stop")
    user.run(*up, "--draft", "auto", "--threads", "1", "--worker-threads", "1")
    assert settled(user)["draft_now"] == now
    user.run("models", "drafts", mtp_model, "--measure")
    wait_for(lambda: settled(user)["draft_now"]["trials"] != now["trials"], "anew", 240)
    user.run("stop")
