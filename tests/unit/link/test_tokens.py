"""Tokens and passes are two things: slots, prompts, drafts, and who counts them."""

from __future__ import annotations

import json

import pytest

from backends.link.figures import lower_edge_us, token_totals
from backends.link.meter import (
    WINDOW_TOKENS,
    LinkMeter,
    Outcomes,
    ServerCount,
    TokensPerPass,
    pass_times_ms,
)
from backends.link.wire import Line, parse
from backends.state import Link, Pass

MS = 1_000_000


def passes(*of: dict[str, object]) -> Line:
    found = parse(json.dumps({"type": "passes", "passes": list(of)}).encode())
    assert found is not None
    return found


def one(at_ms: int, batch: int = 1, **more: object) -> dict[str, object]:
    parts = ("head", "up", "compute", "down", "wait")
    return {
        "batch": batch,
        "generated": batch <= 16,
        "round_trips": 1,
        "bytes_up": 1000 * batch,
        "bytes_down": 400,
        "last_reply_ns": at_ms * MS,
        **{f"{part}_ns": 2 * MS for part in parts},
        **more,
    }


class Pair:
    """A worker before the last layer's, and that one: their passes alternate."""

    def __init__(self) -> None:
        outcomes = Outcomes()
        self.first = LinkMeter("first", outcomes=outcomes)
        self.last = LinkMeter("last", outcomes=outcomes)
        self.at_ms = 0

    def run(self, *batches: tuple[int, int], trips: int = 1) -> None:
        """Passes of so many tokens each, out of which so many rows come."""
        for batch, rows in batches:
            self.at_ms += 10
            early = one(self.at_ms, batch, round_trips=trips)
            self.first.take(passes(early))
            self.last.take(passes(one(self.at_ms + 4, batch, rows=rows)))
        self.first.judge()


def test_slots_share_the_trips_of_a_pass() -> None:
    pair = Pair()
    pair.run((24, 4), *[(4, 4)] * 20)
    for meter in (pair.first, pair.last):
        made = meter.link.generation
        assert (made.passes, made.tokens, made.tokens_from) == (20, 84, "wire")
        assert (made.trips, made.trips_per_pass, made.tokens_per_pass) == (20, 1, 4)
        assert made.bytes_up_per_pass == 4000
        assert meter.link.round_trips_per_token == 0.25
        assert meter.link.bytes_up_per_token == 1000
        assert meter.link.compute_ms_per_token == 0.5


def test_a_prompts_remainder_is_a_prompt_at_every_worker() -> None:
    pair = Pair()
    pair.run((512, 0), (8, 1), *[(1, 1)] * 5)
    for meter in (pair.first, pair.last):
        assert [p.generated for p in meter.passes] == [False, False, *[True] * 5]
        assert meter.link.generation.tokens == 6
        assert meter.link.bytes_up_per_token == 1000


def test_detours_of_a_pass_are_trips_of_its_token() -> None:
    pair = Pair()
    pair.run(*[(1, 1)] * 5, trips=4)
    assert pair.first.link.round_trips_per_token == 4
    assert pair.last.link.round_trips_per_token == 1


def test_what_came_out_may_be_told_later() -> None:
    pair = Pair()
    pair.run((1, 1))
    early = pair.first.link
    pair.first.take(passes(one(100, 8)))
    assert pair.first.link == early
    pair.last.take(passes(one(104, 8, rows=1)))
    assert pair.first.judge()
    assert not pair.first.passes[-1].generated
    assert pair.first.link.generation.passes == 1


def test_of_workers_that_compute_together_one_counts() -> None:
    outcomes = Outcomes()
    both = [LinkMeter(name, outcomes=outcomes) for name in ("a", "b")]
    for at_ms in range(10, 60, 10):
        for meter in both:
            meter.take(passes(one(at_ms, rows=1)))
    for meter in both:
        assert meter.link.generation.tokens == 5
        assert meter.link.generation.passes == 5


def test_a_draft_s_rows_are_no_tokens() -> None:
    """Of four rows a pass brings, the server takes three."""
    pair = Pair()
    pair.first.read_server(ServerCount(1000, speculative=True))
    pair.last.read_server(ServerCount(1000, speculative=True))
    pair.run((7, 1), *[(4, 4)] * 20)
    for meter in (pair.first, pair.last):
        meter.read_server(ServerCount(1061, speculative=True))
        made = meter.link.generation
        assert (made.tokens, made.tokens_from) == (61, "server")
        assert made.tokens_per_pass == 3
        assert meter.link.round_trips_per_token == pytest.approx(1 / 3)


def test_where_no_worker_has_the_last_layer_the_server_counts() -> None:
    meter = LinkMeter("w")
    four_slots = ServerCount(50, decode_max=4)
    meter.read_server(four_slots)
    meter.take(passes(one(10, 512), one(20, 8)))
    meter.take(passes(*(one(30 + 10 * n, 4) for n in range(10))))
    meter.read_server(four_slots._replace(tokens=90))
    made = meter.link.generation
    assert (made.passes, made.tokens, made.tokens_from) == (10, 40, "server")
    assert made.tokens_per_pass == 4


def last_on_head(slots: int, *batches: int, speculative: bool = False) -> LinkMeter:
    """Passes of these sizes, of which no relay sees what came out."""
    meter = LinkMeter("w")
    decode_max = slots * (17 if speculative else 1)
    server = ServerCount(0, speculative=speculative, decode_max=decode_max)
    meter.read_server(server)
    meter.take(passes(*(one(10 * n, batch) for n, batch in enumerate(batches))))
    return meter


def test_without_rows_an_answer_s_first_token_is_its_prompt_s() -> None:
    meter = last_on_head(1, *[24, *[1] * 19] * 3)
    meter.read_server(ServerCount(60))
    made = meter.link.generation
    assert (made.passes, made.tokens) == (57, 60)
    assert made.tokens_per_pass == 1
    assert meter.link.round_trips_per_token == 1


@pytest.mark.parametrize(
    ("batches", "generated"),
    [
        ([512, 3, 1, 1, 1], [0, 0, 1, 1, 1]),
        ([512, 2, 2, 2], [0, 1, 1]),
        ([512, 4, 2, 2, 1], [0, 0, 1, 1, 1]),
        ([512, 1, 4, 2, 2], [0, 1, 0, 1]),
        ([512, 1, 1, 3, 1], [0, 1, 1, 0, 1]),
    ],
)
def test_without_rows_short_prompts_and_remainders_are_no_tokens(
    batches: list[int], generated: list[int]
) -> None:
    meter = last_on_head(4, *batches)
    found = [one.generated for one in meter.passes]
    assert found[: len(generated)] == generated


def test_without_rows_a_draft_s_first_tokens_are_not_its_passes() -> None:
    meter = last_on_head(1, *[40, *[5] * 20] * 2, speculative=True)
    server = ServerCount(122, speculative=True, decode_max=17)
    meter.read_server(server)
    assert meter.link.generation.tokens_per_pass == 3


def test_without_any_count_nothing_is_said_of_tokens() -> None:
    meter = LinkMeter("w")
    meter.take(passes(one(10), one(20)))
    assert meter.link.generation.trips_per_pass == 1
    assert meter.link.generation.tokens_per_pass is None
    assert meter.link.round_trips_per_token is None


def test_the_server_s_figure_begins_where_nothing_moved() -> None:
    """Its readings come late: while it works they belong to other passes."""
    ratio = TokensPerPass()
    ratio.read(0, 0, idle=True)
    ratio.read(30, 50, idle=False)
    ratio.read(300, 90, idle=False)
    for _ in range(2):
        ratio.read(300, 100, idle=True)
    assert ratio.figure == 3
    ratio.read(300, 140, idle=False)
    ratio.read(300 + WINDOW_TOKENS, 100 + WINDOW_TOKENS // 2, idle=True)
    assert ratio.figure == 2


def test_a_lag_of_the_server_takes_nothing_back() -> None:
    ratio = TokensPerPass()
    ratio.read(0, 0, idle=True)
    ratio.read(100, 100, idle=True)
    ratio.read(99, 101, idle=False)
    ratio.read(102, 102, idle=True)
    assert ratio.figure == 1


# --- A token over all links, its percentiles, and the buckets of a histogram ---


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


def under(at_ms: int, lab: dict[str, float] | None = None) -> Line:
    told = {"type": "snapshot", "at_ns": at_ms * MS, "lab": lab}
    found = parse(json.dumps(told).encode())
    assert found is not None
    return found


@pytest.mark.parametrize("changed", ["first", "last"])
def test_times_are_of_passes_under_the_present_labs_alone(changed: str) -> None:
    """A lab on one link is in the other's time, as time of the head."""
    pair = Pair()
    meters = {"first": pair.first, "last": pair.last}
    for meter in meters.values():
        meter.take(under(0, {"latency_ms": 10}))
    pair.run(*[(1, 1)] * 20)
    for meter in meters.values():
        meter.take(under(205, {"latency_ms": 10}))
        assert meter.link.compute_ms_per_token == 2
    meters[changed].take(under(209))
    assert meters[changed].judge() is False
    pair.first.judge()
    pair.last.judge()
    for meter in meters.values():
        link = meter.link
        assert (link.compute_ms_per_token, link.pass_p50_ms) == (None, None)
        assert (link.passes, link.pass_p99_ms) == ((), None)
        assert link.round_trips_per_token == 1, "it is the same under any lab"
        assert len(meter.passes) == 20, "a trace has all"
    assert token_totals([pair.first.link, pair.last.link]).head_ms is None
    pair.run((1, 1), (1, 1))
    for meter in meters.values():
        # What began before the change is of both.
        assert len(meter.link.passes) == 1
        assert meter.link.pass_p50_ms == 10


def test_a_lab_told_of_late_takes_no_later_change_back() -> None:
    pair = Pair()
    for meter in (pair.first, pair.last):
        meter.take(under(0))
    pair.run(*[(1, 1)] * 3)
    pair.last.take(under(40, {"latency_ms": 10}))
    pair.first.take(under(5, {"latency_ms": 10}))
    pair.last.judge()
    assert pair.last.link.compute_ms_per_token is None


def test_a_controller_that_comes_later_takes_the_lab_as_it_is() -> None:
    meter = LinkMeter("w")
    meter.take(passes(one(20, rows=1)))
    meter.take(under(30, {"latency_ms": 10}))
    assert meter.link.compute_ms_per_token == 2
