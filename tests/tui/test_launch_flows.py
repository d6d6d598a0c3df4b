"""Launching, stopping, balancing, leaving, in the whole console."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from backends.errors import ControllerError, EngineError
from backends.split.layout import counts, with_counts
from backends.state import (
    ClusterSnapshot,
    Peer,
    Plan,
    ProcessInfo,
    ProcessRole,
    ProcessState,
)
from tests.kit.console import Started
from tests.tui import scenes
from tests.tui.flowing import dialog, layers, planning
from tests.tui.helpers import screen_text, toasts, until
from tests.tui.scripted import ScriptedCluster
from tui.dialogs.dialog import ChoiceDialog
from tui.flows.plans import _what_ends
from tui.screens.logs.screen import LogsScreen


async def test_launch_runs_the_split_as_shown_and_keeps_later_edits(
    started: Started,
) -> None:
    async with planning(started) as (pilot, app, cluster):
        await pilot.press("left", "l")
        await until(pilot, lambda: cluster.called("launch"))
        await pilot.press("left")
        (plan,) = cluster.called("launch")
        assert counts(plan.split) == (0, 5, 8)
        cluster.push(scenes.demo_starting(plan))
        await until(pilot, lambda: "model loads" in screen_text(app))
        assert "61 %" in screen_text(app)
        assert layers(app) == (0, 4, 9)
        await pilot.press("u")
        cluster.push(scenes.demo_serving(plan))
        await until(pilot, lambda: "as planned" in screen_text(app))
        assert layers(app) == (0, 5, 8)


async def test_a_file_that_llama_cpp_may_refuse_is_asked_about(
    started: Started,
) -> None:
    caveat = "Stock llama.cpp is likely to refuse this file."
    blob = replace(scenes.DEMO, caveat=caveat)
    cluster = ScriptedCluster(scenes.idle(), models={blob.path: blob})
    async with started(cluster=cluster, initial_model=blob.path) as (pilot, app, _):
        await pilot.press("l")
        asked = await dialog(pilot)
        assert caveat in screen_text(app)
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is not asked)
        assert not cluster.called("launch")
        await pilot.press("l")
        await dialog(pilot)
        await pilot.press("y")
        await until(pilot, lambda: cluster.called("launch"))


async def test_what_runs_is_not_launched_and_an_answer_not_cut_off_unasked(
    started: Started,
) -> None:
    async with started(scenes.homelab_serving()) as (pilot, app, cluster):
        await pilot.press("l")
        await until(pilot, lambda: toasts(app))
        assert toasts(app) == ["This split is already running"]
        assert cluster.called("launch") == []
        await pilot.press("left", "l")
        await dialog(pilot)
        assert "1 request is being answered" in screen_text(app)
        await pilot.press("enter")
        await until(pilot, lambda: not isinstance(app.screen, ChoiceDialog))
        assert cluster.called("launch") == []
        await pilot.press("l")
        await dialog(pilot)
        await pilot.press("y")
        await until(pilot, lambda: cluster.called("launch"))


async def test_too_much_for_a_device_is_asked_first(started: Started) -> None:
    small = replace(scenes.BOX, free_bytes=scenes.GIB)
    peers = scenes.homelab_peers()
    box = replace(peers[2], devices=(small,))
    idle = replace(scenes.idle(), peers=(*peers[:2], box))
    async with started(idle, initial_model=scenes.GLM.path) as (pilot, app, cluster):
        assert "does not fit: box/CUDA0" in screen_text(app)
        await pilot.press("l")
        await dialog(pilot)
        await pilot.press("escape")
        await pilot.pause()
        assert cluster.called("launch") == []


async def test_a_launch_that_fails_shows_what_and_why(started: Started) -> None:
    async with planning(started) as (pilot, app, cluster):
        cluster.push(scenes.demo_failed())
        await until(pilot, lambda: "exit code 1" in screen_text(app))
        text = screen_text(app)
        assert "✗ worker2 ended while it was starting" in text
        assert "$ /opt/llama.cpp/rpc-server -H 127.0.0.1 -p 50053 -d CPU" in text
        assert "[Address already in use]" in text
        await pilot.press("tab", "y")
        assert "Address already in use" in app.clipboard
        await pilot.press("O")
        await until(pilot, lambda: app.current_mode == "logs")
        await pilot.press("f1")
        await until(pilot, lambda: "the launch failed" in screen_text(app))
        failed = scenes.demo_failed()
        assert failed.failure is not None
        broke = replace(failed.failure, served=True)
        cluster.push(replace(failed, failure=broke, seq=9))
        await until(
            pilot, lambda: "nothing runs: the cluster broke" in screen_text(app)
        )


async def test_a_refused_launch_becomes_a_toast(started: Started) -> None:
    cluster = ScriptedCluster(scenes.idle())
    cluster.errors["launch"] = EngineError("No [llama.cpp] found", "Build one.")
    async with started(cluster, initial_model=scenes.DEMO.path) as (pilot, app, _):
        await pilot.press("l")
        await until(pilot, lambda: toasts(app))
        assert toasts(app) == ["No [llama.cpp] found. Build one."]
        await pilot.press("e")
        await until(pilot, lambda: "Events" in screen_text(app))
        assert "No [llama.cpp] found. Build one." in screen_text(app)


async def test_with_nothing_running_q_leaves_and_a_mistake_of_ours_does_not(
    started: Started,
) -> None:
    async with started(scenes.idle(), wait=False) as (pilot, app, cluster):
        await until(pilot, lambda: app.editor.snapshot)

        async def broken() -> None:
            raise ValueError("oops")

        app.attempt(broken(), group="test")
        await until(pilot, lambda: toasts(app))
        assert "Unexpected ValueError in test: oops" in toasts(app)[0]
        await pilot.press("s")
        await until(pilot, lambda: toasts(app)[1:] == ["Nothing runs"])
        await pilot.press("q")
        await until(pilot, lambda: not app.is_running)
    assert cluster.called("shutdown") == [True]


async def test_stop_asks_and_cancel_comes_first(started: Started) -> None:
    async with started(scenes.homelab_serving()) as (pilot, app, cluster):
        for key, stops in (("enter", 0), ("escape", 0), ("y", 1)):
            await pilot.press("s")
            await dialog(pilot)
            assert "GLM-4.7-Flash-Q4_K_M is serving" in screen_text(app)
            await pilot.press(key)
            await until(pilot, lambda: not isinstance(app.screen, ChoiceDialog))
            await until(
                pilot, lambda: not any(w.group == "launch" for w in app.workers)
            )
            assert len(cluster.called("stop")) == stops


async def test_balance_can_be_undone_and_ctrl_c_ends_nothing(started: Started) -> None:
    async with started() as (pilot, app, _):
        await pilot.press("b")
        await pilot.pause()
        assert layers(app) == (34, 7, 7)
        await pilot.press("u")
        await pilot.pause()
        assert layers(app) == (26, 8, 14)
        assert app.editor.unchanged
        await pilot.press("ctrl+c")
        await pilot.pause()
        assert app.is_running
        assert toasts(app)[-1] == "Nothing is selected to copy; q quits"


async def test_balance_counts_what_runs_as_free(started: Started) -> None:
    """A launch gives it back first: where all have as much, all get as much."""
    lopsided = with_counts(scenes.DEMO_PLAN.split, (0, 12, 1))
    plan = replace(scenes.DEMO_PLAN, split=lopsided)
    serving = scenes.demo_serving(plan)
    assert serving.measured is not None
    held = {one.device: one.total_bytes for one in serving.measured.buffers}

    def left_to(peer: Peer) -> Peer:
        devices = (
            replace(
                device,
                memory_pool=device.id,
                free_bytes=sum(held.values()) - held.get(device.id, 0),
            )
            for device in peer.devices
        )
        return replace(peer, devices=tuple(devices))

    peers = tuple(map(left_to, serving.peers))
    running = started(replace(serving, peers=peers))
    async with running as (pilot, app, _):
        assert layers(app) == (0, 12, 1)
        await pilot.press("b")
        await until(pilot, lambda: layers(app) == (0, 6, 7))


async def test_a_stop_during_a_launch_leaves_the_plan_to_be_met_again(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = scenes.homelab_serving()
    speed = replace(serving.speed, requests_active=0)
    cluster = ScriptedCluster(replace(serving, speed=speed))
    asked = asyncio.Event()

    async def launch(plan: Plan, *, replaces: int | None = None) -> ClusterSnapshot:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(cluster, "launch", launch)
    async with started(cluster, initial_model=scenes.DEMO.path) as (pilot, app, _):
        await until(pilot, lambda: app.editor.plan == scenes.DEMO_PLAN)
        app.action_launch()
        await until(pilot, asked.is_set)
        app.action_stop()
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
        assert app.editor._is_news(scenes.DEMO_PLAN), "another console's launch is news"


async def test_the_keys_of_a_failure_work_wherever_it_is_seen(started: Started) -> None:
    failed = scenes.demo_failed()
    assert failed.failure
    ended = ProcessInfo(
        name=failed.failure.process,
        role=ProcessRole.WORKER,
        state=ProcessState.EXITED,
    )
    failed = replace(failed, processes=(ended,))
    async with started(failed) as (pilot, app, _):
        for pane in ("split", "peers", "live"):
            app._home.go_to(pane)
            await pilot.pause()
            assert "O opens the log" in screen_text(app)
            await pilot.press("O")
            await until(pilot, lambda: app.current_mode == "logs")
            logs = app.screen
            assert isinstance(logs, LogsScreen)
            await until(pilot, lambda: logs._active is not None)  # noqa: B023
            assert logs._active
            assert logs._active.info.name == ended.name
            await pilot.press("f1")
            await until(pilot, lambda: app.current_mode == "cluster")


# --- leaving -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "shutdowns"),
    [
        (["c", "q", "escape", "q", "enter"], []),
        (["s"], [False]),
    ],
)
async def test_leaving_a_running_cluster_asks(
    started: Started, keys: list[str], shutdowns: list[bool]
) -> None:
    async with started(scenes.homelab_serving()) as (pilot, app, cluster):
        await pilot.press("q")
        await dialog(pilot)
        for key in keys[:-1]:
            await pilot.press(key)
            assert app.is_running
            assert isinstance(app.screen, ChoiceDialog) is (key in ("q", "down"))
        await pilot.press(keys[-1])
        await until(pilot, lambda: not app.is_running)
    assert cluster.called("shutdown") == shutdowns
    assert ("is serving at http" in app.left_running) is (shutdowns == [])


async def test_a_controller_that_is_gone_keeps_nobody(started: Started) -> None:
    cluster = ScriptedCluster(scenes.idle())
    cluster.errors["shutdown"] = ControllerError("It is gone")
    async with started(cluster, wait=False) as (pilot, app, _):
        await until(pilot, lambda: app.editor.snapshot)
        await pilot.press("q")
        await until(pilot, lambda: not app.is_running)


def test_only_living_processes_are_counted() -> None:
    scene = scenes.homelab_serving()
    for n_alive, said in (
        (3, "3 processes."),
        (1, "1 process."),
        (0, "No process yet."),
    ):
        dead = [
            replace(p, state=ProcessState.EXITED) for p in scene.processes[n_alive:]
        ]
        processes = (*scene.processes[:n_alive], *dead)
        lines = _what_ends(replace(scene, processes=processes)).splitlines()
        assert lines[1:] == [said, "1 request is being answered."]
