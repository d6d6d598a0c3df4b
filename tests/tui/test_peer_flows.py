"""Peers' parts in the plan, in the whole console."""

from __future__ import annotations

import msgspec

from backends.errors import PlanError
from backends.state import (
    LayerRange,
    PeerState,
    ServerSettings,
)
from tests.kit.console import Started
from tests.tui import peer_scenes as people
from tests.tui import scenes
from tests.tui.helpers import screen_text, toasts, until
from tests.tui.lineups import at_peer, cluster_of, machines, on_peer
from tui.screens.cluster.split_bar import SplitBar


async def test_w_leaves_a_peer_out_and_takes_it_in_again(started: Started) -> None:
    async with at_peer(started, "ada") as (pilot, app, cluster):
        await pilot.press("w")
        await until(pilot, lambda: machines(app) == ["bob", "box"])
        assert app.editor.plan is not None
        assert app.editor.plan.ctx_size == people.SPREAD_PLAN.ctx_size
        await pilot.press("w")
        await until(pilot, lambda: machines(app) == ["bob", "box", "ada"])
        assert cluster.called("propose_on") == [
            (0, ("bob", "box"), "local"),
            (0, ("bob", "box", "ada"), "local"),
        ]


async def test_u_brings_the_plan_before_back(started: Started) -> None:
    async with at_peer(started, "ada") as (pilot, app, _):
        before = app.editor.plan
        await pilot.press("w")
        await until(pilot, lambda: machines(app) == ["bob", "box"])
        await pilot.press("u")
        await until(pilot, lambda: app.editor.plan == before)
        await pilot.press("w")
        await until(pilot, lambda: machines(app) == ["bob", "box"])
        app.query_one(SplitBar).focus()
        await until(pilot, lambda: isinstance(app.focused, SplitBar))
        await pilot.press("u")
        await until(pilot, lambda: app.editor.plan == before)


async def test_w_on_this_machine_is_about_its_own_workers(started: Started) -> None:
    async with at_peer(started, "local") as (pilot, app, _):
        await pilot.press("w")
        await until(pilot, lambda: "local" in machines(app))
        assert machines(app) == ["ada", "bob", "box", "local"]
        await pilot.press("w")
        await until(pilot, lambda: machines(app) == ["ada", "bob", "box"])


async def test_w_on_one_of_two_workers_here_leaves_the_other(started: Started) -> None:
    async with started(
        scenes.demo_serving(), initial_model=scenes.DEMO.path, wait=False
    ) as (pilot, app, _):
        await on_peer(pilot, "worker1")
        await pilot.press("w")
        await until(
            pilot, lambda: app.editor.plan and len(app.editor.plan.workers) == 1
        )
        await on_peer(pilot, "worker1")
        await pilot.press("w")
        await until(pilot, lambda: toasts(app))
        assert toasts(app)[-1].startswith("Only local has layers")


async def test_what_the_user_set_survives_a_change_of_parts(started: Started) -> None:
    three = ServerSettings(slots=3, cache_type_k="q8_0")
    plan = msgspec.structs.replace(
        people.SPREAD_PLAN, server=three, extra_args=("--no-mmap",), relay=False
    )
    cluster = cluster_of()
    cluster.plans = {scenes.GLM.path: plan}
    async with at_peer(started, "ada", cluster) as (pilot, app, _):
        await pilot.press("w")
        await until(pilot, lambda: machines(app) == ["bob", "box"])
        now = app.editor.plan
        assert now is not None
        assert (now.server, now.extra_args, now.relay) == (three, ("--no-mmap",), False)


async def test_h_makes_a_peer_the_head_and_this_machine_again(started: Started) -> None:
    async with at_peer(started, "ada") as (pilot, app, _):
        await pilot.press("h")
        await until(pilot, lambda: app.editor.plan and app.editor.plan.head == "ada")
        assert machines(app) == ["bob", "box"]
        assert [d.id for d in app.editor.devices][:1] == ["ada/CPU"]
        assert "• ada      head" in screen_text(app)
        await pilot.press("h")
        await until(pilot, lambda: app.editor.plan and app.editor.plan.head == "local")


async def test_two_quick_changes_are_both_made(started: Started) -> None:
    async with at_peer(started, "ada") as (pilot, app, _):
        await pilot.press("w", "j", "w")
        await until(pilot, lambda: machines(app) == ["box"])


REFUSED = [
    ("eve", "w", "No llama.cpp with RPC there. p provisions it"),
    ("nuc", "w", "nuc cannot take part now: nuc.home.arpa does not answer"),
    ("eve", "h", "eve cannot take part now"),
    ("box", "h", "box is a bare rpc-server: it runs no llama-server"),
    ("local", "h", "This machine is the head already"),
    ("box", "p", "nothing can be put there"),
    ("local", "p", "This machine has its engine already"),
    ("local", "c", "This machine has the model already"),
    ("local", "r", "This machine is probed all the time"),
    ("ada", "x", "No task is running on ada"),
    ("ada", "o", "No process of ours runs at ada"),
    ("local", "delete", "This machine is always there"),
]


async def test_what_cannot_be_says_why(started: Started) -> None:
    async with at_peer(started, "ada") as (pilot, app, cluster):
        for name, key, part in REFUSED:
            await on_peer(pilot, name)
            app.clear_notifications()
            await pilot.press(key)
            await until(pilot, lambda: toasts(app))
            assert part in toasts(app)[0], (name, key)
            assert cluster.called("propose_on") == []


async def test_without_a_model_there_is_nothing_to_take_part_in(
    started: Started,
) -> None:
    async with at_peer(started, "ada", model="") as (pilot, app, _):
        for key in ("w", "h", "c"):
            app.clear_notifications()
            await pilot.press(key)
            await until(pilot, lambda: toasts(app) == ["Pick a model first: m"])


async def test_the_only_worker_stays(started: Started) -> None:
    cluster = cluster_of()
    lone = msgspec.structs.replace(
        people.SPREAD_PLAN, workers=people.SPREAD_PLAN.workers[:1]
    )
    cluster.plans = {scenes.GLM.path: lone}
    async with at_peer(started, "ada", cluster) as (pilot, app, _):
        await pilot.press("w")
        await until(pilot, lambda: toasts(app))
        assert "Only ada has layers" in toasts(app)[0]


async def test_moved_experts_stay_or_are_said_to_be_back(started: Started) -> None:
    runs = LayerRange("local/CPU", 3, 4), LayerRange("ada/CUDA0", 30, 31)
    cluster = cluster_of()
    plan = msgspec.structs.replace(people.SPREAD_PLAN, experts=runs)
    cluster.plans = {scenes.GLM.path: plan}
    async with at_peer(started, "ada", cluster) as (pilot, app, _):
        await pilot.press("w")
        await until(pilot, lambda: machines(app) == ["bob", "box"])
        assert app.editor.plan is not None
        assert app.editor.plan.experts == runs[:1]
        await until(pilot, lambda: toasts(app))
        assert "Experts of 30–31 on ada/CUDA0 are with their" in toasts(app)[0]


async def test_peers_that_went_away_are_skipped(started: Started) -> None:
    gone = msgspec.structs.replace(people.BOB, state=PeerState.UNREACHABLE)
    running = at_peer(started, "box", cluster_of(people.ADA, gone, people.BOX))
    async with running as (pilot, app, _):
        await pilot.press("w")
        await until(pilot, lambda: machines(app) == ["ada"])
        await until(pilot, lambda: toasts(app))
        assert toasts(app) == ["Skipped (unavailable): bob"]


async def test_a_refused_proposal_is_said_and_changes_nothing(started: Started) -> None:
    async with at_peer(started, "ada") as (pilot, app, cluster):
        cluster.errors["propose"] = PlanError("It does not fit", "Add a machine.")
        await pilot.press("w")
        await until(pilot, lambda: toasts(app) == ["It does not fit. Add a machine."])
        assert app.editor.plan == people.SPREAD_PLAN


async def test_the_plan_for_peers_launches(started: Started) -> None:
    async with at_peer(started, "bob") as (pilot, app, cluster):
        await pilot.press("w")
        await until(pilot, lambda: machines(app) == ["ada", "box"])
        await pilot.press("l")
        await until(pilot, lambda: cluster.called("launch") == [app.editor.plan])
