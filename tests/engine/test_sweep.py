"""``dllm-tui links sweep`` on a real cluster, and the lab that was there before."""

from __future__ import annotations

import csv
import signal
from pathlib import Path

import pytest

from tests.engine.conftest import COMMAND_S, User, wait_for

pytestmark = pytest.mark.engine

BEFORE = {"worker1": None, "worker2": 3.0}


def latencies(user: User) -> dict[str, float | None]:
    labs = {link["worker"]: link["lab"] for link in user.look()["links"]}
    return {name: lab and lab["latency_ms"] for name, lab in labs.items()}


def test_a_link_is_swept_and_is_as_before_whoever_dies(
    user: User, demo_model: str, tmp_path: Path
) -> None:
    user.up(demo_model, "--workers", "2")
    user.run("links", "slow", "worker2", "--latency", "3ms")
    picture, values = tmp_path / "sweep.svg", tmp_path / "sweep.csv"
    files = ("--svg", str(picture), "--csv", str(values))
    steps = ("--to", "40ms", "--steps", "3", "--tokens", "16")
    sweep = user.json("links", "sweep", "worker1", *steps, *files)
    assert [one["latency_ms"] for one in sweep["points"]] == [0, 20, 40]
    times_ms = [1000 / one["tok_per_s"] for one in sweep["points"]]
    # One trip a token to this worker, there and back; the other link stays slow.
    assert times_ms[0] > 2 * 3
    assert times_ms[1] > 40
    assert times_ms[2] > 80
    told = [1000 / one["predicted_tok_per_s"] for one in sweep["points"]]
    assert [later - told[0] for later in told[1:]] == pytest.approx([40, 80], rel=0.2)
    assert picture.read_text().startswith("<svg")
    assert len(list(csv.reader(values.read_text().splitlines()))) == 4
    wait_for(lambda: latencies(user) == BEFORE, "the lab as before")
    for dies in ("interrupted", "client", "controller"):
        client = user.start("links", "sweep", "all", "--to", "200ms", "--steps", "5")
        wait_for(lambda: latencies(user)["worker1"], "a slow step")
        refused = user.run("links", "reset", code=1)
        assert "sweep is under way" in refused.stderr
        if dies == "controller":
            user.kill_controller()
            user.status()
        else:
            client.send_signal(
                signal.SIGINT if dies == "interrupted" else signal.SIGKILL
            )
        client.communicate(timeout=COMMAND_S)
        wait_for(lambda: latencies(user) == BEFORE, f"the lab as before ({dies})")
    user.stop()
