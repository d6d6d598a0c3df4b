"""A controller of a user of one's own, driven from within the test."""

from __future__ import annotations

import asyncio
import time

import psutil
import pytest

from backends.client.client import ControllerClient
from backends.errors import ControllerError
from backends.paths import user_paths
from backends.planning.blueprint import needed_names
from backends.state import ClusterSnapshot, ClusterState, Plan, ProcessState
from tests.engine.conftest import User

SETTLE_S = 90.0
SETTLED = (ClusterState.SERVING, ClusterState.IDLE, ClusterState.FAILED)


def client_of(user: User, monkeypatch: pytest.MonkeyPatch) -> ControllerClient:
    for name, value in user.env.items():
        monkeypatch.setenv(name, value)
    return ControllerClient(user_paths())


async def settled(client: ControllerClient, generation: int) -> ClusterSnapshot:
    """The snapshot once that generation, or a later one, is at its end."""
    deadline = time.monotonic() + SETTLE_S
    last: object = None
    while time.monotonic() < deadline:
        try:
            last = snapshot = await client.snapshot()
        except ControllerError as error:
            # One that was killed takes connections until its last thread is gone.
            last = error
        else:
            if snapshot.generation >= generation and snapshot.state in SETTLED:
                return snapshot
        await asyncio.sleep(0.05)
    raise AssertionError(f"not settled: {last}")


async def serving(client: ControllerClient, plan: Plan) -> ClusterSnapshot:
    asked = await client.launch(plan)
    snapshot = await settled(client, asked.generation)
    assert snapshot.state is ClusterState.SERVING, snapshot.failure
    return snapshot


async def kill_controller(client: ControllerClient) -> None:
    if not await client.running():
        return
    process = psutil.Process((await client.snapshot()).controller_pid)
    process.kill()
    await asyncio.to_thread(process.wait, 5)


def alive(snapshot: ClusterSnapshot) -> dict[str, str]:
    ended = ProcessState.EXITED
    return {p.name: p.peer for p in snapshot.processes if p.state is not ended}


def wanted(plan: Plan | None) -> dict[str, str]:
    return needed_names(plan) if plan else {}
