"""``dllm-tui bench`` on a real cluster: interrupted, resumed, and what it leaves."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from backends.bench.matrix import WEIGHTS, Case
from backends.bench.results import BenchRun, CaseResult, Conditions, save
from backends.state import Ask
from tests.engine.conftest import User, wait_for
from tests.kit.models import write_llama

pytestmark = pytest.mark.engine


def samples(file: Path) -> int:
    if not file.exists():
        return 0
    return sum(len(one["samples"]) for one in json.loads(file.read_bytes())["results"])


@pytest.mark.trial
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
        assert 1000 / far["predicted_tok_per_s"] > 20 * workers
    # Finished: nothing is measured any more, and it is compared with itself.
    again = user.run("bench", "--resume", str(file), "--compare", str(file))
    assert again.stdout.count(" same") == 4


def generated(user: User) -> int:
    return max((x["generation"]["tokens"] for x in user.status()["links"]), default=0)


@pytest.mark.trial
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
    assert process.returncode == 1
    assert samples(file) == 0
    user.assert_nothing_left()


def test_cases_that_cannot_be_measured_fail_the_command_and_others_run(
    user: User, demo_model: str
) -> None:
    bench = ("bench", demo_model, "--rounds", "1", "--tokens", "8", "--json")
    splits = ("--workers", "2", "--split", "6,7", "--split", "6,8")
    done = user.run(*bench, *splits, code=1)
    fine, wrong = json.loads(done.stdout)["results"]
    assert len(fine["samples"]) == 1
    assert "13" in wrong["failure"]
    assert "1 of 2 cases could not be measured: split 6,8" in done.stderr
    # A head alone is measured without a network.
    alone = user.run(*bench, "--workers", "0", "--latency", "0ms,5ms", code=1)
    here, far = json.loads(alone.stdout)["results"]
    assert here["samples"][0]["tok_per_s"] > 0
    assert "There is no link" in far["failure"]


N_LAYER, N_EMBD, N_FF = 1, 512, 11264
FFN_BYTES = 2 * N_EMBD * N_FF
"""Of each of three tensors: more than 10 MiB, so a worker's cache can have them."""


@pytest.mark.trial
def test_weights_cross_are_cached_or_stay_at_home(user: User, tmp_path: Path) -> None:
    model, file = tmp_path / "wide.gguf", tmp_path / "results.json"
    write_llama(model, n_layer=N_LAYER, n_embd=N_EMBD, n_ff=N_FF, n_ctx=512)
    split, rate = f"worker1/CPU={N_LAYER + 1}", 40.0
    cases = [
        Case(workers=1, split=split, weights=way, rate_mb_s=rate) for way in WEIGHTS
    ]
    results = tuple(CaseResult(case=case) for case in cases)
    unknown = Conditions(
        at=0.0, program="", machine="", cores=0, memory_bytes=0, model=str(model)
    )
    run = BenchRun(
        conditions=unknown,
        base=Ask(model=str(model)),
        prompt="1 2 3",
        tokens=8,
        rounds=1,
        results=results,
    )
    save(run, file)
    # Benches of the project keep models there, too.
    caches = Path(user.env["XDG_CACHE_HOME"]) / "dllm-tui/bench"
    before = set(caches.glob("*"))
    told = user.json("bench", "--resume", str(file))["results"]
    user.assert_nothing_left()
    (stock,), (cached,), (home,) = (one["samples"] for one in told)
    large = 3 * N_LAYER * FFN_BYTES
    assert stock["launch_bytes"] > large
    assert stock["launch_s"] > large / (rate * 1e6)
    assert stock["launch_bytes"] - cached["launch_bytes"] > large - FFN_BYTES
    assert home["weight_bytes_sent"] == 0
    assert home["launch_bytes"] < FFN_BYTES
    assert set(caches.glob("*")) == before
