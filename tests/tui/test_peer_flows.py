"""What keys do about peers: parts in the plan, long work, logs, removal."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from backends.errors import ControllerError, DllmError, PlanError
from backends.state import (
    Peer,
    PeerState,
    ProcessInfo,
    ProcessRole,
    ProcessState,
    ProvisionMode,
)
from tests.tui import peer_scenes as people
from tests.tui import scenes
from tests.tui.helpers import screen_text, settled, toasts, until
from tests.tui.scripted import ScriptedCluster
from tui.screens.dialog_choice import ChoiceDialog
from tui.widgets.peer_list import PeerList
from tui.widgets.split_bar import SplitBar

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.pilot import Pilot

    from tui.app import DllmApp

    MakeApp = Callable[..., DllmApp]

SIZE = (120, 36)
HOME = (people.ADA, people.BOB, people.BOX, people.EVE, people.NUC)


class Patient(ScriptedCluster):
    """Long work goes on until the test ends it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.done = asyncio.Event()
        self.ending: DllmError | None = None

    async def provision_peer(
        self, name: str, mode: ProvisionMode = ProvisionMode.AUTO
    ) -> Peer:
        peer = await super().provision_peer(name, mode)
        await self.done.wait()
        if self.ending is not None:
            raise self.ending
        return peer


def cluster_of(*peers: Peer) -> Patient:
    return Patient(
        people.here(*peers or HOME), plans={scenes.GLM.path: people.SPREAD_PLAN}
    )


async def on_peer(pilot: Pilot[None], name: str) -> DllmApp:
    """Select a peer of a console that has a plan on its desk."""
    app: Any = pilot.app
    if app._initial_model:
        await settled(pilot)
    found = app.query_one(PeerList)
    await until(pilot, lambda: found.peers)
    app._home.go_to("peers")
    await pilot.pause()
    found.selected = [peer.name for peer in found.peers].index(name)
    await pilot.pause()
    return app  # type: ignore[no-any-return]


def machines(app: DllmApp) -> list[str]:
    """Who works in the plan on the desk."""
    assert app.desk.plan is not None
    return list(dict.fromkeys(worker.peer for worker in app.desk.plan.workers))


def made(make_app: MakeApp, cluster: ScriptedCluster) -> DllmApp:
    return make_app(cluster, initial_model=scenes.GLM.path)


# --- parts in the plan --------------------------------------------------------------


async def test_w_leaves_a_peer_out_and_takes_it_in_again(make_app: MakeApp) -> None:
    cluster = cluster_of()
    app = made(make_app, cluster)
    async with app.run_test(size=SIZE) as pilot:
        await on_peer(pilot, "ada")
        await pilot.press("w")
        await until(pilot, lambda: machines(app) == ["bob", "box"])
        assert app.desk.plan is not None
        assert app.desk.plan.ctx_size == people.SPREAD_PLAN.ctx_size
        await pilot.press("w")
        await until(pilot, lambda: machines(app) == ["bob", "box", "ada"])
        assert cluster.called("propose_on") == [
            (0, ["bob", "box"], "local"),
            (0, ["bob", "box", "ada"], "local"),
        ]


async def test_u_brings_the_plan_before_back(make_app: MakeApp) -> None:
    app = made(make_app, cluster_of())
    async with app.run_test(size=SIZE) as pilot:
        await on_peer(pilot, "ada")
        before = app.desk.plan
        await pilot.press("w")
        await until(pilot, lambda: machines(app) == ["bob", "box"])
        await pilot.press("u")
        await until(pilot, lambda: app.desk.plan == before)
        await pilot.press("w")
        await until(pilot, lambda: machines(app) == ["bob", "box"])
        app.query_one(SplitBar).focus()
        await until(pilot, lambda: "u undo" in screen_text(app))
        await pilot.press("u")
        await until(pilot, lambda: app.desk.plan == before)


async def test_w_on_this_machine_is_about_its_own_workers(make_app: MakeApp) -> None:
    app = made(make_app, cluster_of())
    async with app.run_test(size=SIZE) as pilot:
        await on_peer(pilot, "local")
        await pilot.press("w")
        await until(pilot, lambda: "local" in machines(app))
        assert machines(app) == ["ada", "bob", "box", "local"]
        await pilot.press("w")
        await until(pilot, lambda: machines(app) == ["ada", "bob", "box"])


async def test_what_the_user_set_survives_a_change_of_parts(make_app: MakeApp) -> None:
    plan = msgspec.structs.replace(
        people.SPREAD_PLAN, parallel=3, extra_args=("--no-mmap",), relay=False
    )
    cluster = cluster_of()
    cluster.plans = {scenes.GLM.path: plan}
    app = made(make_app, cluster)
    async with app.run_test(size=SIZE) as pilot:
        await on_peer(pilot, "ada")
        await pilot.press("w")
        await until(pilot, lambda: machines(app) == ["bob", "box"])
        now = app.desk.plan
        assert now is not None
        assert (now.parallel, now.extra_args, now.relay) == (3, ("--no-mmap",), False)


async def test_h_makes_a_peer_the_head_and_this_machine_again(
    make_app: MakeApp,
) -> None:
    app = made(make_app, cluster_of())
    async with app.run_test(size=SIZE) as pilot:
        await on_peer(pilot, "ada")
        await pilot.press("h")
        await until(pilot, lambda: app.desk.plan and app.desk.plan.head == "ada")
        assert machines(app) == ["bob", "box"]
        assert [d.id for d in app.desk.devices][:1] == ["ada/CPU"]
        assert "• ada      head" in screen_text(app)
        await pilot.press("h")
        await until(pilot, lambda: app.desk.plan and app.desk.plan.head == "local")


async def test_two_quick_changes_are_both_made(make_app: MakeApp) -> None:
    app = made(make_app, cluster_of())
    async with app.run_test(size=SIZE) as pilot:
        await on_peer(pilot, "ada")
        await pilot.press("w", "j", "w")
        await until(pilot, lambda: machines(app) == ["box"])


@pytest.mark.parametrize(
    ("name", "key", "part"),
    [
        ("eve", "w", "No llama.cpp with RPC there. p provisions it"),
        ("nuc", "w", "nuc cannot take part now: nuc.home.arpa does not answer"),
        ("eve", "h", "eve cannot take part now"),
        ("box", "h", "box is a bare rpc-server: it runs no llama-server"),
        ("local", "h", "This machine is the head already"),
        ("box", "p", "nothing can be put there"),
        ("local", "p", "This machine has its engine already"),
        ("local", "c", "This machine has the model already"),
        ("local", "r", "This machine is looked at all the time"),
        ("ada", "x", "Nothing goes on at ada"),
        ("ada", "o", "No process of ours runs at ada"),
        ("local", "delete", "This machine is always there"),
    ],
)
async def test_what_cannot_be_says_why(
    make_app: MakeApp, name: str, key: str, part: str
) -> None:
    cluster = cluster_of()
    app = made(make_app, cluster)
    async with app.run_test(size=SIZE) as pilot:
        await on_peer(pilot, name)
        await pilot.press(key)
        await until(pilot, lambda: toasts(app))
        assert part in toasts(app)[0]
        assert cluster.called("propose_on") == []


@pytest.mark.parametrize("key", ["w", "h", "c"])
async def test_without_a_model_there_is_nothing_to_take_part_in(
    make_app: MakeApp, key: str
) -> None:
    app = make_app(cluster_of())
    async with app.run_test(size=SIZE) as pilot:
        await on_peer(pilot, "ada")
        await pilot.press(key)
        await until(pilot, lambda: toasts(app) == ["Pick a model first: m"])


async def test_the_only_worker_stays(make_app: MakeApp) -> None:
    cluster = cluster_of()
    lone = msgspec.structs.replace(
        people.SPREAD_PLAN, workers=people.SPREAD_PLAN.workers[:1]
    )
    cluster.plans = {scenes.GLM.path: lone}
    app = made(make_app, cluster)
    async with app.run_test(size=SIZE) as pilot:
        await on_peer(pilot, "ada")
        await pilot.press("w")
        await until(pilot, lambda: toasts(app))
        assert "ada is the only worker" in toasts(app)[0]


async def test_peers_that_went_away_do_not_keep_others_from_changing(
    make_app: MakeApp,
) -> None:
    gone = msgspec.structs.replace(people.BOB, state=PeerState.UNREACHABLE)
    app = made(make_app, cluster_of(people.ADA, gone, people.BOX))
    async with app.run_test(size=SIZE) as pilot:
        await on_peer(pilot, "box")
        await pilot.press("w")
        await until(pilot, lambda: machines(app) == ["ada"])
        await until(pilot, lambda: toasts(app))
        assert toasts(app) == ["Left out, for it cannot be used now: bob"]


async def test_a_refused_proposal_is_said_and_changes_nothing(
    make_app: MakeApp,
) -> None:
    cluster = cluster_of()
    app = made(make_app, cluster)
    async with app.run_test(size=SIZE) as pilot:
        await on_peer(pilot, "ada")
        cluster.errors["propose"] = PlanError("It does not fit", "Add a machine.")
        await pilot.press("w")
        await until(pilot, lambda: toasts(app) == ["It does not fit. Add a machine."])
        assert app.desk.plan == people.SPREAD_PLAN


async def test_the_plan_for_peers_launches(make_app: MakeApp) -> None:
    cluster = cluster_of()
    app = made(make_app, cluster)
    async with app.run_test(size=SIZE) as pilot:
        await on_peer(pilot, "bob")
        await pilot.press("w")
        await until(pilot, lambda: machines(app) == ["ada", "box"])
        await pilot.press("l")
        await until(pilot, lambda: cluster.called("launch") == [app.desk.plan])


# --- work ---------------------------------------------------------------------------


async def test_provisioning_ends_with_a_toast(make_app: MakeApp) -> None:
    cluster = cluster_of()
    app = make_app(cluster)
    async with app.run_test(size=SIZE) as pilot:
        await on_peer(pilot, "eve")
        await pilot.press("p")
        await until(pilot, lambda: cluster.called("provision_peer"))
        assert toasts(app) == []
        cluster.done.set()
        await until(pilot, lambda: toasts(app) == ["eve has our engine now"])


async def test_work_that_fails_says_why(make_app: MakeApp) -> None:
    cluster = cluster_of()
    app = make_app(cluster)
    cluster.ending = ControllerError("The disk of eve is full", "Free 2.1 GiB.")
    cluster.done.set()
    async with app.run_test(size=SIZE) as pilot:
        await on_peer(pilot, "eve")
        await pilot.press("p")
        await until(
            pilot, lambda: toasts(app) == ["The disk of eve is full. Free 2.1 GiB."]
        )


async def test_x_ends_the_work_and_that_is_no_failure(make_app: MakeApp) -> None:
    cluster = cluster_of(people.EVE)
    app = make_app(cluster)
    async with app.run_test(size=SIZE) as pilot:
        await on_peer(pilot, "eve")
        await pilot.press("p")
        await until(pilot, lambda: cluster.called("provision_peer"))
        busy = msgspec.structs.replace(
            people.EVE, state=PeerState.PROVISIONING, work=people.FRED.work
        )
        cluster.push(people.here(busy))
        await until(pilot, lambda: "53 %" in screen_text(app))
        await pilot.press("p")
        await until(pilot, lambda: toasts(app))
        assert "eve is busy" in toasts(app)[0]
        await pilot.press("x")
        await until(pilot, lambda: cluster.called("cancel_work") == ["eve"])
        cluster.ending = ControllerError("The work at eve was ended")
        cluster.done.set()
        await until(pilot, lambda: len(toasts(app)) == 2)
        assert toasts(app)[1].startswith("Ended at eve")


async def test_leaving_the_console_ends_no_work(make_app: MakeApp) -> None:
    cluster = cluster_of()
    app = make_app(cluster)
    async with app.run_test(size=SIZE) as pilot:
        await on_peer(pilot, "eve")
        await pilot.press("p")
        await until(pilot, lambda: cluster.called("provision_peer"))
        await pilot.press("q")
        await until(pilot, lambda: not app.is_running)
    assert cluster.called("cancel_work") == []


async def test_the_desks_model_is_copied(make_app: MakeApp) -> None:
    cluster = cluster_of()
    app = made(make_app, cluster)
    async with app.run_test(size=SIZE) as pilot:
        await on_peer(pilot, "bob")
        await pilot.press("c")
        await until(pilot, lambda: toasts(app))
        assert cluster.called("copy_model") == [("bob", scenes.GLM.path)]
        assert toasts(app) == ["bob has GLM-4.7-Flash-Q4_K_M now"]


async def test_a_model_of_a_peer_is_used_where_it_is(make_app: MakeApp) -> None:
    """``ada:/path`` names a file on ada: it is no path here, and copied by nobody."""
    path = "ada:/home/ada/models/big.gguf"
    cluster = cluster_of()
    cluster.models[path] = msgspec.structs.replace(scenes.GLM, path=path)
    cluster.plans[path] = msgspec.structs.replace(people.SPREAD_PLAN, model=path)
    app = make_app(cluster, initial_model=path)
    async with app.run_test(size=SIZE) as pilot:
        await on_peer(pilot, "bob")
        assert cluster.called("inspect") == [path]
        await pilot.press("c")
        await until(pilot, lambda: toasts(app))
        assert "Only ada holds the model" in toasts(app)[0]
        assert cluster.called("copy_model") == []


async def test_probing_says_what_was_found(make_app: MakeApp) -> None:
    cluster = cluster_of()
    app = make_app(cluster)
    async with app.run_test(size=SIZE) as pilot:
        await on_peer(pilot, "ada")
        await pilot.press("r")
        await until(pilot, lambda: toasts(app) == ["ada has been looked at: ready"])


async def test_removing_asks_first(make_app: MakeApp) -> None:
    cluster = cluster_of()
    app = make_app(cluster)
    async with app.run_test(size=SIZE) as pilot:
        await on_peer(pilot, "ada")
        await pilot.press("backspace")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
        await pilot.press("enter")
        await until(pilot, lambda: not isinstance(app.screen, ChoiceDialog))
        assert cluster.called("remove_peer") == []
        await pilot.press("delete", "y")
        await until(pilot, lambda: cluster.called("remove_peer") == ["ada"])


async def test_o_opens_the_log_of_a_peers_worker(make_app: MakeApp) -> None:
    def process(name: str, role: ProcessRole) -> ProcessInfo:
        return ProcessInfo(name=name, role=role, peer="bob", state=ProcessState.RUNNING)

    cluster = cluster_of()
    cluster.logs["bob-CUDA0"] = "hello from bob\n"
    snapshot = msgspec.structs.replace(
        people.here(*HOME),
        processes=(
            process("relay-bob", ProcessRole.RELAY),
            process("bob-CUDA0", ProcessRole.WORKER),
        ),
    )
    cluster.now = snapshot
    app = make_app(cluster)
    async with app.run_test(size=SIZE) as pilot:
        await on_peer(pilot, "bob")
        await pilot.press("o")
        await until(pilot, lambda: "hello from bob" in screen_text(app))


# --- a launch that was refused ------------------------------------------------------


async def test_a_refused_launch_offers_the_key_that_mends_it(
    make_app: MakeApp,
) -> None:
    cluster = Patient(people.refused())
    app = make_app(cluster)
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: "p provisions oldbox" in screen_text(app))
        app._home.go_to("live")
        await until(pilot, lambda: "p provision  " in screen_text(app))
        await pilot.press("p")
        await until(pilot, lambda: cluster.called("provision_peer"))
        assert cluster.called("provision_peer") == [("oldbox", ProvisionMode.AUTO)]


async def test_other_failures_offer_no_such_key(make_app: MakeApp) -> None:
    app = make_app(Patient(scenes.demo_failed()))
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: "ended while it was starting" in screen_text(app))
        app._home.go_to("live")
        await pilot.pause()
        assert "provision" not in screen_text(app)
