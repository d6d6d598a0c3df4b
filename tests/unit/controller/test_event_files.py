"""Events on disk: kept for days, within bounds, whatever became of the last line."""

from __future__ import annotations

import errno
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from backends.controller import event_log
from backends.controller.event_log import KEPT_DAYS, EventFiles
from backends.state import Event, EventKind

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NOW = 1_790_000_000.0
DAY_S = 86_400.0


class Clock:
    """Says what time it is, also to files."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def add(tmp_path: Path, clock: Clock) -> Callable[..., EventFiles]:
    """Appends an event, as a controller at that time would."""

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


def test_events_come_back_as_they_were(add: Callable[..., EventFiles]) -> None:
    add(1, "first")
    assert [(e.number, e.text) for e in add(2, "second").read()] == [
        (1, "first"),
        (2, "second"),
    ]


def test_only_the_user_may_read_them(
    add: Callable[..., EventFiles], tmp_path: Path
) -> None:
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
    monkeypatch.setattr(event_log, "FILE_BYTES_MAX", 2_000)
    monkeypatch.setattr(event_log, "FILES_BYTES_MAX", 10_000)
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
