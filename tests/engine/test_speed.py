"""Speed predicted before a run, and learnt from it; best splits on the real engine."""

from __future__ import annotations

import json

import pytest

from backends.planning.cluster_file import EXAMPLE
from tests.engine.conftest import User, wait_for

pytestmark = pytest.mark.engine
SPLIT = ("--workers", "2", "--split", "worker1/CPU=6,worker2/CPU=7")
QUESTION = ("Tell me a story of a robot.", "--temperature", "0", "--max-tokens", "150")


def observations(user: User) -> list[object]:
    file = user.home / "state" / "dllm-tui" / "speeds.json"
    return json.loads(file.read_bytes())["observations"] if file.exists() else []


def test_a_run_makes_the_next_prediction_a_measured_one_and_the_best_split_runs(
    user: User, demo_model: str
) -> None:
    before = user.json("plan", demo_model, *SPLIT)
    assert before["forecast"]["source"] == "prior"
    low, high = before["band"]
    assert low < before["tok_per_s"] < high
    user.run("up", demo_model, *SPLIT, "--detach")
    measured = []
    for runs in (1, 2):
        user.run("chat", *QUESTION)
        wait_for(lambda: len(observations(user)) > runs, "what the run says")  # noqa: B023
        measured.append(user.status()["speed"]["last_tok_per_s"])
    after = user.json("plan", demo_model, *SPLIT)
    assert after["forecast"]["source"] == "measured"
    # Other programs of the machine may slow any run.
    assert min(measured) / 5 < after["tok_per_s"] < max(measured) * 5
    # Of a split that never ran, by what this one showed.
    other = user.json("plan", demo_model, "--workers", "2", "--split", "3,10")
    assert other["forecast"]["source"] == "measured"
    # The best split is what is launched, and what runs.
    wish = ("--workers", "2", "--best", "--pin", "worker2/CPU>=3")
    layers = user.json("plan", demo_model, *wish)["plan"]["layers"]
    assert "worker2/CPU" in {device for device, _, _ in layers}
    user.run("up", demo_model, *wish, "--detach", "--replace")
    status = user.status()
    assert status["planned"] == layers
    assert status["measured"]["mismatches"] == []


@pytest.mark.trial
def test_a_link_that_a_lab_slows_is_what_a_token_waits_for(
    user: User, demo_model: str
) -> None:
    user.run("up", demo_model, *SPLIT, "--detach")
    assert "needs one answer" in user.run("why").stdout
    user.run("links", "slow", "worker1", "--latency", "10ms")
    user.run("chat", *QUESTION)
    found = user.json("why")
    longest = found["parts"][0]
    assert (longest["name"], longest["part"]) == ("worker1", "link")
    assert longest["ms"] > 15
    assert "of a token is worker1's link, slowed by the lab; " in found["text"]
    assert found["change"]["low"] > 0
    assert "worker1/CPU=0" in found["command"]


def test_machines_that_are_not_there_are_proved_by_the_engine(
    user: User, demo_model: str
) -> None:
    file = user.home / "cluster.toml"
    file.write_text(EXAMPLE)
    wish = ("--cluster-file", str(file), "--best", "--pin", "mini/MTL0>=4")
    shown = user.json("plan", demo_model, *wish, "--explain")
    user.assert_nothing_left()
    by_device = {one["device"]: one for one in shown["memory"]}
    assert by_device["mini/MTL0"]["source"] == "engine"
    assert by_device["mini/MTL0"]["model_bytes"] > 0
    assert shown["trips_per_token"] == 1
    assert "mini:50052" in ",".join(shown["flags"])
    assert "RPC0" in shown["flags"][shown["flags"].index("--device") + 1]
    assert "solo on studio/MTL0" in {one["name"] for one in shown["alternatives"]}
    file.write_text(EXAMPLE.replace("55 GiB", "-55 GiB"))
    refused = user.run("plan", demo_model, "--cluster-file", str(file), code=2)
    assert refused.stderr.count("\n") == 1
    assert "machines.studio.devices.MTL0.memory" in refused.stderr
