"""A token over all links, its percentiles, and the buckets of a histogram."""

from __future__ import annotations

import pytest

from backends.link.figures import lower_edge_us, token_totals
from backends.link.meter import LinkMeter, pass_times_ms
from backends.link.wire import parse
from backends.state import Link, Pass


def carrying(name: str, head_ms: float, compute_ms: float, **facts: object) -> Link:
    """A link that carried tokens, whose ways take a millisecond each."""
    return Link(
        worker=name,
        round_trips_per_token=1.0,
        bytes_up_per_token=3_000.0,
        bytes_down_per_token=500.0,
        head_ms_per_token=head_ms,
        up_ms_per_token=1.0,
        compute_ms_per_token=compute_ms,
        down_ms_per_token=1.0,
        wait_ms_per_token=0.5,
        **facts,  # type: ignore[arg-type]
    )


TWO = (carrying("a", 30.0, 10.0), carrying("b", 35.0, 5.0))
"""Both saw tokens of 42.5 ms; 20 of these are the workers' own."""


def test_a_token_is_the_sum_of_its_parts_over_all_workers() -> None:
    totals = token_totals((*TWO, Link(worker="spare")))
    assert (totals.round_trips, totals.bytes_up, totals.bytes_down) == (2, 6_000, 1_000)
    assert totals.head_ms == pytest.approx(42.5 - 12.5 - 7.5)
    parts = [sum(times[1:]) for times in totals.workers]
    assert sum(parts) + (totals.head_ms or 0) == pytest.approx(42.5)
    assert token_totals(TWO[:1]).head_ms == pytest.approx(30)


def test_sums_are_not_known_with_a_link_nobody_reads() -> None:
    totals = token_totals((*TWO, Link(worker="attic", mode="plain")))
    assert totals.round_trips is totals.bytes_up is totals.bytes_down is None
    assert totals.head_ms is not None
    assert totals.unread == ("attic",)
    assert token_totals((Link(worker="a"),))[:6] == (None,) * 6


def test_the_longest_percentile_counts() -> None:
    links = (
        carrying("a", 1, 1, pass_p50_ms=42.0, pass_p99_ms=50.0),
        carrying("b", 1, 1, pass_p50_ms=42.5, pass_p99_ms=400.0),
    )
    assert token_totals(links)[3:5] == (42.5, 400.0)


def token(head_ms: float, compute_ms: float = 10.0) -> Pass:
    return Pass(at_ms=0, head_ms=head_ms, compute_ms=compute_ms)


def test_tokens_after_a_pause_have_no_time() -> None:
    times = pass_times_ms([token(30_000), *[token(30)] * 20, token(300)])
    assert times == [*[40.0] * 20, 310.0]
    # A slow cluster does not pause all the time.
    assert len(pass_times_ms([token(3_000, 200)] * 5)) == 5


def test_percentiles_are_of_the_latest_tokens() -> None:
    meter = LinkMeter("w")
    one = '{"batch": 1, "rows": 1, "generated": true, "round_trips": 1, "bytes_up": 1, '
    one += '"bytes_down": 1, "last_reply_ns": 1, "up_ns": 0, "compute_ns": 0, '
    one += '"down_ns": 0, "wait_ns": 0, "head_ns": %d}'
    times_ms = [*range(1, 201)]
    passes = ",".join(one % (time_ms * 1_000_000) for time_ms in times_ms)
    found = parse(f'{{"type": "passes", "passes": [{passes}]}}'.encode())
    assert found is not None
    meter.take(found)
    # As long ago as the parts of a pass that stand beside it.
    assert meter.link.pass_p50_ms == 169
    assert meter.link.pass_p99_ms == 199


def test_a_command_carries_its_histogram() -> None:
    line = parse(
        b'{"type": "snapshot", "commands": {"GET_TENSOR": '
        b'{"count": 3, "p50_us": 36, "histogram_us": [[36.863, 2], [524.287, 1]]}}}'
    )
    assert line is not None
    meter = LinkMeter("w")
    meter.take(line)
    found = meter.link.commands["GET_TENSOR"].histogram_us
    assert found == ((36.863, 2), (524.287, 1))


@pytest.mark.parametrize("first_ns", [0, 5, 8, 15, 16, 17, 100, 4_096, 10**6, 10**9])
def test_buckets_touch_as_the_relay_divides_them(first_ns: int) -> None:
    octave = max(first_ns.bit_length() - 4, 0)
    lower_ns = first_ns >> octave << octave
    upper_ns = lower_ns + (1 << octave) - 1
    assert lower_edge_us(upper_ns / 1000) == pytest.approx(lower_ns / 1000)
