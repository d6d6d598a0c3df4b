"""``dllm-tui bench`` on a real cluster: interrupted, resumed, and what it leaves."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.engine.conftest import User, wait_for

pytestmark = pytest.mark.engine


def samples(file: Path) -> int:
    if not file.exists():
        return 0
    return sum(len(one["samples"]) for one in json.loads(file.read_bytes())["results"])


def test_an_interrupted_benchmark_is_continued(user: User, demo_model: str) -> None:
    file = user.home / "results.json"
    matrix = ("--workers", "1,2", "--latency", "0ms,10ms", "--rounds", "2")
    bench = ("bench", demo_model, *matrix, "--tokens", "16", "--to", str(file))
    process = user.start(*bench)
    wait_for(lambda: samples(file) >= 2, "two samples", 60)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"bench --resume {file}" in told
    user.assert_nothing_left()
    kept = samples(file)
    assert 2 <= kept < 8
    chart = user.home / "chart.svg"
    run = user.json("bench", "--resume", str(file), "--svg", str(chart))
    user.assert_nothing_left()
    assert chart.read_text().startswith("<svg")
    assert run["conditions"]["rpc_protocol"]
    results = {
        (one["case"]["workers"], one["case"].get("latency_ms", 0.0)): one["samples"]
        for one in run["results"]
    }
    assert {key: len(found) for key, found in results.items()} == {
        (w, ms): 2 for w in (1, 2) for ms in (0.0, 10.0)
    }
    # One trip a token and worker, which the relay delays by 10 ms each way.
    for workers in (1, 2):
        far, _ = results[workers, 10.0]
        assert far["trips_per_token"] == pytest.approx(workers, rel=0.15)
        assert 1000 / far["tok_per_s"] > 20 * workers
    # Finished: nothing is measured any more, and it is compared with itself.
    again = user.run("bench", "--resume", str(file), "--compare", str(file))
    assert again.stdout.count(" same") == 4


def test_a_head_alone_is_measured_without_a_network(
    user: User, demo_model: str
) -> None:
    matrix = ("--workers", "0", "--latency", "0ms,5ms", "--rounds", "1")
    run = user.json("bench", demo_model, *matrix, "--tokens", "8")
    here, far = run["results"]
    assert here["samples"][0]["tok_per_s"] > 0
    assert "There is no link" in far["failure"]


def generated(user: User) -> int:
    return max((x["generation"]["tokens"] for x in user.status()["links"]), default=0)


def test_no_sample_is_kept_in_which_a_worker_died(user: User, demo_model: str) -> None:
    file = user.home / "results.json"
    matrix = ("--workers", "1", "--latency", "30ms", "--rounds", "1")
    process = user.start(
        *("bench", demo_model, *matrix, "--tokens", "100", "--to", str(file))
    )
    # The warm-up has fewer.
    wait_for(lambda: generated(user) > 20, "a sample under way", 60)
    user.kill("worker1")
    told, _ = process.communicate(timeout=120)
    assert "was restarted amid the sample" in told
    assert samples(file) == 0
    user.assert_nothing_left()


def test_what_serves_is_not_disturbed(user: User, demo_model: str) -> None:
    user.run("up", demo_model, "--workers", "1", "--detach")
    refused = user.run("bench", demo_model, code=1)
    assert "dllm-tui down --all" in refused.stderr
    assert user.status()["state"] == "serving"


def test_case_without_room_is_told_and_others_run(user: User, demo_model: str) -> None:
    splits = ("--split", "6,7", "--split", "6,8", "--rounds", "1", "--tokens", "8")
    run = user.json("bench", demo_model, "--workers", "2", *splits)
    fine, wrong = run["results"]
    assert len(fine["samples"]) == 1
    assert "13" in wrong["failure"]
