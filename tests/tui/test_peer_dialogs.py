"""The dialogs about peers: adding one, answering one, reading what is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from backends.errors import ControllerError, UsageError
from backends.state import Peer, PeerAnswer, PeerState, QuestionKind, Transport
from tests.tui import peer_scenes as people
from tests.tui import scenes
from tests.tui.helpers import screen_text, settled, toasts, until
from tests.tui.scripted import ScriptedCluster
from tui.screens.dialog_add_peer import AddPeerDialog
from tui.screens.dialog_peer import PeerDialog
from tui.screens.dialog_question import HostKeyDialog, QuestionDialog, SecretDialog
from tui.widgets.choice_list import ChoiceList
from tui.widgets.peer_facts import peer_rows
from tui.widgets.peer_list import PeerList
from tui.widgets.peer_outcome import outcome_of, suggested_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.pilot import Pilot

    from tui.app import DllmApp

    MakeApp = Callable[..., DllmApp]

SIZE = (120, 36)


async def on_peers(pilot: Pilot[None]) -> None:
    """The list of peers has the focus."""
    app: Any = pilot.app
    await until(pilot, lambda: app.query_one(PeerList).peers)
    app._home.go_to("peers")
    await pilot.pause()


async def question(pilot: Pilot[None]) -> QuestionDialog:
    await until(pilot, lambda: isinstance(pilot.app.screen, QuestionDialog))
    screen = pilot.app.screen
    assert isinstance(screen, QuestionDialog)
    return screen


async def adding(pilot: Pilot[None]) -> AddPeerDialog:
    await on_peers(pilot)
    await pilot.press("a")
    await until(pilot, lambda: isinstance(pilot.app.screen, AddPeerDialog))
    screen = pilot.app.screen
    assert isinstance(screen, AddPeerDialog)
    await until(pilot, lambda: screen._names.names)
    return screen


def asks(kind: QuestionKind, name: str = "mini") -> Peer:
    asked = {
        QuestionKind.HOST_KEY: people.HOST_KEY,
        QuestionKind.PASSWORD: people.PASSWORD,
        QuestionKind.PASSPHRASE: people.PASSPHRASE,
    }
    return msgspec.structs.replace(
        people.MINI, name=name, question=asked[kind], note=asked[kind].text
    )


# --- questions ----------------------------------------------------------------------


async def test_a_host_key_is_shown_and_trusted(make_app: MakeApp) -> None:
    cluster = ScriptedCluster(people.here(people.MINI))
    app = make_app(cluster)
    async with app.run_test(size=SIZE) as pilot:
        dialog = await question(pilot)
        assert isinstance(dialog, HostKeyDialog)
        text = screen_text(app)
        for part in ("ada@mini.lan", "ssh-ed25519", "SHA256", "uNiV ztks CsDh"):
            assert part in text
        await pilot.press("down", "enter")
        await until(pilot, lambda: cluster.called("answer_peer"))
        answer = PeerAnswer(kind=QuestionKind.HOST_KEY, text=people.FINGERPRINT)
        assert cluster.called("answer_peer") == [("mini", answer)]


@pytest.mark.parametrize("key", ["enter", "escape", "n", "y", "t"])
async def test_nothing_but_a_decision_trusts_a_key(make_app: MakeApp, key: str) -> None:
    cluster = ScriptedCluster(people.here(people.MINI))
    app = make_app(cluster)
    async with app.run_test(size=SIZE) as pilot:
        await question(pilot)
        await pilot.press(key)
        await pilot.pause()
        assert cluster.called("answer_peer") == []


@pytest.mark.parametrize("kind", [QuestionKind.PASSWORD, QuestionKind.PASSPHRASE])
async def test_a_secret_is_not_shown(make_app: MakeApp, kind: QuestionKind) -> None:
    cluster = ScriptedCluster(people.here(asks(kind)))
    app = make_app(cluster)
    async with app.run_test(size=SIZE) as pilot:
        assert isinstance(await question(pilot), SecretDialog)
        assert "never stored" in screen_text(app)
        await pilot.press("enter")
        assert cluster.called("answer_peer") == []
        await pilot.press(*"s3 q!".replace(" ", ""))
        assert "s3q!" not in screen_text(app)
        assert "••••" in screen_text(app)
        await pilot.press("enter")
        await until(pilot, lambda: cluster.called("answer_peer"))
        answer = PeerAnswer(kind=kind, text="s3q!")
        assert cluster.called("answer_peer") == [("mini", answer)]
        assert all("s3q!" not in event.text for event in app.event_log)


async def test_a_question_is_put_once_and_again_by_enter(make_app: MakeApp) -> None:
    cluster = ScriptedCluster(people.here(people.MINI))
    app = make_app(cluster)
    async with app.run_test(size=SIZE) as pilot:
        await question(pilot)
        await pilot.press("escape")
        later = msgspec.structs.replace(people.here(people.MINI), seq=9)
        cluster.push(later)
        await until(pilot, lambda: app.desk.snapshot == later)
        assert not isinstance(app.screen, QuestionDialog)
        await on_peers(pilot)
        await pilot.press("j", "enter")
        await question(pilot)


async def test_a_question_asked_anew_is_put_anew(make_app: MakeApp) -> None:
    cluster = ScriptedCluster(people.here(asks(QuestionKind.PASSWORD)))
    app = make_app(cluster)
    async with app.run_test(size=SIZE) as pilot:
        await question(pilot)
        await pilot.press("x", "enter")
        again = msgspec.structs.replace(asks(QuestionKind.PASSWORD), since=scenes.NOW)
        cluster.push(people.here(again))
        await until(pilot, lambda: cluster.called("answer_peer"))
        await question(pilot)


async def test_several_questions_come_one_after_the_other(make_app: MakeApp) -> None:
    cluster = ScriptedCluster(
        people.here(people.MINI, asks(QuestionKind.PASSWORD, "bob"))
    )
    app = make_app(cluster)
    async with app.run_test(size=SIZE) as pilot:
        assert isinstance(await question(pilot), HostKeyDialog)
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, SecretDialog))


async def test_who_types_is_not_interrupted(make_app: MakeApp) -> None:
    cluster = ScriptedCluster(scenes.homelab_serving())
    app = make_app(cluster)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        app._home.go_to("chat")
        await pilot.press("i", "h", "e")
        peers = (*scenes.homelab_peers(PeerState.SERVING), people.MINI)
        cluster.push(msgspec.structs.replace(scenes.homelab_serving(), peers=peers))
        await until(pilot, lambda: toasts(app))
        assert toasts(app) == ["mini asks you something: Enter on it answers"]
        assert not isinstance(app.screen, QuestionDialog)


async def test_a_question_on_another_screen_is_a_toast(make_app: MakeApp) -> None:
    cluster = ScriptedCluster(scenes.idle())
    app = make_app(cluster)
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: app.desk.snapshot)
        await app.action_show_mode("logs")
        cluster.push(people.here(people.MINI))
        await until(pilot, lambda: toasts(app))
        assert not isinstance(app.screen, QuestionDialog)


async def test_a_question_answered_elsewhere_goes_away(make_app: MakeApp) -> None:
    cluster = ScriptedCluster(people.here(people.MINI))
    app = make_app(cluster)
    async with app.run_test(size=SIZE) as pilot:
        await question(pilot)
        cluster.push(people.here(people.ADA))
        await until(pilot, lambda: not isinstance(app.screen, QuestionDialog))
        assert cluster.called("answer_peer") == []


async def test_text_of_a_machine_is_no_markup(make_app: MakeApp) -> None:
    asked = msgspec.structs.replace(people.PASSWORD, text="[red]Word[/] \x1b[2J?")
    peer = msgspec.structs.replace(people.MINI, question=asked, note=asked.text)
    app = make_app(ScriptedCluster(people.here(peer)))
    async with app.run_test(size=SIZE) as pilot:
        await question(pilot)
        await until(pilot, lambda: "[red]Word[/]" in screen_text(app))
        assert "\x1b" not in screen_text(app)


# --- adding -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("mini", "mini"),
        ("ada@mini.lan:2222", "mini"),
        ("ssh://ada@mini.lan", "mini"),
        ("10.0.0.7:50052", "10.0.0.7"),
        ("ada@[fe80::1]:22", "fe80-1"),
        ("fe80::1", "fe80-1"),
        ("worker3", "my-worker3"),
        ("local", "my-local"),
        ("ada", "ada-2"),
        ("", ""),
        ("üb er", "b-er"),
        ("x" * 60, "x" * 29),
    ],
)
def test_a_name_is_suggested(address: str, name: str) -> None:
    assert suggested_name(address, {"ada", "bob"}) == name


async def test_adding_by_name(make_app: MakeApp) -> None:
    cluster = ScriptedCluster(people.here(people.ADA))
    app = make_app(cluster)
    async with app.run_test(size=SIZE) as pilot:
        dialog = await adding(pilot)
        await pilot.press(*"ada@mini.lan")
        assert dialog._called.value == "mini"
        await pilot.press("enter")
        await until(pilot, lambda: cluster.called("add_peer"))
        assert cluster.called("add_peer") == [("mini", "ada@mini.lan", None)]
        await until(pilot, lambda: "Reaching mini…" in screen_text(app))
        ready = msgspec.structs.replace(people.ADA, name="mini")
        cluster.push(people.here(people.ADA, ready))
        await until(pilot, lambda: "mini is ready: CPU 42.7 GiB" in screen_text(app))
        await until(pilot, lambda: isinstance(app.focused, ChoiceList))
        await pilot.press("c")
        await until(pilot, lambda: not isinstance(app.screen, AddPeerDialog))


async def test_a_name_is_picked_from_the_ssh_configuration(make_app: MakeApp) -> None:
    cluster = ScriptedCluster(scenes.idle())
    app = make_app(cluster)
    async with app.run_test(size=SIZE) as pilot:
        dialog = await adding(pilot)
        assert dialog._names.fitting == ["studio", "mini", "nuc"]
        await pilot.press("u")
        assert dialog._names.fitting == ["studio", "nuc"]
        await pilot.press("down", "down", "enter")
        await until(pilot, lambda: cluster.called("add_peer"))
        assert cluster.called("add_peer") == [("nuc", "nuc", None)]


async def test_a_name_of_ones_own_stays(make_app: MakeApp) -> None:
    cluster = ScriptedCluster(scenes.idle())
    app = make_app(cluster)
    async with app.run_test(size=SIZE) as pilot:
        await adding(pilot)
        await pilot.press(*"mini", "tab", "2", "shift+tab", "end", "x", "enter")
        await until(pilot, lambda: cluster.called("add_peer"))
        assert cluster.called("add_peer") == [("2", "minix", None)]


async def test_adding_a_bare_rpc_server(make_app: MakeApp) -> None:
    cluster = ScriptedCluster(scenes.idle())
    app = make_app(cluster)
    async with app.run_test(size=SIZE) as pilot:
        dialog = await adding(pilot)
        await pilot.press("tab", "tab", "space")
        assert "10.0.0.7:50052" in screen_text(app)
        dialog._address.focus()
        await pilot.press(*"10.0.0.9:50052", "enter")
        await until(pilot, lambda: cluster.called("add_peer"))
        assert cluster.called("add_peer") == [("10.0.0.9", None, "10.0.0.9:50052")]


async def test_what_is_wrong_is_said_in_place(make_app: MakeApp) -> None:
    cluster = ScriptedCluster(scenes.idle())
    app = make_app(cluster)
    async with app.run_test(size=SIZE) as pilot:
        dialog = await adding(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: "Type where the machine is" in screen_text(app))
        cluster.errors["add_peer"] = UsageError("'a b' cannot be a host", "Mend it.")
        await pilot.press("a", "enter")
        await until(
            pilot, lambda: "'a b' cannot be a host. Mend it." in screen_text(app)
        )
        assert dialog.follows == ""
        await pilot.press("b")
        assert "cannot be a host" not in screen_text(app)
        assert toasts(app) == []


async def test_a_peer_that_cannot_be_reached_says_why(make_app: MakeApp) -> None:
    cluster = ScriptedCluster(scenes.idle())
    app = make_app(cluster)
    async with app.run_test(size=SIZE) as pilot:
        dialog = await adding(pilot)
        await pilot.press(*"nuc", "enter")
        await until(pilot, lambda: dialog.follows)
        cluster.push(people.here(people.NUC))
        await until(pilot, lambda: "does not answer within 10 s" in screen_text(app))
        await until(pilot, lambda: isinstance(app.focused, ChoiceList))
        await pilot.press("e")
        await until(pilot, lambda: cluster.called("remove_peer") == ["nuc"])
        await until(pilot, lambda: app.focused is dialog._address)
        assert dialog._address.value == "nuc"


async def test_the_question_of_a_new_peer_comes_over_its_dialog(
    make_app: MakeApp,
) -> None:
    cluster = ScriptedCluster(scenes.idle())
    app = make_app(cluster)
    async with app.run_test(size=SIZE) as pilot:
        dialog = await adding(pilot)
        await pilot.press(*"mini", "enter")
        await until(pilot, lambda: dialog.follows)
        cluster.push(people.here(people.MINI))
        await question(pilot)
        await pilot.press("down", "enter")
        await until(pilot, lambda: cluster.called("answer_peer"))
        assert app.screen is dialog
        unfit = msgspec.structs.replace(people.EVE, name="mini")
        cluster.push(people.here(unfit))
        await until(pilot, lambda: "p Install the engine" in screen_text(app))
        await until(pilot, lambda: isinstance(app.focused, ChoiceList))
        await pilot.press("p")
        await until(pilot, lambda: cluster.called("provision_peer"))


async def test_a_new_peer_joins_the_split_once(make_app: MakeApp) -> None:
    plans = {scenes.GLM.path: people.SPREAD_PLAN}
    cluster = ScriptedCluster(people.here(people.BOB, people.BOX), plans=plans)
    app = make_app(cluster, initial_model=scenes.GLM.path)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        dialog = await adding(pilot)
        await pilot.press(*"ada", "enter")
        await until(pilot, lambda: dialog.follows)
        cluster.push(people.here(people.BOB, people.BOX, people.ADA))
        await until(pilot, lambda: isinstance(app.focused, ChoiceList))
        await pilot.press("w")
        await until(pilot, lambda: toasts(app))
        assert toasts(app) == ["ada works in the split already"]


async def test_escape_leaves_the_new_peer_to_itself(make_app: MakeApp) -> None:
    cluster = ScriptedCluster(scenes.idle())
    app = make_app(cluster)
    async with app.run_test(size=SIZE) as pilot:
        dialog = await adding(pilot)
        await pilot.press(*"mini", "enter")
        await until(pilot, lambda: dialog.follows)
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is not dialog)
        assert cluster.called("remove_peer") == []


async def test_names_that_cannot_be_read_are_no_hindrance(make_app: MakeApp) -> None:
    cluster = ScriptedCluster(scenes.idle())
    cluster.errors["peers_to_pick"] = ControllerError("No permission")
    app = make_app(cluster)
    async with app.run_test(size=SIZE) as pilot:
        await on_peers(pilot)
        await pilot.press("a")
        await until(pilot, lambda: "No permission" in screen_text(app))
        await pilot.press(*"mini", "enter")
        await until(pilot, lambda: cluster.called("add_peer"))


@pytest.mark.parametrize("peer", people.EVERY, ids=lambda peer: peer.state.value)
def test_every_state_has_an_outcome(peer: Peer) -> None:
    outcome = outcome_of(peer)
    busy = peer.state in (PeerState.PROBING, PeerState.PROVISIONING)
    assert outcome.text
    assert bool(outcome.choices) != busy
    assert "dllm-tui" not in outcome.text


# --- reading ------------------------------------------------------------------------


async def test_enter_shows_all_that_is_known(make_app: MakeApp) -> None:
    cluster = ScriptedCluster(people.here(people.ADA))
    app = make_app(cluster)
    async with app.run_test(size=(120, 40)) as pilot:
        await on_peers(pilot)
        await pilot.press("j", "enter")
        await until(pilot, lambda: isinstance(app.screen, PeerDialog))
        text = screen_text(app)
        for part in (
            "Debian GNU/Linux 12 (bookworm)",
            "x86_64",
            "24 cores, 8 of them fast",
            "51.0 GiB of 64.0 GiB free",
            "CUDA0: 16.0 GiB of 24.0 GiB free",
            "b6500 · RPC 3.5.0",
            "dllm-relay 0.3.0",
            "gcc 12.2.0",
            "212 GiB free",
            "GLM-4.7-Flash-Q4_K_M.gguf",
            "0.6 ms there and back · 112 MB/s",
            "as ours (+0.4 s)",
            "2 m ago",
        ):
            assert part in text
        await pilot.press("y")
        await until(pilot, lambda: toasts(app) == ["Copied what is known of ada"])
        slow = msgspec.structs.replace(people.ADA, rtt_ms=88.8)
        cluster.push(people.here(slow))
        await until(pilot, lambda: "88.8 ms" in screen_text(app))
        await pilot.press("enter")
        await until(pilot, lambda: not isinstance(app.screen, PeerDialog))


@pytest.mark.parametrize("peer", people.EVERY, ids=lambda peer: peer.name)
def test_a_peer_of_any_state_can_be_read(peer: Peer) -> None:
    rows = dict(peer_rows(peer, scenes.NOW))
    assert rows["state"]
    assert rows["role"]
    assert peer.transport in rows["address"]


def test_a_clock_that_is_off_is_told() -> None:
    facts = msgspec.structs.replace(people.ADA_FACTS, clock_offset_s=-90.0)
    peer = msgspec.structs.replace(people.ADA, facts=facts, transport=Transport.SSH)
    assert ("clock", "1 m 30 s behind ours") in peer_rows(peer, scenes.NOW)
