"""The pane of the peers: signs, words, notes, sizes, and what is drawn when."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from backends.split.layout import make_split
from backends.state import (
    Fallback,
    LayerRange,
    Peer,
    PeerData,
    PeerPath,
    PeerRole,
    PeerState,
    QuestionKind,
    Transport,
)
from tests.kit.console import Started
from tests.tui import peer_scenes as people
from tests.tui import scenes
from tests.tui.helpers import resize, screen_text, text_of, until
from tests.tui.scripted import ScriptedCluster
from tests.tui.snapshot_sizes import MakeApp
from tui.app.app import DllmApp
from tui.app.messages import PeerAdded
from tui.model.edit import Lineup
from tui.model.editor import PlanEditor
from tui.model.peer_words import (
    LOOKS,
    data_text,
    path_words,
    peer_rows,
    since_text,
    state_words,
    transport_words,
    way_text,
    why_not,
)
from tui.screens.cluster.peers_pane import PeerBlock, PeerList, fill_of, unfit_actions
from tui.widgets.palette import palette_from


@asynccontextmanager
async def peers_of(
    started: Started, *peers: Peer, last: bool = False, **options: Any
) -> AsyncIterator[tuple[Pilot[None], DllmApp, ScriptedCluster, PeerList]]:
    """A console on these peers; ``last``: the last of them is selected."""
    scene = people.here(*peers)
    async with started(scene, wait=False, **options) as (pilot, app, cluster):
        found = app.query_one(PeerList)
        await until(pilot, lambda: found.peers and found.size.width)
        if last:
            app._home.go_to("peers")
            await pilot.press("G")
            assert chosen(found) == found.peers[-1].name
        yield pilot, app, cluster, found


def chosen(found: PeerList) -> str:
    return found.peer.name if found.peer else ""


def crowd(number: int) -> tuple[Peer, ...]:
    return tuple(
        replace(people.NUC if n % 5 else people.BOB, name=f"m{n:02d}")
        for n in range(number)
    )


# --- words --------------------------------------------------------------------------


def test_every_state_has_a_sign_of_its_own_and_words() -> None:
    assert set(LOOKS) == set(PeerState)
    assert len({look.sign for look in LOOKS.values()}) == len(PeerState)
    assert all(look.words for look in LOOKS.values())


def test_since_is_coarse() -> None:
    told = {-3: "", 9: "", 10: "10 s", 47: "40 s", 60: "1 m", 3599: "59 m", 7200: "2 h"}
    told |= {47 * 3600: "47 h", 49 * 3600: "2 d", 10**9: "99 d"}
    assert {seconds: since_text(seconds) for seconds in told} == told


def test_work_says_what_it_is() -> None:
    assert state_words(people.FRED) == "installing"
    nameless = replace(people.FRED, work=None)
    assert state_words(nameless) == "provisioning"


VIA = PeerPath(via="ada@gate", address="10.0.0.7:50080")


def by_quic(relayed: bool) -> PeerPath:
    address = "http://203.0.113.5:50090/" if relayed else "203.0.113.10:50080"
    return PeerPath(relayed=relayed, address=address, rtt_ms=12.0, loss=0.012)


def test_a_path_by_other_ways_than_tcp_is_told_in_full() -> None:
    direct = "QUIC direct to 203.0.113.10:50080 · 12.0 ms · 1 % lost"
    relayed = "QUIC relayed by http://203.0.113.5:50090/ · 12.0 ms · 1 % lost"
    for way, path, words in (
        (by_quic(False), direct, "quic"),
        (by_quic(True), relayed, "relay"),
        (VIA, "SSH through ada@gate to 10.0.0.7:50080", "via"),
    ):
        peer = replace(people.BOX, path=way)
        assert dict(peer_rows(peer, 0.0))["path"] == path
        lent = replace(people.LENT, state=PeerState.READY, rtt_ms=999.9, path=way)
        for one in (peer, lent):
            assert transport_words(one) == words
            assert words in path_words(one)
    near = replace(by_quic(False), rtt_ms=0.0)
    assert way_text(near) == direct.replace("12.0 ms", "<1 ms")
    assert "path" not in dict(peer_rows(people.BOX, 0.0))
    reached = replace(people.LENT, state=PeerState.READY, rtt_ms=999.9)
    assert transport_words(reached) == "tcp"
    assert transport_words(people.LENT) == "invited"


def test_the_path_leaves_room_for_name_and_role() -> None:
    ready = replace(people.LENT, state=PeerState.READY)
    paths = None, by_quic(False), by_quic(True), VIA
    rtts_ms = None, 0.0, 3.14, 88.88, 999.9, 1e4
    for peer, rtt_ms, path in product((people.BOX, ready), rtts_ms, paths):
        words = path_words(replace(peer, rtt_ms=rtt_ms, path=path))
        assert len(words) <= 13, words


def test_why_not_says_why_and_which_key_helps() -> None:
    assert why_not(people.ADA) == ""
    assert why_not(people.OLD).endswith(
        "this machine RPC 3.5.0. {peers.provision:short} provisions it"
    )
    assert "does not answer" in why_not(people.NUC)
    assert "dllm-tui peers" not in why_not(people.EVE)
    assert why_not(replace(people.ADA, devices=()))


def test_only_keys_that_fit_the_selected_peer_are_offered() -> None:
    assert {*unfit_actions(people.ADA)} == {"peers.provision", "peers.cancel"}
    no_data = {"peers.data"}
    assert {*unfit_actions(people.EVE)} == no_data | {"peers.use", "peers.cancel"}
    assert {*unfit_actions(people.FRED)} == no_data | {"peers.use", "peers.provision"}
    assert "peers.open" in unfit_actions(None)


# --- blocks -------------------------------------------------------------------------


async def test_a_block_has_as_many_rows_as_it_says(make_app: MakeApp) -> None:
    palette = palette_from(make_app().theme_variables)
    every = product(people.EVERY, (31, 32, 40, 56, 116), (False, True))
    for peer, width, selected in every:
        fills = tuple(fill_of(device, None) for device in peer.devices)
        block = PeerBlock(peer, fills, width, selected, selected, "12 m")
        strips = block.strips(palette)
        assert len(strips) == block.n_rows, (peer, width)
        assert all(strip.cell_length == width for strip in strips), (peer, width)
        assert "…" not in strips[0].text or len(peer.name) > width - 23


# --- on the screen ------------------------------------------------------------------


async def test_the_selected_peer_says_all_there_is_of_it(started: Started) -> None:
    """What goes on without it, how data go there, its whole note."""
    why = "nobody answers at 10.0.0.7:41231"
    data = PeerData(ways=("tunnel",), why=why, now=True)
    peers = people.ADA, people.EVE, replace(people.BOB, data=data)
    async with peers_of(started, *peers) as (pilot, app, cluster, found):
        assert "tunnel now" not in text_of(found)
        app._home.go_to("peers")
        await pilot.press("G")
        await until(pilot, lambda: "data: tunnel now (nobody" in text_of(found))
        ready = Fallback(lost="bob", split=(LayerRange("ada/CPU", 0, 12),))
        none = Fallback(lost="ada", why="bob/CPU is too small.")
        cluster.push(replace(people.here(*peers), fallbacks=(ready, none)))
        await until(pilot, lambda: "if lost: 13 on" in text_of(found))
        assert "ada/CPU" in text_of(found)
        assert "nothing goes on" not in text_of(found)
        cluster.push(people.here(people.NUC))
        await until(pilot, lambda: "firewall?" in text_of(found))
        assert len(found.lines()) == found.size.height
        cluster.push(people.here(people.NUC, people.MINI, people.OLD))
        await until(pilot, lambda: "mismatch" in text_of(found))
        for words in ("? mini", "asks you", "⏎ answers it", "≠ oldbox", "offline 2 m"):
            assert words in text_of(found)


def test_how_data_go_to_a_peer_in_words() -> None:
    for data, text in (
        (None, ""),
        (PeerData(wanted="tunnel"), ""),
        (PeerData(ways=("direct",), now=True), "direct now"),
        (PeerData(ways=("direct", "tunnel")), "direct and tunnel last time"),
        (PeerData(ways=("tunnel",), why="no TLS", now=True), "tunnel now (no TLS)"),
    ):
        assert data_text(replace(people.ADA, data=data)) == text


async def test_how_long_a_peer_is_away_is_told_anew(started: Started) -> None:
    now = [scenes.NOW]
    peers = people.NUC, people.ADA
    async with peers_of(started, *peers, clock=lambda: now[0]) as (_, _, _, found):
        before = found.lines()
        found.redraw_changed()
        assert found.lines() is before
        now[0] += 60
        found.redraw_changed()
        assert "offline 3 m" in text_of(found)
        assert found.lines()[-3:] == before[-3:]


async def test_a_round_trip_paints_one_peer(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []
    draw = PeerBlock.strips

    def noted(block: PeerBlock, palette: object) -> object:
        drawn.append(block.peer.name)
        return draw(block, palette)  # type: ignore[arg-type]

    monkeypatch.setattr(PeerBlock, "strips", noted)
    async with peers_of(started, *crowd(50)) as (pilot, app, cluster, _):
        await pilot.pause()
        assert len(set(drawn)) < 10, "only what is visible is drawn"
        drawn.clear()
        first = replace(crowd(50)[0], rtt_ms=77.7)
        cluster.push(people.here(first, *crowd(50)[1:]))
        await until(pilot, lambda: "77.7" in screen_text(app))
        assert drawn == ["m00"]


async def test_the_selection_stays_with_its_peer_and_in_view(started: Started) -> None:
    """What is new of it, say progress, where it has stood at the lower edge, too."""
    others = (people.ADA, people.BOB, people.BOX)
    everyone = *others, people.EVE
    async with peers_of(started, *everyone, last=True) as (pilot, app, cluster, found):
        busy = replace(people.FRED, name=people.EVE.name)
        cluster.push(people.here(*others, busy))
        await until(pilot, lambda: "x ends it" in screen_text(app))
        cluster.push(people.here(people.NUC, busy, *others[::-1], people.GUS))
        await until(pilot, lambda: len(found.peers) == 7)
        assert chosen(found) == busy.name
        cluster.push(people.here(people.NUC))
        await until(pilot, lambda: len(found.peers) == 2)
        assert chosen(found)


async def test_a_peer_that_one_added_oneself_is_selected(started: Started) -> None:
    async with peers_of(started, people.ADA) as (pilot, app, cluster, found):
        before = chosen(found)
        cluster.push(people.here(people.ADA, people.BOX))
        await until(pilot, lambda: len(found.peers) == 3)
        await pilot.pause()
        assert chosen(found) == before
        app.post_message(PeerAdded(people.BOB.name))
        cluster.push(people.here(people.ADA, people.BOX, people.BOB))
        await until(pilot, lambda: len(found.peers) == 4)
        await until(pilot, lambda: chosen(found) == people.BOB.name)


async def test_a_click_selects_and_a_second_one_opens(started: Started) -> None:
    async with peers_of(started, people.ADA, people.BOB) as (pilot, app, _, found):
        await pilot.click(found, offset=(4, 4))
        assert chosen(found) == "ada"
        await pilot.click(found, offset=(4, 4), times=2)
        await until(pilot, lambda: "Peer · ada" in screen_text(app))


async def test_fifty_peers_scroll(started: Started) -> None:
    async with peers_of(started, *crowd(50)) as (pilot, app, _, found):
        app._home.go_to("peers")
        for size in ((120, 36), (80, 24), (60, 18)):
            await resize(pilot, *size)
            await pilot.press("G")
            await until(pilot, lambda: "m49" in screen_text(app))
            assert found.content_size.width <= app._home.peers.content_size.width
            await pilot.press("g")
            await until(pilot, lambda: "local" in screen_text(app))


# --- parts in the plan --------------------------------------------------------------


def editor_with(plan_peers: tuple[Peer, ...] = ()) -> PlanEditor:
    editor = PlanEditor()
    editor.take(people.here(*plan_peers or (people.ADA, people.BOB, people.BOX)))
    editor.put(people.SPREAD_PLAN, scenes.GLM)
    return editor


def test_the_devices_of_peers_are_found_under_the_splits_names() -> None:
    devices = {device.id: device for device in editor_with().devices}
    assert list(devices) == [s.device for s in people.SPREAD_PLAN.split.shares]
    assert devices["bob-CUDA1/CUDA1"].total_bytes == people.BOB.devices[2].total_bytes
    assert devices["bob-CUDA1/CUDA1"].memory_pool == "bob/CUDA1"
    assert devices["box/RPC"] == people.BOX.devices[0]
    assert devices["local/CPU"] == scenes.CPU


def test_the_devices_of_a_head_elsewhere_are_found() -> None:
    plan = replace(
        people.SPREAD_PLAN,
        head="ada",
        split=make_split(47, ("ada/CPU", "box/RPC", "ada/CUDA0"), (0, 40, 8)),
        workers=people.SPREAD_PLAN.workers[-1:],
    )
    editor = editor_with()
    editor.put(plan, scenes.GLM)
    assert [d.id for d in editor.devices] == ["ada/CPU", "box/RPC", "ada/CUDA0"]
    roles = {peer.name: peer.role for peer in editor.peers}
    assert roles["ada"] is PeerRole.HEAD
    assert roles["local"] is PeerRole.IDLE


def test_a_device_of_a_machine_that_is_away_is_not_borrowed_from_here() -> None:
    editor = editor_with((people.BOX,))
    assert [d.id for d in editor.devices] == ["local/CPU", "box/RPC"]


def test_workers_on_peers_have_no_rows_of_their_own() -> None:
    editor = editor_with()
    peers = {peer.name: peer for peer in editor.peers}
    assert list(peers) == ["local", "ada", "bob", "box"]
    assert peers["bob"].role is PeerRole.WORKER
    assert [d.id for d in peers["bob"].devices] == [
        "bob/CPU",
        "bob-CUDA0/CUDA0",
        "bob-CUDA1/CUDA1",
    ]


def test_workers_here_that_no_plan_needs_are_not_shown() -> None:
    editor = PlanEditor()
    snapshot = scenes.demo_starting()
    editor.take(replace(snapshot, plan=None))
    assert [peer.name for peer in editor.peers] == ["local", "worker1", "worker2"]
    editor.put(people.SPREAD_PLAN, scenes.GLM)
    assert [peer.name for peer in editor.peers] == ["local"]


def test_a_lineup_is_read_and_changed() -> None:
    lineup = Lineup.of(people.SPREAD_PLAN)
    assert lineup == Lineup("local", ("ada", "bob", "box"), 0)
    assert lineup.with_worker("local", 2).uses("local")
    assert not lineup.without("bob").uses("bob")
    led = lineup.led_by("ada")
    assert (led.head, led.peers) == ("ada", ("bob", "box"))
    assert led.led_by("local").head == "local"


def test_a_head_that_was_the_only_worker_is_followed_by_this_machine() -> None:
    assert Lineup("local", ("ada",), 0).led_by("ada") == Lineup("ada", (), None)


def test_scenes_have_every_state_and_question() -> None:
    states = {peer.state for peer in people.EVERY}
    left = {PeerState.STARTING, PeerState.SERVING, PeerState.KNOWN}
    assert set(PeerState) - states == left
    questions = (people.HOST_KEY, people.PASSWORD, people.PASSPHRASE)
    assert {question.kind for question in questions} == set(QuestionKind)
    assert {peer.transport for peer in people.EVERY} == set(Transport)


async def test_letters_reach_the_devices_of_peers(started: Started) -> None:
    plans = {scenes.GLM.path: people.SPREAD_PLAN}
    cluster = ScriptedCluster(people.here(people.ADA, people.BOB), plans=plans)
    async with started(cluster, initial_model=scenes.GLM.path) as (_, app, _):
        text = text_of(app.query_one(PeerList))
        assert "B CUDA0" in text
        assert "D CUDA1" in text
        assert "· CPU" in text
