"""``dllm-tui race`` on a real cluster: both answer, and it goes back, whoever dies."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tests.engine.conftest import COMMAND_S, User, wait_for

pytestmark = pytest.mark.engine

AS_BEFORE = (6, 7)
LATENCY_MS = 2.0
FAR_MS = 100.0
"""The model answers in some twenty tokens: time enough to cut that off."""


def layers(now: dict[str, Any]) -> tuple[int, ...]:
    shares = now["plan"]["split"]["shares"] if now["plan"] else []
    return tuple(share["layers"] for share in shares if share["layers"])


def slow(user: User, latency_ms: float) -> None:
    user.run("links", "slow", "worker2", "--latency", f"{latency_ms}ms")


def stands_as_before(user: User, latency_ms: float) -> bool:
    now = user.look()
    labs = {link["worker"]: link["lab"] for link in now["links"]}
    return (
        now["state"] == "serving"
        and layers(now) == AS_BEFORE
        and bool(labs["worker2"])
        and labs["worker2"]["latency_ms"] == latency_ms
        and not labs["worker1"]
    )


def test_two_plans_answer_in_turn_and_what_served_serves_again(
    launched: User,
) -> None:
    user = launched
    slow(user, LATENCY_MS)
    race = user.json("race", "--split", "9,4", "--split", "12,1", "--tokens", "24")
    one, two = race["sides"]
    for side in race["sides"]:
        assert side["stage"] == "done"
        assert side["figures"]["tokens"] == 24
        assert side["figures"]["tok_per_s"] > 0
        # A trip to each worker; the lab is the same for both.
        assert side["figures"]["trips_per_token"] == pytest.approx(2, rel=0.15)
        assert side["figures"]["launch_s"] > 0
        assert side["predicted"]["tok_per_s"] > 0
    assert one["text"] == two["text"] != ""
    assert race["verdict"]["same_words"] is True
    assert stands_as_before(user, LATENCY_MS)
    # A plan that cannot be had is a sentence; the other answers all the same.
    half = user.json("race", "--draft", "mtp", "--tokens", "8", code=1)
    now, drafted = half["sides"]
    assert now["figures"]["tokens"] == 8
    assert "MTP" in drafted["failure"]["what"]
    assert stands_as_before(user, LATENCY_MS)


def test_a_race_that_is_cut_off_is_undone(launched: User) -> None:
    user = launched
    slow(user, FAR_MS)

    def answers() -> bool:
        now = user.look()
        return now["speed"]["requests_active"] > 0 and layers(now) == (9, 4)

    client = user.start("race", "--split", "9,4")
    wait_for(lambda: user.look()["speed"]["requests_active"], "the first answer")
    client.send_signal(signal.SIGINT)
    client.communicate(timeout=COMMAND_S)
    assert client.returncode == 130
    assert stands_as_before(user, FAR_MS)
    for dies in ("client", "controller"):
        client = user.start("race", "--split", "9,4", "--split", "12,1")
        wait_for(answers, "an answer of another plan")
        if dies == "client":
            client.kill()
        else:
            user.kill_controller()
            user.status()
        wait_for(lambda: stands_as_before(user, FAR_MS), f"what served before ({dies})")
        client.communicate(timeout=COMMAND_S)
        assert client.returncode not in (0, None)
