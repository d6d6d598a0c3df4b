"""What becomes an event: who did it, what is no news, what has to settle first."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from backends.controller import event_log as module
from backends.controller.event_log import (
    EVIDENCE_LINES_MAX,
    KEPT_DAYS,
    EventFiles,
    EventLog,
)
from backends.controller.event_recorders import (
    EventRecorder,
    PeerRecorder,
    WorkRecorder,
)
from backends.errors import MachineError
from backends.split.layout import make_split, ranges
from backends.state import (
    Actor,
    Event,
    EventKind,
    EventTone,
    Failure,
    Lab,
    MeasuredSplit,
    Peer,
    PeerState,
    Plan,
)
from tests.kit.waiting import PATIENCE_S

ANNA = Actor(program="console", user="anna", host="studio", pid=47, tty="pts/3")
PLAN = Plan(
    model="/models/tiny.gguf", split=make_split(12, ["worker1/CPU", "w2/CPU"], [6, 7])
)


@pytest.fixture
def event_log(tmp_path: Path) -> EventLog:
    return EventLog(EventFiles(tmp_path / "events"))


def texts(event_log: EventLog) -> list[str]:
    return [event.sentence for event in event_log.after(0)]


def test_a_goal_tells_who_set_it(event_log: EventLog) -> None:
    recorder = EventRecorder(event_log, "default")
    recorder.wanted(PLAN, ANNA)
    recorder.wanted(None, ANNA)
    assert texts(event_log) == [
        "anna@studio launched tiny (worker1/CPU 6, w2/CPU 7; context 4096)",
        "anna@studio stopped the cluster",
    ]
    assert [event.kind for event in event_log.after(0)] == [
        EventKind.LAUNCH,
        EventKind.STOP,
    ]
    recorder.wanted(PLAN, ANNA, "for a race")
    raced = (
        "anna@studio launched tiny for a race (worker1/CPU 6, w2/CPU 7; context 4096)"
    )
    assert texts(event_log)[-1] == raced
    assert event_log.after(1)[0].by.details == "console, pid 47 on pts/3"


def test_what_serves_is_told_with_its_split(event_log: EventLog) -> None:
    measured = MeasuredSplit(layers=ranges(PLAN.split))
    recorder = EventRecorder(event_log, "default")
    recorder.serving(PLAN, measured, 1.5, again=False)
    odd = msgspec.structs.replace(measured, mismatches=("w2 holds 8",))
    recorder.serving(PLAN, odd, 2.0, again=True)
    first, second = event_log.after(0)
    assert first.text.startswith("tiny serves after 1.50 s: worker1/CPU 0–5, w2/CPU 6")
    assert second.text == "tiny serves again after 2.00 s, not as planned: w2 holds 8"
    assert second.tone is EventTone.WARNING


def test_a_death_carries_its_evidence(event_log: EventLog) -> None:
    told: list[int] = []
    event_log = EventLog(event_log._files, told.append)
    lines = tuple(f"line {n}" for n in range(40))
    failure = Failure(
        what="worker1 was killed by SIGKILL",
        hint="Launch again.",
        process="worker1",
        exit_signal=9,
        log_tail=(*lines, "x" * 5000),
    )
    EventRecorder(event_log, "default").failed(failure)
    (event,) = event_log.after(0)
    assert (event.kind, event.tone) == (EventKind.DIED, EventTone.ERROR)
    assert (event.process, event.exit_signal) == ("worker1", 9)
    assert len(event.evidence) == EVIDENCE_LINES_MAX
    assert len(event.evidence[-1]) == module.TEXT_MAX
    assert told == [1]


def test_the_story_goes_on_where_the_last_controller_left_it(
    event_log: EventLog, tmp_path: Path
) -> None:
    EventRecorder(event_log, "default").wanted(PLAN, ANNA)
    another = EventLog(EventFiles(tmp_path / "events"))
    EventRecorder(another, "default").taken_up(PLAN)
    assert [event.number for event in another.after(0)] == [1, 2]
    assert another.after(0)[0] == event_log.after(0)[0]


def test_the_controller_does_not_repeat_itself(tmp_path: Path) -> None:
    now = 1000.0
    event_log = EventLog(EventFiles(tmp_path), clock=lambda: now)
    recorder = EventRecorder(event_log, "default")
    for _ in range(50):
        recorder.waiting("mini cannot be reached: waiting for it")
    assert event_log.newest == 1
    now += module.REPEAT_S
    recorder.waiting("mini cannot be reached: waiting for it")
    assert event_log.newest == 2


async def test_a_lab_is_told_once_it_has_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled = asyncio.Event()

    def told(number: int) -> None:
        if number == 2:
            settled.set()

    event_log = EventLog(EventFiles(tmp_path), told)
    recorder = EventRecorder(event_log, "default")
    monkeypatch.setattr(module, "SETTLE_S", 0.01)
    for latency in range(1, 21):
        recorder.lab("mini", Lab(latency_ms=latency, rate_mb_s=30), ANNA)
    recorder.lab("nuc", None, ANNA)
    assert event_log.newest == 0
    async with asyncio.timeout(PATIENCE_S):
        await settled.wait()
    assert texts(event_log) == [
        "anna@studio set the lab on mini: +20 ms, 30 MB/s each way",
        "anna@studio cleared the lab on nuc",
    ]


async def test_what_has_not_settled_is_told_at_the_end(event_log: EventLog) -> None:
    EventRecorder(event_log, "default").lab(None, Lab(latency_ms=5), ANNA)
    event_log.close()
    assert texts(event_log) == ["anna@studio set the lab on all links: +5 ms each way"]


def test_peers_that_come_and_go(event_log: EventLog) -> None:
    recorder = PeerRecorder(event_log)

    def seen(state: PeerState, silent: float | None = None, note: str = "") -> None:
        recorder.look([Peer(name="mini", state=state, silent_since=silent, note=note)])

    seen(PeerState.PROBING)
    seen(PeerState.READY)
    for _ in range(20):
        seen(PeerState.READY)
    assert event_log.newest == 0, "how one is found, and that it stays so, is no news"
    seen(PeerState.READY, silent=1.0)
    seen(PeerState.UNREACHABLE, note="No route to host")
    seen(PeerState.PROBING)
    seen(PeerState.UNREACHABLE, note="No route to host")
    seen(PeerState.PROBING)
    seen(PeerState.SERVING)
    assert texts(event_log) == [
        "mini is silent",
        "mini is gone: No route to host",
        "mini is back",
    ]


def test_work_at_a_peer_is_told_also_when_it_fails(event_log: EventLog) -> None:
    work = WorkRecorder(event_log, ANNA, "mini")
    with work.tries("copied tiny.gguf to mini"):
        pass
    with pytest.raises(MachineError), work.tries("copied big.gguf to mini"):
        raise MachineError("The disk is full")
    assert texts(event_log) == [
        "anna@studio copied tiny.gguf to mini",
        "anna@studio copied big.gguf to mini, which failed: The disk is full",
    ]
    assert event_log.after(1)[0].tone is EventTone.WARNING


def test_an_event_that_cannot_be_made_costs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> tuple[str, ...]:
        raise ZeroDivisionError

    event_log = EventLog(EventFiles(tmp_path))
    monkeypatch.setattr(module, "_clipped", broken)
    event_log.tell(EventKind.FAILED, "it broke")
    assert event_log.after(0) == ()


# --- on disk -----------------------------------------------------------------


NOW = 1_790_000_000.0
DAY_S = 86_400.0


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def add(tmp_path: Path, clock: Clock) -> Callable[..., EventFiles]:
    def add(number: int, text: str = "something happened") -> EventFiles:
        files = EventFiles(tmp_path, clock)
        at = datetime.fromtimestamp(clock.now, UTC)
        files.append(Event(number=number, at=at, kind=EventKind.LAB, text=text))
        newest = max(tmp_path.glob("*.jsonl"))
        os.utime(newest, (clock.now, clock.now))
        return files

    return add


def numbers(files: EventFiles) -> list[int]:
    return [event.number for event in files.read()]


def test_only_users_read_them(add: Callable[..., EventFiles], tmp_path: Path) -> None:
    add(1)
    (file,) = tmp_path.glob("*.jsonl")
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_torn_last_line_costs_itself_alone(
    add: Callable[..., EventFiles], tmp_path: Path, cut: int
) -> None:
    add(1)
    add(2)
    (file,) = tmp_path.glob("*.jsonl")
    os.truncate(file, file.stat().st_size - cut)
    survivors = [1, 2] if cut == 1 else [1]
    assert numbers(EventFiles(tmp_path, lambda: NOW)) == survivors
    assert numbers(add(3)) == [*survivors, 3]


@pytest.mark.parametrize(
    "line",
    [
        b'{"v":2,"event":{"number":"seven"}}',
        b'{"v":1,"event":{"number":7,"at":"2026-09-21T00:00:00Z","kind":"unheard",'
        b'"text":"x"}}',
        b"\xff\xfe\x00",
        b"",
    ],
)
def test_what_is_not_understood_is_left_out(
    add: Callable[..., EventFiles], tmp_path: Path, line: bytes
) -> None:
    add(1)
    (file,) = tmp_path.glob("*.jsonl")
    file.write_bytes(file.read_bytes() + line + b"\n")
    assert numbers(add(2)) == [1, 2]


def test_every_day_has_its_file_and_old_ones_go(
    add: Callable[..., EventFiles], clock: Clock, tmp_path: Path
) -> None:
    for day in range(KEPT_DAYS + 4):
        files = add(day + 1)
        clock.now += DAY_S
    kept = numbers(files)
    assert kept == list(range(KEPT_DAYS + 4 - KEPT_DAYS + 1, KEPT_DAYS + 5))
    assert len(list(tmp_path.glob("*.jsonl"))) <= KEPT_DAYS + 1


def test_a_busy_day_stays_within_bounds(
    add: Callable[..., EventFiles], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FILE_BYTES_MAX", 2_000)
    monkeypatch.setattr(module, "FILES_BYTES_MAX", 10_000)
    for number in range(1, 201):
        files = add(number, "x" * 100)
    held = sum(file.stat().st_size for file in tmp_path.glob("*.jsonl"))
    assert held <= 10_000
    kept = numbers(files)
    assert kept[-1] == 200
    assert kept == list(range(kept[0], 201))


def test_a_full_disk_stops_nothing(
    add: Callable[..., EventFiles],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = add(1)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    event = next(iter(files.read()))
    with monkeypatch.context() as broken:
        broken.setattr(os, "write", full)
        files.append(event)
        files.append(event)
    assert len(caplog.records) == 1, "said once"
    assert numbers(add(2)) == [1, 2]
