"""Questions of peers, and reading one, in the whole console."""

from __future__ import annotations

import msgspec
import pytest
from textual import events

from backends.state import Peer, PeerAnswer, PeerState, QuestionKind, Transport
from tests.kit.console import Started
from tests.tui import peer_scenes as people
from tests.tui import scenes
from tests.tui.helpers import screen_text, toasts, until
from tests.tui.peering import asks, on_peers, question
from tests.tui.scripted import ScriptedCluster
from tui.dialogs.peers import HostKeyDialog, PeerDialog, QuestionDialog, SecretDialog
from tui.model.peer_words import peer_rows


async def test_a_host_key_is_shown_and_trusted(started: Started) -> None:
    async with started(people.here(people.MINI), wait=False) as (pilot, app, cluster):
        dialog = await question(pilot)
        assert isinstance(dialog, HostKeyDialog)
        text = screen_text(app)
        shown = "ada@mini.lan", "ssh-ed25519", "SHA256", "uNiV ztks CsDh"
        for part in (*shown, "ssh-keygen -lf -", "esc cancels"):
            assert part in text
        await pilot.press("down", "enter")
        await until(pilot, lambda: cluster.called("answer_peer"))
        answer = PeerAnswer(kind=QuestionKind.HOST_KEY, text=people.FINGERPRINT)
        assert cluster.called("answer_peer") == [("mini", answer)]


async def test_nothing_but_a_decision_trusts_a_key(started: Started) -> None:
    async with started(people.here(people.MINI), wait=False) as (pilot, app, cluster):
        for key in ("y", "t", "n", "escape", "enter"):
            await question(pilot)
            await pilot.press(key)
            await pilot.pause()
            assert cluster.called("answer_peer") == [], key
            if not isinstance(app.screen, QuestionDialog):
                await on_peers(pilot)
                await pilot.press("j", "enter")


@pytest.mark.parametrize("kind", [QuestionKind.PASSWORD, QuestionKind.PASSPHRASE])
async def test_a_secret_is_not_shown(started: Started, kind: QuestionKind) -> None:
    async with started(people.here(asks(kind)), wait=False) as (pilot, app, cluster):
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


async def test_a_question_is_put_once_and_again_by_enter(started: Started) -> None:
    async with started(people.here(people.MINI), wait=False) as (pilot, app, cluster):
        await question(pilot)
        await pilot.press("escape")
        later = msgspec.structs.replace(people.here(people.MINI), seq=9)
        cluster.push(later)
        await until(pilot, lambda: app.editor.snapshot == later)
        assert not isinstance(app.screen, QuestionDialog)
        await on_peers(pilot)
        await pilot.press("j", "enter")
        await question(pilot)


async def test_a_question_asked_anew_is_put_anew(started: Started) -> None:
    running = started(people.here(asks(QuestionKind.PASSWORD)), wait=False)
    async with running as (pilot, _, cluster):
        await question(pilot)
        await pilot.press("x", "enter")
        again = msgspec.structs.replace(asks(QuestionKind.PASSWORD), since=scenes.NOW)
        cluster.push(people.here(again))
        await until(pilot, lambda: cluster.called("answer_peer"))
        await question(pilot)


async def test_several_questions_come_one_after_the_other(started: Started) -> None:
    cluster = ScriptedCluster(
        people.here(people.MINI, asks(QuestionKind.PASSWORD, "bob"))
    )
    async with started(cluster, wait=False) as (pilot, app, _):
        assert isinstance(await question(pilot), HostKeyDialog)
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, SecretDialog))


async def test_who_types_is_not_interrupted(started: Started) -> None:
    async with started(scenes.homelab_serving()) as (pilot, app, cluster):
        app._home.go_to("chat")
        await pilot.press("i", "h", "e")
        peers = (*scenes.homelab_peers(PeerState.SERVING), people.MINI)
        cluster.push(msgspec.structs.replace(scenes.homelab_serving(), peers=peers))
        await until(pilot, lambda: toasts(app))
        assert toasts(app) == ["mini needs your input: select it, press Enter"]
        assert not isinstance(app.screen, QuestionDialog)


async def test_a_question_on_another_screen_is_a_toast(started: Started) -> None:
    async with started(scenes.idle(), wait=False) as (pilot, app, cluster):
        await until(pilot, lambda: app.editor.snapshot)
        await app.action_show_mode("logs")
        cluster.push(people.here(people.MINI))
        await until(pilot, lambda: toasts(app))
        assert not isinstance(app.screen, QuestionDialog)


async def test_a_question_answered_elsewhere_goes_away(started: Started) -> None:
    async with started(people.here(people.MINI), wait=False) as (pilot, app, cluster):
        await question(pilot)
        cluster.push(people.here(people.ADA))
        await until(pilot, lambda: not isinstance(app.screen, QuestionDialog))
        assert cluster.called("answer_peer") == []


async def test_text_of_a_machine_is_no_markup(started: Started) -> None:
    asked = msgspec.structs.replace(people.PASSWORD, text="[red]Word[/] \x1b[2J?")
    peer = msgspec.structs.replace(people.MINI, question=asked, note=asked.text)
    async with started(people.here(peer), wait=False) as (pilot, app, _):
        await question(pilot)
        await until(pilot, lambda: "[red]Word[/]" in screen_text(app))
        assert "\x1b" not in screen_text(app)


async def test_enter_shows_all_that_is_known(started: Started) -> None:
    running = started(people.here(people.ADA), size=(120, 40), wait=False)
    async with running as (pilot, app, cluster):
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
            "direct last time · set to auto",
            "600 µs there and back · 112 MB/s",
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
    assert "  " not in rows["address"]


def test_a_clock_that_is_off_is_told() -> None:
    facts = msgspec.structs.replace(people.ADA_FACTS, clock_offset_s=-90.0)
    peer = msgspec.structs.replace(people.ADA, facts=facts, transport=Transport.SSH)
    assert ("clock", "1 m 30 s behind ours") in peer_rows(peer, scenes.NOW)


async def test_no_dialog_opens_while_one_is_away(started: Started) -> None:
    """A terminal without the focus takes it from the text field, too."""
    async with started(people.here(people.ADA), wait=False) as (pilot, app, cluster):
        await on_peers(pilot)
        await pilot.press("escape")
        app.post_message(events.AppBlur())
        await until(pilot, lambda: not app.app_focus)
        cluster.push(people.here(people.MINI))
        await until(pilot, lambda: toasts(app))
        assert len(app.screen_stack) == 1
