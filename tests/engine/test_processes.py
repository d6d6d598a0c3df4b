"""A person lists, restarts and kills processes of a real cluster; it goes on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.conftest import User, wait_for

pytestmark = pytest.mark.engine


def listed(user: User) -> dict[str, Any]:
    return {one["name"]: one for one in user.json("processes", "list")}


def test_a_worker_is_restarted_and_killed_and_the_cluster_goes_on(
    user: User, demo_model: str
) -> None:
    user.up(demo_model, "--workers", "2")
    before = listed(user)
    ours = {"controller", "agent", "api-gateway", "llama-server"}
    assert set(before) >= {*ours, "worker1", "worker2"}
    assert all(one["rss_bytes"] for one in before.values())
    user.run("processes", "restart", "worker1")

    def mended(earlier: dict[str, Any]) -> bool:
        # Between its end and its next start it is not listed.
        now = listed(user).get("worker1", earlier["worker1"])
        changed = now["pid"] != earlier["worker1"]["pid"]
        return bool(changed and user.look()["state"] == "serving")

    wait_for(lambda: mended(before), "worker1 is another one, and the model serves")
    restarted = listed(user)
    assert restarted["worker1"]["restarts"] == 1
    # Nothing hangs on it.
    assert restarted["worker2"]["pid"] == before["worker2"]["pid"]
    assert "--yes" in user.run("processes", "kill", "worker1", code=2).stderr
    user.run("processes", "kill", "worker1", "--yes")
    wait_for(lambda: mended(restarted), "worker1 is there again")
    assert user.ask("Who are you?")
    told = [event["text"] for event in user.json("events")]
    assert "restarted worker1" in told
    assert "killed worker1" in told
