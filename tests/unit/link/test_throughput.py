"""Bytes per second from totals, and that they end when the traffic does."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from backends.link import relay
from backends.link.meter import LinkMeter, Throughput
from backends.link.relay import RelayReader
from backends.link.wire import Line

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def snapshot(at_s: float, up: int, down: int = 0) -> Line:
    """A relay's counters at a moment of its clock."""
    return Line(type="snapshot", at_ns=int(at_s * 1e9), bytes_up=up, bytes_down=down)


def rates(meter: LinkMeter) -> tuple[float | None, float | None]:
    """Bytes per second up and down."""
    return meter.link.bytes_per_s_up, meter.link.bytes_per_s_down


def test_a_rate_is_the_difference_of_totals_over_a_second() -> None:
    seen = Throughput()
    assert seen.take(10.0, 5_000, 0) is None
    assert seen.take(10.5, 6_000, 100) == (2_000, 200)
    assert seen.take(11.0, 6_000, 100) == (1_000, 100)
    assert seen.take(11.5, 6_000, 100) == (0, 0)


def test_one_moment_twice_is_no_rate() -> None:
    seen = Throughput()
    seen.take(10.0, 1, 0)
    assert seen.take(10.0, 1, 0) is None


def test_a_relay_that_began_anew_is_no_negative_rate() -> None:
    seen = Throughput()
    seen.take(10.0, 5_000, 0)
    seen.take(10.5, 6_000, 0)
    assert seen.take(11.0, 10, 0) is None
    assert seen.take(11.5, 110, 0) == (200, 0)


def test_silence_is_not_spread_over_what_comes_after_it() -> None:
    """A relay says nothing while nothing moves: the new bytes are of its last tick."""
    seen = Throughput()
    seen.take(10.0, 0, 0)
    assert seen.take(40.0, 1_000, 500) == (4_000, 2_000)


def test_a_link_has_its_rates_from_its_snapshots() -> None:
    meter = LinkMeter("w")
    meter.take(snapshot(10.0, 0))
    assert rates(meter) == (None, None)
    meter.take(snapshot(10.5, 1_000, 50))
    assert rates(meter) == (2_000, 100)


def test_silence_ends_a_rate_once() -> None:
    meter = LinkMeter("w")
    assert not meter.take_silence()
    meter.take(snapshot(10.0, 0))
    meter.take(snapshot(10.5, 1_000))
    assert meter.take_silence()
    assert rates(meter) == (0, 0)
    assert not meter.take_silence()


async def test_a_quiet_relay_and_one_that_went_away_carry_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "QUIET_S", 0.01)
    asked, seen = asyncio.Event(), asyncio.Event()

    async def give(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for line in (snapshot(1.0, 0), snapshot(1.5, 1_000)):
            value = {"type": line.type, "at_ns": line.at_ns, "bytes_up": line.bytes_up}
            writer.write(json.dumps(value).encode() + b"\n")
        await asked.wait()
        writer.close()

    told: list[float | None] = []

    def changed() -> None:
        told.append(reader.meter.link.bytes_per_s_up)
        if told[-1] == 0.0:
            seen.set()

    reader = RelayReader("w", tmp_path / "stats", changed)
    async with await asyncio.start_unix_server(give, tmp_path / "stats"):
        following = asyncio.create_task(reader.run())
        await asyncio.wait_for(seen.wait(), 10)
        asked.set()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    assert told == [None, 2_000, 0]
