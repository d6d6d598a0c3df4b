"""Peers' parts in the plan, and work on them, in the whole console."""

from __future__ import annotations

from msgspec.structs import replace

from backends.errors import ControllerError, PlanError
from backends.state import (
    LayerRange,
    PeerState,
    ProcessInfo,
    ProcessRole,
    ProcessState,
    ProvisionMode,
    ServerSettings,
)
from tests.kit.console import Started
from tests.tui import peer_scenes as people
from tests.tui import scenes
from tests.tui.helpers import screen_text, toasts, until
from tests.tui.peer_consoles import (
    HOME,
    Patient,
    at_peer,
    cluster_of,
    machines,
    on_peer,
)
from tui.dialogs.dialog import ChoiceDialog
from tui.screens.cluster.split_bar import SplitBar


async def test_w_leaves_a_peer_out_or_takes_it_in_u_undoes(started: Started) -> None:
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
    runs = LayerRange("local/CPU", 3, 4), LayerRange("ada/CUDA0", 30, 31)
    cluster = cluster_of()
    cluster.plans[scenes.GLM.path] = replace(
        people.SPREAD_PLAN,
        server=three,
        extra_args=("--no-mmap",),
        relay=False,
        experts=runs,
    )
    async with at_peer(started, "ada", cluster) as (pilot, app, _):
        await pilot.press("w")
        await until(pilot, lambda: machines(app) == ["bob", "box"])
        now = app.editor.plan
        assert now is not None
        assert (now.server, now.extra_args, now.relay) == (three, ("--no-mmap",), False)
        assert now.experts == runs[:1]
        await until(pilot, lambda: toasts(app))
        assert "Experts of 30–31 on ada/CUDA0 are with their" in toasts(app)[0]


async def test_h_makes_a_peer_the_head_and_this_machine_again(started: Started) -> None:
    async with at_peer(started, "ada") as (pilot, app, _):
        await pilot.press("h")
        await until(pilot, lambda: app.editor.plan and app.editor.plan.head == "ada")
        assert machines(app) == ["bob", "box"]
        assert [d.id for d in app.editor.devices][:1] == ["ada/CPU"]
        assert "• ada      head" in screen_text(app)
        await pilot.press("h")
        await until(pilot, lambda: app.editor.plan and app.editor.plan.head == "local")


async def test_two_quick_changes_are_both_made_and_launched(started: Started) -> None:
    async with at_peer(started, "ada") as (pilot, app, cluster):
        await pilot.press("w", "j", "w")
        await until(pilot, lambda: machines(app) == ["box"])
        await pilot.press("l")
        await until(pilot, lambda: cluster.called("launch") == [app.editor.plan])


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
        await on_peer(pilot, "ada")
        cluster.errors["propose"] = PlanError("It does not fit", "Add a machine.")
        await pilot.press("w")
        refusal = "It does not fit. Add a machine."
        await until(pilot, lambda: toasts(app)[-1] == refusal)
        assert app.editor.plan == people.SPREAD_PLAN


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
    lone = replace(people.SPREAD_PLAN, workers=people.SPREAD_PLAN.workers[:1])
    cluster.plans = {scenes.GLM.path: lone}
    async with at_peer(started, "ada", cluster) as (pilot, app, _):
        await pilot.press("w")
        await until(pilot, lambda: toasts(app))
        assert "Only ada has layers" in toasts(app)[0]


async def test_peers_that_went_away_are_skipped(started: Started) -> None:
    gone = replace(people.BOB, state=PeerState.UNREACHABLE)
    running = at_peer(started, "box", cluster_of(people.ADA, gone, people.BOX))
    async with running as (pilot, app, _):
        await pilot.press("w")
        await until(pilot, lambda: machines(app) == ["ada"])
        await until(pilot, lambda: toasts(app))
        assert toasts(app) == ["Skipped (unavailable): bob"]


# --- work on them ------------------------------------------------------------------


async def test_provisioning_ends_with_a_toast_and_goes_on_without_a_console(
    started: Started,
) -> None:
    async with at_peer(started, "eve", model="") as (pilot, app, cluster):
        await pilot.press("p")
        await until(pilot, lambda: cluster.called("provision_peer"))
        assert toasts(app) == []
        cluster.done.set()
        told = ["eve has our engine now"]
        await until(pilot, lambda: toasts(app) == told)
        cluster.provisioned_note = "No GPU there that it can use"
        await pilot.press("p")
        told.append("eve has our engine now: No GPU there that it can use")
        await until(pilot, lambda: toasts(app) == told)
        cluster.ending = ControllerError("The disk of eve is full", "Free 2.1 GiB.")
        await pilot.press("p")
        told.append("The disk of eve is full. Free 2.1 GiB.")
        await until(pilot, lambda: toasts(app) == told)
        cluster.done.clear()
        await pilot.press("p")
        await until(pilot, lambda: len(cluster.called("provision_peer")) == 4)
        await pilot.press("q")
        await until(pilot, lambda: not app.is_running)
    assert cluster.called("cancel_work") == []


async def test_a_machine_that_is_ready_now_can_be_added_to_the_split(
    started: Started,
) -> None:
    cluster = cluster_of()
    cluster.provisioned_note = "No GPU there."
    cluster.done.set()
    async with at_peer(started, "eve", cluster) as (pilot, app, _):
        await until(pilot, lambda: app.editor.plan)
        await pilot.press("p")
        told = "eve has our engine now: No GPU there. w adds it to the split"
        await until(pilot, lambda: toasts(app) == [told])


async def test_x_ends_the_work_and_that_is_no_failure(started: Started) -> None:
    running = at_peer(started, "eve", cluster_of(people.EVE), model="")
    async with running as (pilot, app, cluster):
        await pilot.press("p")
        await until(pilot, lambda: cluster.called("provision_peer"))
        busy = replace(people.EVE, state=PeerState.PROVISIONING, work=people.FRED.work)
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
        assert toasts(app)[1].startswith("Cancelled on eve")


async def test_the_edited_plans_model_is_copied(started: Started) -> None:
    async with at_peer(started, "bob") as (pilot, app, cluster):
        await pilot.press("c")
        await until(pilot, lambda: toasts(app))
        assert cluster.called("deliver") == [("bob", scenes.GLM.path)]
        assert toasts(app) == ["bob has GLM-4.7-Flash-Q4_K_M now"]


async def test_a_model_of_a_peer_is_used_where_it_is(started: Started) -> None:
    """``ada:/path`` names a file on ada: it is no path here, and copied by nobody."""
    path = "ada:/home/ada/models/big.gguf"
    cluster = cluster_of()
    cluster.models[path] = replace(scenes.GLM, path=path)
    cluster.plans[path] = replace(people.SPREAD_PLAN, model=path)
    async with started(cluster, initial_model=path, wait=False) as (pilot, app, _):
        await on_peer(pilot, "bob")
        assert cluster.called("inspect") == [path]
        await pilot.press("c")
        await until(pilot, lambda: toasts(app))
        assert "Only ada holds the model" in toasts(app)[0]
        assert cluster.called("deliver") == []


async def test_probing_says_what_was_found_and_removing_asks(started: Started) -> None:
    async with at_peer(started, "ada", model="") as (pilot, app, cluster):
        await pilot.press("r")
        await until(pilot, lambda: toasts(app) == ["Probed ada: ready"])
        await pilot.press("backspace")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
        await pilot.press("enter")
        await until(pilot, lambda: not isinstance(app.screen, ChoiceDialog))
        assert cluster.called("remove_peer") == []
        await pilot.press("delete", "y")
        await until(pilot, lambda: cluster.called("remove_peer") == ["ada"])


async def test_o_opens_the_log_of_a_peers_worker(started: Started) -> None:
    def process(name: str, role: ProcessRole) -> ProcessInfo:
        return ProcessInfo(name=name, role=role, peer="bob", state=ProcessState.RUNNING)

    cluster = cluster_of()
    cluster.logs["bob-CUDA0"] = "hello from bob\n"
    snapshot = replace(
        people.here(*HOME),
        processes=(
            process("relay-bob", ProcessRole.RELAY),
            process("bob-CUDA0", ProcessRole.WORKER),
        ),
    )
    cluster.now = snapshot
    async with at_peer(started, "bob", cluster, model="") as (pilot, app, _):
        await pilot.press("o")
        await until(pilot, lambda: "hello from bob" in screen_text(app))


async def test_a_refused_launch_offers_the_key_that_mends_it(started: Started) -> None:
    cluster = Patient(people.refused())
    async with started(cluster, wait=False) as (pilot, app, _):
        await until(pilot, lambda: "P provisions oldbox" in screen_text(app))
        app._home.go_to("live")
        await pilot.press("P")
        await until(pilot, lambda: cluster.called("provision_peer"))
        assert cluster.called("provision_peer") == [("oldbox", ProvisionMode.AUTO)]
        cluster.push(replace(scenes.demo_failed(), seq=9))
        await until(pilot, lambda: "ended while it was starting" in screen_text(app))
        assert "provision" not in screen_text(app), "it mends no other failure"
