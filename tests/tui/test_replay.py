"""A record in the console: of two workers and SmolLM2, one of them killed.

It was made of a real cluster on one machine; names and folders are replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from textual.pilot import Pilot

from backends.client.flight_recorder import RACES, SWEEPS, EntryKind, RecordEntry
from backends.client.record_player import FlightRecord, RecordedStream, RecordPlayer
from backends.errors import DllmError
from backends.paths import user_paths
from backends.state import ClusterSnapshot, MarkKind
from backends.state.races import Contestant, RaceRequest, race_framed
from backends.state.sweeps import SweepRequest
from tests.kit.console import Started
from tests.tui.helpers import resize, screen_text, settled, toasts, until
from tests.tui.pictures import Snap, seen
from tests.tui.scripted import homelab
from tui.app.replay_app import REFUSAL, ReplayApp
from tui.model.trends import TrendTrack
from tui.widgets.replay_bar import ReplayBar, moment

RECORD = Path(__file__).parent / "records" / "worker-killed.jsonl.gz"
SIZE = (120, 36)


class Hand:
    """A clock that a test moves."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def hand() -> Hand:
    return Hand()


@pytest.fixture
def player(hand: Hand) -> RecordPlayer:
    return RecordPlayer(FlightRecord.read(RECORD), hand)


@pytest.fixture
def make_replay(player: RecordPlayer, tmp_path: Path) -> Callable[..., ReplayApp]:
    def make(**options: bool) -> ReplayApp:
        client = player.client(user_paths())
        return ReplayApp(client, player, memory_file=tmp_path / "c.json", **options)

    return make


@asynccontextmanager
async def shown(app: ReplayApp) -> AsyncIterator[Pilot[None]]:
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        yield pilot


def fault_of(player: RecordPlayer) -> float:
    return next(one.at_s for one in player.marks if one.kind is MarkKind.FAULT)


async def test_keys_go_to_any_moment(
    make_replay: Callable[..., ReplayApp], player: RecordPlayer, hand: Hand
) -> None:
    app = make_replay()
    async with shown(app) as pilot:
        assert player.playing
        hand.now_s = 2.0
        await pilot.press("space", "right")
        assert (player.position_s, player.playing) == (7.0, False)
        await pilot.press("left", "right_square_bracket", "right_square_bracket")
        assert player.position_s == fault_of(player)
        await until(pilot, lambda: "worker2 was killed" in str(toasts(pilot.app)))
        await pilot.press("shift+left")
        assert player.position_s == 0.0
        assert toasts(pilot.app) == [], "they were of another moment"
        await pilot.press("end", "space", "greater_than_sign")
        hand.now_s += 1.0
        assert player.position_s == 2.0, "from the beginning, twice as fast"
        bar = pilot.app.screen.query_one(ReplayBar)
        await pilot.mouse_down(bar, offset=(bar._track[0] + bar._track[1] // 2, 0))
        await pilot.pause()
        assert player.position_s == pytest.approx(player.duration_s / 2, rel=0.1)
    app._tick()  # As the timer of a console that ends does now and then.


async def test_what_was_told_then_is_shown_and_nothing_later(
    make_replay: Callable[..., ReplayApp], player: RecordPlayer, snap_compare: Snap
) -> None:
    app = make_replay()
    async with shown(app) as pilot:
        await pilot.press("space")
        app.seek(fault_of(player))
        await until(pilot, lambda: "What is a split?" in screen_text(app))
        await seen(snap_compare, pilot)
        for at_s in (player.duration_s, 0.5, fault_of(player) + 0.3):
            app.seek(at_s)
            await pilot.pause()
            snapshot = player.snapshot()
            assert snapshot is not None
            assert app.editor.snapshot == snapshot
            assert f" {snapshot.state}" in screen_text(app).splitlines()[0]
        await until(pilot, lambda: "What is a split?" in screen_text(app))
        await pilot.press("5")
        await until(pilot, lambda: " I srv " in screen_text(app))
        await resize(pilot, 80, 24)
        assert f"/ {moment(player.duration_s)}" in screen_text(app).splitlines()[-2]


async def test_nothing_acts_and_a_sentence_says_why(
    make_replay: Callable[..., ReplayApp],
    player: RecordPlayer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = make_replay()
    async with shown(app) as pilot:
        assert "replay" in screen_text(app).splitlines()[0]
        bar = screen_text(app).splitlines()[-1]
        assert "stop" not in bar
        assert "␣ play" in bar
        await pilot.press("s")
        await until(pilot, lambda: toasts(app) == [REFUSAL])
        await app._chat_flows.ask("And now?")
        await until(pilot, lambda: toasts(app) == [REFUSAL] * 2)
        await pilot.press("colon", "a", " ", "b")
        assert "a b" in screen_text(app), "what is typed is not taken"
        await pilot.press("escape")
        app.clear_notifications()

        def broken(at_s: float, cluster: str) -> ClusterSnapshot | None:
            raise DllmError("A part of this record is not understood")

        monkeypatch.setattr(player.record, "snapshot", broken)
        await pilot.press("space", "right", "right")
        # What cannot be understood is no crash.
        said = ["A part of this record is not understood"]
        await until(pilot, lambda: toasts(app) == said)


def test_curves_are_the_same_wherever_one_comes_from(player: RecordPlayer) -> None:
    track = TrendTrack(player.snapshots)
    for _ in range(4):
        track.extend()
    kept = track.at(11.0)
    alone = TrendTrack(player.snapshots)
    whole = alone._grown(alone._kept[0], -1.0, 11.0)
    assert list(kept.rates.columns) == list(whole.rates.columns)
    assert any(kept.rates.columns)
    assert kept.workers["worker1"].series(1) == whole.workers["worker1"].series(1)


async def with_race_and_sweep(player: RecordPlayer) -> None:
    """Tell of a race in the second second of the record, of a sweep in the fourth."""
    cluster, plans = homelab(), (Contestant(name="now"), Contestant(name="best"))
    races = [one async for one in cluster.race(RaceRequest(contestants=plans))]
    sweeps = [one async for one in cluster.sweep(SweepRequest())]
    told: tuple[tuple[float, str, EntryKind, object], ...] = (
        (1.0, RACES, EntryKind.WHOLE, race_framed(races[1], None)),
        (2.0, RACES, EntryKind.WHOLE, race_framed(races[-1], None)),
        (2.0, RACES, EntryKind.END, None),
        (3.0, SWEEPS, EntryKind.WHOLE, sweeps[2]),
        (4.0, SWEEPS, EntryKind.END, None),
    )
    for at_s, path, kind, value in told:
        target = f"{path}?cluster={player.record.header.cluster}"
        stream = player.record.streams.setdefault(target, RecordedStream())
        content = msgspec.Raw(msgspec.json.encode(value))
        stream.times.append(at_s)
        stream.entries.append(RecordEntry(at_s, kind, target, "", content))


async def test_a_race_and_a_sweep_are_shown_at_their_moments(
    player: RecordPlayer, make_replay: Callable[..., ReplayApp]
) -> None:
    await with_race_and_sweep(player)
    app = make_replay()
    async with shown(app) as pilot:
        await pilot.press("space", "V")
        await until(pilot, lambda: toasts(app) == ["No race was run up to this moment"])
        app.seek(1.5)
        await until(pilot, lambda: "V shows it" in str(toasts(app)))
        await pilot.press("V")
        await until(pilot, lambda: "Air scatters." in screen_text(app))
        assert "closes" in screen_text(app)
        # The dialog goes on with the record.
        player.seek(2.5)
        await until(pilot, lambda: "B is 1.20 times as fast" in screen_text(app))
        await pilot.press("escape")
        await until(pilot, lambda: not app.screen.is_modal)
        assert "cancelled" not in str(toasts(app))
        await pilot.press("4")
        app.seek(3.5)
        await until(pilot, lambda: "step 3 of 11" in screen_text(app))
        app.seek(4.5)
        await until(pilot, lambda: "steps within" in screen_text(app))
        await pilot.press("escape")
        await until(pilot, lambda: "Sweep of" not in screen_text(app))


# --- recording, from the console ----------------------------------------------------


class Records:
    """Says what it was asked."""

    def __init__(self) -> None:
        self.file, self.ended = "", asyncio.Event()
        self.calls: list[object] = []

    def begin(self, *, size: tuple[int, int], words: bool) -> None:
        self.calls.append((size, words))
        self.file = "/tmp/record.jsonl.gz"

    async def follow(self) -> str:
        await self.ended.wait()
        return "No space left on device"

    async def end(self) -> str:
        self.file = ""
        return "/tmp/record.jsonl.gz (3 s, 1 KiB)"


async def test_a_key_begins_and_ends_a_record_that_may_end_by_itself(
    started: Started,
) -> None:
    records = Records()
    async with started(records=records) as (pilot, app, _):
        for n_records in (1, 2):
            await pilot.press("f9", "w")
            await until(pilot, lambda: "● rec" in screen_text(app).splitlines()[0])
            assert records.calls == [(SIZE, False)] * n_records
            if n_records == 1:
                await pilot.press("f9")
                await until(pilot, lambda: "● rec" not in screen_text(app))
                recorded = "Recorded /tmp/record.jsonl.gz (3 s, 1 KiB)"
                assert toasts(app)[-1] == recorded
        records.ended.set()
        await until(pilot, lambda: "No space left" in str(toasts(app)))
        assert "● rec" not in screen_text(app)
