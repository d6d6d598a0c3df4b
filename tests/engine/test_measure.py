"""``dllm-tui peers measure`` on this machine: its device is known afterwards."""

from __future__ import annotations

import pytest

from tests.engine.conftest import User

pytestmark = pytest.mark.engine


@pytest.mark.trial
def test_a_device_that_never_ran_is_measured_once(user: User, demo_model: str) -> None:
    plan = ("plan", demo_model, "--workers", "0")
    before = user.json(*plan)["band"]
    found = user.json("peers", "measure")
    user.assert_nothing_left()
    # What a console would open on is as it was.
    assert user.status()["plan"] is None
    assert [one["device"] for one in found] == ["local/CPU", "worker1/CPU"]
    assert user.json("plan", demo_model)["forecast"]["source"] == "measured"
    assert found[0]["tok_per_s"] > 0 < found[0]["prompt_tok_per_s"]
    assert found[0]["before_tok_per_s"] > 0
    after = user.json(*plan)["band"]
    assert after[1] / after[0] < before[1] / before[0]
    # Now it has run.
    assert user.json("peers", "measure") == []
    assert user.json("peers", "measure", "--again", "local") != []


def test_without_a_place_for_its_model_it_says_so(user: User) -> None:
    folder = user.home / "cache" / "dllm-tui" / "measure"
    folder.parent.mkdir(parents=True)
    folder.write_text("a file")
    user.env["XDG_CACHE_HOME"] = str(user.home / "cache")
    told = user.run("peers", "measure", code=1).stderr
    assert f"Cannot write {folder}" in told
    assert "File exists" in told


def test_beside_a_cluster_nothing_is_measured_and_no_benchmark_runs(
    user: User, demo_model: str
) -> None:
    user.run("up", demo_model, "--workers", "0", "--detach")
    told = user.run("peers", "measure", code=1).stderr
    assert "A cluster is running, and would disturb the measurement" in told
    refused = user.run("bench", demo_model, code=1)
    assert "dllm-tui down --all" in refused.stderr
    assert user.status()["state"] == "serving"
    user.run("down")
    told = user.run("peers", "measure", "nobody", code=1).stderr
    assert "nobody" in told
    user.assert_nothing_left()
