"""Adding a peer by its dialog: by name, by address, and what comes of it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from backends.errors import ControllerError, MachineError, UsageError
from backends.state import (
    FoundWorker,
    FoundWorkers,
    KnownMachine,
    Peer,
    PeerPairing,
    PeerState,
)
from tests.kit.console import Started
from tests.tui import peer_scenes as people
from tests.tui import scenes
from tests.tui.helpers import in_front, screen_text, toasts, until, wheel_down
from tests.tui.peering import adding, on_peers, question
from tests.tui.scripted import ScriptedCluster
from tui.dialogs.add_peer import AddPeerDialog, outcome_of
from tui.dialogs.invite import InviteDialog
from tui.widgets.row_list import ChoiceList

BARE = "10.0.0.9:50052"


async def left(pilot: Pilot[None]) -> None:
    """Leave the dialog by Escape, which may first lead back to the form."""
    while pilot.app.screen.is_modal:
        await pilot.press("escape")
        await pilot.pause()


async def test_adding_by_name_and_by_token(started: Started) -> None:
    async with started(people.here(people.ADA), wait=False) as (pilot, app, cluster):
        dialog = await adding(pilot)
        await pilot.press(*"ada@mini.lan")
        assert dialog._called.value == "mini"
        await pilot.press("enter")
        await until(pilot, lambda: cluster.called("add_peer"))
        assert cluster.called("add_peer") == [("mini", "ada@mini.lan", None)]
        await until(pilot, lambda: "Reaching mini…" in screen_text(app))
        ready = replace(people.ADA, name="mini")
        cluster.push(people.here(people.ADA, ready))
        await until(pilot, lambda: "mini is ready: CPU 42.7 GiB" in screen_text(app))
        await until(pilot, lambda: isinstance(app.focused, ChoiceList))
        await pilot.press("c")
        await until(pilot, lambda: not isinstance(app.screen, AddPeerDialog))
        cluster.calls.clear()
        dialog = await adding(pilot)
        await pilot.press(*"dllm1-AbC_9")
        assert dialog._called.value == "", "it names itself"
        await pilot.press("enter")
        await until(pilot, lambda: cluster.called("add_peer"))
        assert cluster.called("add_peer") == [("", "dllm1-AbC_9", None)]
        lent = replace(
            people.ADA, name="lent", transport="invited", state=PeerState.NO_ENGINE
        )
        cluster.push(people.here(people.ADA, lent))
        await until(pilot, lambda: "lent is reached" in screen_text(app))
        # Its owner installs what it lacks.
        assert [choice.id for choice in outcome_of(lent).choices] == ["close"]


FOUND = FoundWorker(name="nuc", address="10.0.0.7:50080", version="0.1.0", id="k")
OTHER = FoundWorker(name="[b]eve\x1b[2J", address="10.0.0.8:50080")


async def test_workers_found_here_come_and_go(started: Started) -> None:
    async with started(scenes.idle(), wait=False) as (pilot, app, cluster):
        dialog = await adding(pilot)
        ours = replace(FOUND, name="ours", peer="mini")
        cluster.found = FoundWorkers(workers=(OTHER, FOUND, ours), settled=True)
        await until(pilot, lambda: "found here" in screen_text(app))
        text = screen_text(app)
        assert "nuc" in text
        assert "10.0.0.7:50080  0.1.0" in text
        assert "[b]eve" in text
        assert "ours" not in text
        assert "\x1b" not in text
        await pilot.press("down", "down")
        cluster.found = FoundWorkers(workers=(FOUND,), settled=True)
        await until(pilot, lambda: "eve" not in screen_text(app))
        # The cursor stays with its row.
        assert dialog._names.chosen == FOUND
        cluster.found = FoundWorkers(settled=True, problem="No multicast: [b]why")
        await until(pilot, lambda: "No multicast: [b]why" in screen_text(app))


async def comparing(
    pilot: Pilot[None], cluster: ScriptedCluster, found: FoundWorker = FOUND
) -> AddPeerDialog:
    dialog = await adding(pilot)
    cluster.found = FoundWorkers(workers=(found,), settled=True)
    cluster.pairing = PeerPairing(name=found.name, digits="012345")
    await until(pilot, lambda: dialog._names.rows[0] == found)
    await pilot.press("down", "enter")
    await until(pilot, lambda: "show 012 345?" in screen_text(pilot.app))
    await until(pilot, lambda: isinstance(pilot.app.focused, ChoiceList))
    return dialog


async def test_digits_are_compared_with_the_owner(started: Started) -> None:
    async with started(scenes.idle(), wait=False) as (pilot, app, cluster):
        for key in ("n", "escape", "enter"):
            await comparing(pilot, cluster)
            await pilot.press(key)
            await until(pilot, lambda: cluster.called("decide_pairing"))
            assert cluster.called("decide_pairing") == [("012345", False)], key
            await left(pilot)
            cluster.calls.clear()
        dialog = await comparing(pilot, cluster, OTHER)
        assert "[b]eve" in screen_text(app)
        cluster.errors["pairing_outcome"] = MachineError("The owner of nuc refused")
        await pilot.press("y")
        cluster.paired.set()
        await until(pilot, lambda: "The owner of nuc refused" in screen_text(app))
        assert app.focused is dialog._address, "the form is back"
        assert not dialog.query(ChoiceList)
        await left(pilot)
        cluster.calls.clear()
        cluster.errors.clear()
        cluster.paired.clear()
        await comparing(pilot, cluster)
        assert cluster.called("begin_pairing") == [("", "10.0.0.7:50080")]
        assert not cluster.called("add_peer")
        await pilot.press("y")
        await until(pilot, lambda: "Waiting for the owner" in screen_text(app))
        assert cluster.called("decide_pairing") == [("012345", True)]
        lent = replace(people.ADA, name="nuc", transport="invited")
        cluster.push(people.here(people.ADA, lent))
        cluster.paired.set()
        await until(pilot, lambda: "nuc is ready" in screen_text(app))
        await until(pilot, lambda: isinstance(app.focused, ChoiceList))


async def added(pilot: Pilot[None], cluster: ScriptedCluster) -> tuple[str | None, ...]:
    """What the form asked for; the dialog is left, the peer stays."""
    await until(pilot, lambda: cluster.called("add_peer"))
    (asked,) = cluster.called("add_peer")
    await left(pilot)
    assert cluster.called("remove_peer") == []
    cluster.calls.clear()
    return asked  # type: ignore[no-any-return]


async def test_what_is_typed_is_added_and_left_to_itself(started: Started) -> None:
    named = [*"mini", "tab", "2", "shift+tab", "end", "x"]
    bare = [*BARE, "tab", "tab", "space"]
    ticked_first = ["tab", "tab", "space", "shift+tab", "shift+tab", *BARE]
    async with started(scenes.idle(), wait=False) as (pilot, app, cluster):
        for keys, wanted in (
            (named, ("2", "minix", None)),
            (bare, ("10.0.0.9", None, BARE)),
            (ticked_first, ("10.0.0.9", None, BARE)),
        ):
            await adding(pilot)
            await pilot.press(*keys)
            await pilot.pause()
            assert ("10.0.0.7:50052" in screen_text(app)) is (wanted[2] == BARE)
            await pilot.press("enter")
            assert await added(pilot, cluster) == wanted
        await adding(pilot)
        await pilot.press(*"mini:2222", "enter")
        await until(pilot, lambda: cluster.called("add_peer"))
        assert cluster.called("begin_pairing") == [("mini", "mini:2222")]
        assert await added(pilot, cluster) == ("mini", "mini:2222", None)


async def test_names_are_picked_by_keys_and_mouse(started: Started) -> None:
    box = KnownMachine(
        name="box",
        address="ada@10.0.0.8:2222",
        told_by="[b]mac\x1b[2J",
        devices=people.ADA.devices,
        fingerprints=("SHA256:abc",),
    )
    async with started(scenes.idle(), wait=False) as (pilot, app, cluster):
        dialog = await adding(pilot)
        assert [one.name for one in dialog._names.rows] == ["studio", "mini", "nuc"]
        await pilot.press("u")
        assert [one.name for one in dialog._names.rows] == ["studio", "nuc"]
        await pilot.press("down", "down", "enter")
        assert await added(pilot, cluster) == ("nuc", "nuc", None)
        dialog = await adding(pilot)
        await until(pilot, lambda: dialog._names.size.height == 3)
        await pilot.click(dialog._names, offset=(3, 1))
        await until(pilot, lambda: dialog._address.value == "mini")
        await wheel_down(pilot, dialog._names)
        await until(pilot, lambda: dialog._address.value == "nuc")
        await app.action_press_key("enter")
        assert await added(pilot, cluster) == ("nuc", "nuc", None)
        # Another console told of this one.
        cluster.told = (box,)
        dialog = await adding(pilot)
        await until(pilot, lambda: "told by [b]mac" in screen_text(app))
        assert "ada@10.0.0.8:2222  told by" in screen_text(app)
        await pilot.press("down")
        assert dialog._called.value == "box"
        await pilot.press("enter")
        assert await added(pilot, cluster) == ("box", box.address, None, "SHA256:abc")


async def test_what_is_wrong_is_said_in_place(started: Started) -> None:
    cluster = ScriptedCluster(scenes.idle())
    cluster.errors["peers_to_pick"] = ControllerError("No permission")
    async with started(cluster, wait=False) as (pilot, app, _):
        await on_peers(pilot)
        await pilot.press("a")
        await until(pilot, lambda: "No permission" in screen_text(app))
        dialog = await in_front(pilot, AddPeerDialog)
        await pilot.press("enter")
        await until(pilot, lambda: "Type an address" in screen_text(app))
        cluster.errors["add_peer"] = UsageError("'a b' cannot be a host", "Mend it.")
        await pilot.press("a", "enter")
        await until(
            pilot, lambda: "'a b' cannot be a host. Mend it." in screen_text(app)
        )
        assert dialog.follows == ""
        await pilot.press("b")
        assert "cannot be a host" not in screen_text(app)
        assert toasts(app) == []


async def test_a_new_peers_question_and_trouble_are_told(started: Started) -> None:
    async with started(scenes.idle(), wait=False) as (pilot, app, cluster):
        dialog = await adding(pilot)
        await pilot.press(*"mini", "enter")
        await until(pilot, lambda: dialog.follows)
        cluster.push(people.here(people.MINI))
        await question(pilot)
        await pilot.press("down", "enter")
        await until(pilot, lambda: cluster.called("answer_peer"))
        assert app.screen is dialog
        unfit = replace(people.EVE, name="mini")
        cluster.push(people.here(unfit))
        await until(pilot, lambda: "p Install the engine" in screen_text(app))
        await until(pilot, lambda: isinstance(app.focused, ChoiceList))
        await pilot.press("p")
        await until(pilot, lambda: cluster.called("provision_peer"))
        await left(pilot)
        dialog = await adding(pilot)
        await pilot.press(*"nuc", "enter")
        await until(pilot, lambda: dialog.follows)
        cluster.push(people.here(unfit, people.NUC))
        await until(pilot, lambda: "does not answer within 10 s" in screen_text(app))
        await until(pilot, lambda: isinstance(app.focused, ChoiceList))
        await pilot.press("e")
        await until(pilot, lambda: cluster.called("remove_peer") == ["nuc"])
        await until(pilot, lambda: app.focused is dialog._address)
        assert dialog._address.value == "nuc"


async def test_a_new_peer_joins_the_split_once(started: Started) -> None:
    plans = {scenes.GLM.path: people.SPREAD_PLAN}
    cluster = ScriptedCluster(people.here(people.BOB, people.BOX), plans=plans)
    async with started(cluster, initial_model=scenes.GLM.path) as (pilot, app, _):
        dialog = await adding(pilot)
        await pilot.press(*"ada", "enter")
        await until(pilot, lambda: dialog.follows)
        cluster.push(people.here(people.BOB, people.BOX, people.ADA))
        await until(pilot, lambda: isinstance(app.focused, ChoiceList))
        await pilot.press("w")
        await until(pilot, lambda: toasts(app))
        assert toasts(app) == ["ada is already in the split"]


@pytest.mark.parametrize("peer", people.EVERY, ids=lambda peer: peer.state.value)
def test_every_state_has_an_outcome(peer: Peer) -> None:
    outcome = outcome_of(peer)
    busy = peer.state in (PeerState.PROBING, PeerState.PROVISIONING)
    assert outcome.text
    assert bool(outcome.choices) != busy
    assert "dllm-tui" not in outcome.text


async def test_a_machine_is_invited_and_joins(started: Started) -> None:
    running = started(people.here(people.ADA), wait=False)
    async with running as (pilot, app, cluster):
        await adding(pilot)
        await pilot.press("ctrl+n")
        await until(pilot, lambda: "port 50070 for it to join" in screen_text(app))
        await pilot.press("escape", "I")
        await until(pilot, lambda: isinstance(app.screen, InviteDialog))
        await until(pilot, lambda: "for it to join (1 h 00 m left)" in screen_text(app))
        assert cluster.called("invite_peer") == 2 * [("", 3600.0)]
        assert "dllm-tui join" in screen_text(app)
        assert "█▄" not in screen_text(app), "no room for the code"
        await pilot.press("y")
        assert app.clipboard.startswith("dllm1-aB3_")
        await pilot.resize_terminal(120, 60)
        await until(pilot, lambda: "█▄" in screen_text(app))
        lent = replace(people.ADA, name="nuc", transport="invited")
        cluster.joined = replace(lent, state=PeerState.PROBING)
        await until(pilot, lambda: "It has joined as nuc." in screen_text(app))
        assert "dllm1-" not in screen_text(app)
        cluster.push(people.here(people.ADA, lent))
        await until(pilot, lambda: "nuc is ready" in screen_text(app))
        await until(pilot, lambda: isinstance(app.focused, ChoiceList))
        await pilot.press("c")
        assert not app.screen.is_modal
