"""Work on peers: installing, copying, looking, removing, and refused launches."""

from __future__ import annotations

import msgspec

from backends.errors import ControllerError
from backends.state import (
    PeerState,
    ProcessInfo,
    ProcessRole,
    ProcessState,
    ProvisionMode,
)
from tests.kit.console import Started
from tests.tui import peer_scenes as people
from tests.tui import scenes
from tests.tui.helpers import screen_text, toasts, until
from tests.tui.lineups import HOME, Patient, at_peer, cluster_of, on_peer
from tui.dialogs.dialog import ChoiceDialog


async def test_provisioning_ends_with_a_toast(started: Started) -> None:
    async with at_peer(started, "eve", model="") as (pilot, app, cluster):
        await pilot.press("p")
        await until(pilot, lambda: cluster.called("provision_peer"))
        assert toasts(app) == []
        cluster.done.set()
        await until(pilot, lambda: toasts(app) == ["eve has our engine now"])


async def test_what_may_surprise_about_an_engine_is_told(started: Started) -> None:
    cluster = cluster_of()
    cluster.provisioned_note = "No GPU there that it can use"
    cluster.done.set()
    async with at_peer(started, "eve", cluster, model="") as (pilot, app, _):
        await pilot.press("p")
        told = "eve has our engine now: No GPU there that it can use"
        await until(pilot, lambda: toasts(app) == [told])


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


async def test_work_that_fails_says_why(started: Started) -> None:
    cluster = cluster_of()
    cluster.ending = ControllerError("The disk of eve is full", "Free 2.1 GiB.")
    cluster.done.set()
    async with at_peer(started, "eve", cluster, model="") as (pilot, app, _):
        await pilot.press("p")
        await until(
            pilot, lambda: toasts(app) == ["The disk of eve is full. Free 2.1 GiB."]
        )


async def test_x_ends_the_work_and_that_is_no_failure(started: Started) -> None:
    running = at_peer(started, "eve", cluster_of(people.EVE), model="")
    async with running as (pilot, app, cluster):
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
        assert toasts(app)[1].startswith("Cancelled on eve")


async def test_leaving_the_console_ends_no_work(started: Started) -> None:
    async with at_peer(started, "eve", model="") as (pilot, app, cluster):
        await pilot.press("p")
        await until(pilot, lambda: cluster.called("provision_peer"))
        await pilot.press("q")
        await until(pilot, lambda: not app.is_running)
    assert cluster.called("cancel_work") == []


async def test_the_desks_model_is_copied(started: Started) -> None:
    async with at_peer(started, "bob") as (pilot, app, cluster):
        await pilot.press("c")
        await until(pilot, lambda: toasts(app))
        assert cluster.called("deliver") == [("bob", scenes.GLM.path)]
        assert toasts(app) == ["bob has GLM-4.7-Flash-Q4_K_M now"]


async def test_a_model_of_a_peer_is_used_where_it_is(started: Started) -> None:
    """``ada:/path`` names a file on ada: it is no path here, and copied by nobody."""
    path = "ada:/home/ada/models/big.gguf"
    cluster = cluster_of()
    cluster.models[path] = msgspec.structs.replace(scenes.GLM, path=path)
    cluster.plans[path] = msgspec.structs.replace(people.SPREAD_PLAN, model=path)
    async with started(cluster, initial_model=path, wait=False) as (pilot, app, _):
        await on_peer(pilot, "bob")
        assert cluster.called("inspect") == [path]
        await pilot.press("c")
        await until(pilot, lambda: toasts(app))
        assert "Only ada holds the model" in toasts(app)[0]
        assert cluster.called("deliver") == []


async def test_probing_says_what_was_found(started: Started) -> None:
    async with at_peer(started, "ada", model="") as (pilot, app, _):
        await pilot.press("r")
        await until(pilot, lambda: toasts(app) == ["Probed ada: ready"])


async def test_removing_asks_first(started: Started) -> None:
    async with at_peer(started, "ada", model="") as (pilot, app, cluster):
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
    snapshot = msgspec.structs.replace(
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


async def test_other_failures_offer_no_such_key(started: Started) -> None:
    async with started(Patient(scenes.demo_failed()), wait=False) as (pilot, app, _):
        await until(pilot, lambda: "ended while it was starting" in screen_text(app))
        app._home.go_to("live")
        await pilot.pause()
        assert "provision" not in screen_text(app)
