"""A gateway is kept up by itself, at whatever port it is to have."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from backends.config import Config
from backends.controller import gateway_process as module
from backends.controller.event_log import EventFiles, EventLog
from backends.controller.event_recorders import EventRecorder
from backends.controller.gateway_process import ApiPortTaken, Gateway
from backends.controller.snapshot_store import SnapshotStore
from backends.gateway.control_messages import PORT_TAKEN, Target, gateway_argv
from backends.gateway.listen_settings import ListenSettings
from backends.state.snapshots import RequestCounts
from tests.kit.machines import Cast
from tests.kit.waiting import until
from tests.unit.planning.machines import ADA, PLAIN, plan_for

PLAN = plan_for(PLAIN, ADA, peers=("ada",))


def made(folder: Path, cast_: Cast | None = None) -> Gateway:
    recorder = EventRecorder(EventLog(EventFiles(folder / "events")), "default")
    socket = folder / "g.sock"
    return Gateway(
        "default",
        cast("Any", cast_ or Cast()),
        SnapshotStore(Config),
        recorder,
        socket,
        lambda: 0.0,
    )


async def test_a_port_that_was_taken_for_a_moment_was_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines = Cast()
    machines.dying["api-gateway"] = [""]
    monkeypatch.setattr(module, "PORT_TAKEN", 1)
    taken = "Port 8090 is in use by another program"
    with pytest.raises(ApiPortTaken, match=taken) as refused:
        await made(tmp_path, machines).stand(8090)
    assert "choose another port (--port, api_port)" in refused.value.hint


@pytest.mark.usefixtures("forking")
def test_one_whose_port_is_taken_ends_with_that(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        argv = gateway_argv("default", port, tmp_path / "g.sock", ListenSettings())
        ended = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert f"cannot listen at port {port}" in ended.stderr
    assert ended.returncode == PORT_TAKEN


def targets(gateway: Gateway) -> list[Target]:
    told: list[Target] = []
    link: Any = SimpleNamespace(tell=told.append)
    gateway._link, gateway._port = link, 8090
    return told


async def test_a_model_is_told_from_others_of_its_name(tmp_path: Path) -> None:
    gateway = made(tmp_path)
    told = targets(gateway)
    plans = [
        PLAN,
        replace(PLAN, ctx_size=77, workers=()),
        replace(PLAN, model="/elsewhere" + PLAN.model),
        replace(PLAN, extra_args=("--lora", "/x.gguf")),
        replace(PLAN, extra_args=("--predict", "7")),
    ]
    for plan in plans:
        gateway.holds(plan, 1.0)
        gateway.serves(plan, 1, "one", 1.0)
    assert len({target.model for target in told}) == 1
    waits, serves = told[::2], told[1::2]
    assert [t.weights for t in waits] == [t.weights for t in serves]
    assert serves[0].weights == serves[1].weights
    assert len({target.weights for target in serves}) == 4
    assert [target.bound for target in serves] == [*[False] * 4, True]


async def test_what_waited_before_this_controller_is_not_told_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told is the pause that clients saw, which ends after the wait."""
    monkeypatch.setattr(module, "SETTLE_S", 0.01)
    event_log = EventLog(EventFiles(tmp_path / "events"))
    told: list[str] = []
    recorder = EventRecorder(event_log, "default")
    recorder.held = lambda before, after: told.append(  # type: ignore[method-assign]
        f"{after.held - before.held} {after.held_longest_s}"
    )
    gateway = made(tmp_path)
    gateway._recorder = recorder
    gateway._counted(RequestCounts(waiting=2, held=500))
    gateway._counted(RequestCounts(waiting=0, held=502, held_longest_s=0.2))
    gateway._counted(RequestCounts(waiting=0, held=502, held_longest_s=0.9))
    await until(lambda: told)
    assert told == ["2 0.9"]
    # Over before it was told.
    gateway._counted(RequestCounts(waiting=0, held=503, held_longest_s=0.1))
    await until(lambda: len(told) == 2)
    assert told[1] == "1 0.1"


def drained(gateway: Gateway, in_flight: int, fragile: int = 0) -> RequestCounts:
    told = RequestCounts(drains=True, in_flight=in_flight, fragile=fragile)
    gateway._counted(told)
    return told


async def test_answers_end_before_another_plan_takes_the_place(tmp_path: Path) -> None:
    gateway = made(tmp_path)
    assert await gateway.let_end(PLAN, 60.0) == 0, "nothing serves"
    told = targets(gateway)
    gateway.serves(PLAN, 1, "one", 1.0)
    gateway._counted(RequestCounts(in_flight=3, fragile=2))
    other = replace(PLAN, model="/other.gguf")
    assert (gateway.breaks(PLAN), gateway.breaks(other)) == (2, 3)
    ending = asyncio.create_task(gateway.let_end(PLAN, 60.0))
    await until(lambda: told[-1].drains)
    gateway._counted(RequestCounts(in_flight=1))
    await asyncio.sleep(0.01)
    assert not ending.done(), "told before it drained"
    drained(gateway, in_flight=2, fragile=1)
    await asyncio.sleep(0.01)
    assert not ending.done()
    drained(gateway, in_flight=1)
    assert await asyncio.wait_for(ending, 60) == 0
    assert await gateway.let_end(other, 0.01) == 1


async def test_a_drain_outlasts_what_serves(tmp_path: Path) -> None:
    gateway = made(tmp_path)
    told = targets(gateway)
    gateway.serves(PLAN, 1, "one", 1.0)
    gateway.drain(True)
    gateway.holds(PLAN, 1.0)
    gateway.serves(PLAN, 1, "two", 1.0)
    gateway.drain(False)
    assert [target.drains for target in told] == [False, True, False, True, False]
    assert "dllm-tui resume" in told[1].why
    assert not told[-1].why
