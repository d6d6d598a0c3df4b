"""Questions of peers, and reading one, in the whole console."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
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


async def test_a_host_key_is_shown_and_only_a_decision_trusts_it(
    started: Started,
) -> None:
    async with started(people.here(people.MINI), wait=False) as (pilot, app, cluster):
        assert isinstance(await question(pilot), HostKeyDialog)
        text = screen_text(app)
        shown = "ada@mini.lan", "ssh-ed25519", "SHA256", "uNiV ztks CsDh"
        for part in (*shown, "ssh-keygen -lf -", "esc cancels"):
            assert part in text
        for key in ("y", "t", "n", "escape", "enter"):
            await question(pilot)
            await pilot.press(key)
            await pilot.pause()
            assert cluster.called("answer_peer") == [], key
            if not isinstance(app.screen, QuestionDialog):
                await on_peers(pilot)
                await pilot.press("j", "enter")
        await question(pilot)
        await pilot.press("down", "enter")
        await until(pilot, lambda: cluster.called("answer_peer"))
        answer = PeerAnswer(kind=QuestionKind.HOST_KEY, text=people.FINGERPRINT)
        assert cluster.called("answer_peer") == [("mini", answer)]


async def test_a_secret_is_not_shown_and_asked_anew(started: Started) -> None:
    kinds = (*[QuestionKind.PASSWORD] * 2, QuestionKind.PASSPHRASE)
    async with started(people.here(people.ADA), wait=False) as (pilot, app, cluster):
        for since, kind in enumerate(kinds):
            peer = replace(asks(kind), since=scenes.NOW + since)
            cluster.push(people.here(peer))
            assert isinstance(await question(pilot), SecretDialog)
            assert "never stored" in screen_text(app)
            await pilot.press("enter")
            assert len(cluster.called("answer_peer")) == since
            await pilot.press(*"s3q!")
            assert "s3q!" not in screen_text(app)
            assert "••••" in screen_text(app)
            await pilot.press("enter")
            await until(pilot, lambda: len(cluster.called("answer_peer")) > since)  # noqa: B023
            answer = PeerAnswer(kind=kind, text="s3q!")
            assert cluster.called("answer_peer")[-1] == ("mini", answer)
            await until(pilot, lambda: not isinstance(app.screen, QuestionDialog))
        assert all("s3q!" not in event.text for event in app.event_log)


async def test_a_question_is_put_once_and_goes_if_answered_elsewhere(
    started: Started,
) -> None:
    async with started(people.here(people.MINI), wait=False) as (pilot, app, cluster):
        await question(pilot)
        await pilot.press("escape")
        later = replace(people.here(people.MINI), seq=9)
        cluster.push(later)
        await until(pilot, lambda: app.editor.snapshot == later)
        assert not isinstance(app.screen, QuestionDialog)
        await on_peers(pilot)
        await pilot.press("j", "enter")
        await question(pilot)
        cluster.push(replace(people.here(people.ADA), seq=10))
        await until(pilot, lambda: not isinstance(app.screen, QuestionDialog))
        assert cluster.called("answer_peer") == []


async def test_several_questions_come_one_after_the_other(started: Started) -> None:
    cluster = ScriptedCluster(
        people.here(people.MINI, asks(QuestionKind.PASSWORD, "bob"))
    )
    async with started(cluster, wait=False) as (pilot, app, _):
        assert isinstance(await question(pilot), HostKeyDialog)
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, SecretDialog))


async def test_who_types_or_is_elsewhere_is_not_interrupted(started: Started) -> None:
    async with started(scenes.homelab_serving()) as (pilot, app, cluster):
        app._home.go_to("chat")
        await pilot.press("i", "h", "e")
        peers = (*scenes.homelab_peers(PeerState.SERVING), people.MINI)
        scene = scenes.homelab_serving()
        cluster.push(replace(scene, peers=peers))
        await until(pilot, lambda: toasts(app))
        assert toasts(app) == ["mini needs your input: select it, press Enter"]
        await app.action_show_mode("logs")
        peers = *peers, asks(QuestionKind.PASSWORD, "bob")
        cluster.push(replace(scene, peers=peers, seq=9))
        await until(pilot, lambda: len(toasts(app)) == 2)
        assert not isinstance(app.screen, QuestionDialog)


async def test_enter_shows_what_is_known_and_y_copies_it(started: Started) -> None:
    running = started(people.here(people.ADA), size=(120, 40), wait=False)
    async with running as (pilot, app, cluster):
        await on_peers(pilot)
        await pilot.press("j", "enter")
        await until(pilot, lambda: isinstance(app.screen, PeerDialog))
        assert "direct last time · set to auto" in screen_text(app)
        await pilot.press("y")
        await until(pilot, lambda: toasts(app) == ["Copied what is known of ada"])
        slow = replace(people.ADA, rtt_ms=88.8)
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
    facts = replace(people.ADA_FACTS, clock_offset_s=-90.0)
    peer = replace(people.ADA, facts=facts, transport=Transport.SSH)
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
