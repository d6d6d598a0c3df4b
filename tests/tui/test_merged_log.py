"""The logs of several processes as one: times, order, levels, and what is away."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from backends.errors import MachineError
from backends.machines.agent import log_chunk
from backends.state import (
    ClusterSnapshot,
    LogChunk,
    Peer,
    PeerFacts,
    ProcessInfo,
    ProcessRole,
    ProcessState,
)
from tui.model.log_levels import LogLevel, level_of, prefix_length
from tui.model.merged_log import (
    LineClock,
    LogLine,
    MergedLog,
    by_time,
    clocks_ahead,
)
from tui.screens.logs.lines import LogFilter

NOON = datetime(2026, 11, 27, 12, 0, tzinfo=UTC).timestamp()


IMPOSSIBLE = (
    "9" * 400 + ".00.000.000 I x",
    "9" * 5000 + ".00.000.000 I x",
    "9" * 17 + ".00.000.000 I x",
    "9999999.00.000.000 I x",
    "0001-01-01 00:00:00,000 INFO x",
    "9999-12-31 23:59:59,999 INFO x",
)


def near(at: float) -> object:
    """The same, but for what a float of Unix seconds leaves out."""
    return pytest.approx(at, rel=0, abs=1e-3)


def test_a_line_tells_its_time_and_keeps_its_level() -> None:
    for raw, at, text in (
        ("2026-11-27T12:00:01.500Z W late", NOON + 1.5, "W late"),
        ("2026-11-27 12:00:01,500 WARNING late", NOON + 1.5, "W late"),
        ("1.02.500.000 I srv  loaded", NOON - 8 + 62.5, "I srv  loaded"),
        ("Accepted client connection", NOON - 8, "Accepted client connection"),
        ("2026-13-45T99:00:01.500Z W odd", NOON - 8, "2026-13-45T99:00:01.500Z W odd"),
        *((line, NOON - 8, line) for line in IMPOSSIBLE),
    ):
        line = LineClock("worker1", NOON - 8).line(raw)
        assert line.at == near(at), raw
        assert line.text == text
        assert line.told is (text != raw)


def test_another_machines_clock_is_put_right() -> None:
    clock = LineClock("worker1@mini", NOON + 3, ahead_s=3.0)
    assert clock.line("0.01.000.000 I a").at == near(NOON + 1)
    assert clock.line("2026-11-27T12:00:05.000Z I b").at == near(NOON + 2)


def test_clock_that_is_ahead_by_decades_is_not_believed() -> None:
    facts = PeerFacts(at=0.0, clock_offset_s=1e300)
    assert clocks_ahead(ClusterSnapshot(peers=(Peer(name="m", facts=facts),))) == {}
    clock = LineClock("worker1@m", 1e300)
    assert clock.line("a").shown(0)


def test_a_line_without_a_time_is_where_it_came() -> None:
    clock = LineClock("worker1", NOON)
    assert clock.line("0.01.000.000 I a").at == NOON + 1
    assert clock.line("b").at == NOON + 1
    assert clock.line("c", seen_at=NOON + 9).at == NOON + 1
    assert clock.line("0.05.000.000 I d").at == NOON + 5
    assert clock.line("0.04.000.000 I e").at == NOON + 5, "it never goes back"
    silent = LineClock("worker1", NOON)
    assert silent.line("c", seen_at=NOON + 9).at == NOON + 9


@given(st.lists(st.lists(st.integers(0, 20), max_size=8), max_size=4))
def test_logs_are_in_the_order_of_time_and_each_in_its_own(
    times: list[list[int]],
) -> None:
    logs = [
        [LogLine(at, True, str(which), str(n)) for n, at in enumerate(sorted(one))]
        for which, one in enumerate(times)
    ]
    merged = by_time(logs)
    assert [line.at for line in merged] == sorted(at for one in times for at in one)
    for which, log in enumerate(logs):
        assert [line for line in merged if line.process == str(which)] == log


def test_levels_and_filters_know_merged_lines() -> None:
    clock = LineClock("worker1@mini", NOON)
    shown = clock.line("0.01.000.000 E no room").shown(13)
    assert shown == " 12:00:01.000 worker1@mini  │ E no room"
    assert level_of(shown) is LogLevel.ERROR
    assert shown[prefix_length(shown) :] == "no room"
    bare = clock.line("error: x").shown(3)
    assert bare.startswith("~12:00:01.000 worker1@mini │ ")
    assert level_of(bare) is LogLevel.ERROR
    assert level_of("2026-11-27 12:00:01,500 WARNING late") is LogLevel.WARNING

    def kept(source: str) -> bool:
        return LogFilter.parse(source, merged=True).matches(shown)

    assert [kept(s) for s in ("@mini", "@Worker1 room", "@worker1 x", "@room")] == [
        *(True, True, False, False)
    ]


def process(name: str, peer: str = "local") -> ProcessInfo:
    return ProcessInfo(
        name=name,
        role=ProcessRole.WORKER,
        state=ProcessState.RUNNING,
        peer=peer,
        started_at=NOON,
    )


def chunk_of(log: str, offset: int, limit: int) -> LogChunk:
    data, size = log.encode(), len(log.encode())
    start = max(size + offset, 0) if offset < 0 else offset if offset <= size else 0
    part = data[start : start + limit]
    return log_chunk("w", part, offset=offset, size_bytes=size, start=start)


async def test_what_starts_again_is_told_once_and_whole() -> None:
    log = "0.01.000.000 I first of many words\n0.02.000.000 I cu"

    async def read(name: str, offset: int, limit: int) -> LogChunk:
        return chunk_of(log if name == "w" else "", offset, limit)

    merged = MergedLog(read)
    told: list[str] = []

    async def more(started_at: float) -> None:
        one = replace(process("w"), started_at=started_at)
        found = await merged.more(ClusterSnapshot(processes=(one,)))
        told.extend(line.text for line in found)

    # Our own clock tells of a start only after a while.
    for started_at in (0.0, NOON):
        await more(started_at)
    assert told == ["0.01.000.000 I first of many words"]
    log = "0.01.000.000 I again\n"
    for started_at in (NOON, NOON, NOON + 9):
        await more(started_at)
    assert told[1:] == ["I again"]
    log = "0.01.000.000 I and a third time, with more words than before\n"
    await more(NOON + 12)
    assert told[2:] == ["I and a third time, with more words than before"]


async def test_what_is_behind_is_read_on_at_once() -> None:
    log = "x" * 99 + "\n"

    async def read(name: str, offset: int, limit: int) -> LogChunk:
        return chunk_of(log, offset, limit)

    merged = MergedLog(read)
    behind = []
    for _ in range(3):
        await merged.more(ClusterSnapshot())
        behind.append(merged.is_behind)
        log += log * 3000 if len(log) == 100 else ""
    assert behind == [False, True, False]


async def test_new_lines_of_all_are_read_and_what_is_away_is_said_once() -> None:
    texts = {
        "controller": "2026-11-27T12:00:02.000Z I serves\n",
        "llama-server": "0.01.000.000 I loads\n0.03.000.000 I unfi",
        "worker1": "",
    }
    peers = (Peer(name="mini", facts=PeerFacts(at=0.0, clock_offset_s=60.0)),)
    snapshot = ClusterSnapshot(
        processes=(process("llama-server", "mini"), process("worker1")), peers=peers
    )

    async def read(name: str, offset: int, limit: int) -> LogChunk:
        if name == "worker1":
            raise MachineError("mini is away")
        return chunk_of(texts[name], offset, limit)

    log = MergedLog(read)
    found = [(line.process, line.text) for line in await log.more(snapshot)]
    assert found == [
        ("llama-server@mini", "I loads"),
        ("controller", "I serves"),
        ("worker1", "E cannot be read: mini is away"),
    ]
    texts["llama-server"] += "nished\n"
    found = [(line.process, line.text) for line in await log.more(snapshot)]
    assert found == [("llama-server@mini", "I unfinished")]
    restarted = replace(snapshot.processes[0], started_at=NOON + 9)
    snapshot = replace(snapshot, processes=(restarted,))
    texts["llama-server"] = "0.01.000.000 I again\n"
    found = [(line.process, line.text) for line in await log.more(snapshot)]
    assert found == [("llama-server@mini", "I again")]
    texts["llama-server"] += "0.02.000.000 I cut o"
    for state, told in (("RUNNING", []), ("EXITED", ["I cut o"]), ("EXITED", [])):
        ended = replace(restarted, state=ProcessState[state])
        snapshot = replace(snapshot, processes=(ended,))
        assert [line.text for line in await log.more(snapshot)] == told, state
    only = MergedLog(read)
    lines = await only.more(snapshot, ["controller"])
    assert [line.process for line in lines] == ["controller"]
