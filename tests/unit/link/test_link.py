"""A relay's lines folded into a link, and its passes as a trace."""

from __future__ import annotations

import itertools
import json

import pytest

from backends.link.figures import chrome_trace
from backends.link.meter import PASSES_SHOWN, LinkMeter
from backends.link.way import LinkRoute, WayKind
from backends.link.wire import Line, parse
from backends.state import Lab, Link

SNAPSHOT = {
    "type": "snapshot",
    "worker": "w",
    "mode": "metered",
    "protocol": "7.0.0",
    "waiting": ["127.0.0.1:9"],
    "plain_reason": None,
    "refused": 2,
    "refused_reason": "custom op",
    "bytes_up": 10,
    "bytes_down": 20,
    "rtt_us": 41_500,
    "lab": {"latency_ms": 20.0, "jitter_ms": 2.0, "rate_mb_s": 30.0, "seed": 1},
    "commands": {"GET_TENSOR": {"count": 3, "p50_us": 36, "p99_us": 525}},
    "something_new": [1, 2],
}


def line(value: object) -> Line:
    found = parse(json.dumps(value).encode())
    assert found is not None
    return found


def one_pass(head_ms: float = 1.0, **more: object) -> dict[str, object]:
    return {
        "batch": 1,
        "rows": 1,
        "generated": True,
        "round_trips": 1,
        "bytes_up": 2948,
        "bytes_down": 520,
        "last_reply_ns": 9_000_000,
        "head_ns": int(head_ms * 1e6),
        "up_ns": 500_000,
        "compute_ns": 3_000_000,
        "down_ns": 250_000,
        "wait_ns": 125_000,
        **more,
    }


def test_a_pair_of_relays_tells_what_crossed_and_pings_through_the_tunnel() -> None:
    pair = {"up": True, "sealed": True, "wire_bytes_up": 4, "wire_bytes_down": 5}
    meter = LinkMeter("w", lambda: 7.0)
    meter.take(line({**SNAPSHOT, "pair": pair}))
    assert meter.link.mode == "pair"
    assert (meter.link.wire_bytes_up, meter.link.wire_bytes_down) == (4, 5)
    assert meter.link.overhead_bytes_up is None
    assert meter.link.rtt_ms == 1.5
    assert meter.link.reason == "custom op"
    meter.take(line({**SNAPSHOT, "pair": {**pair, "overhead_bytes_up": 3}}))
    assert meter.link.overhead_bytes_up == 3
    broken = {**pair, "up": False, "reason": "held by studio"}
    meter.take(line({**SNAPSHOT, "mode": "plain", "pair": broken}))
    assert (meter.link.mode, meter.link.reason) == ("plain", "held by studio")
    meter.take(line(SNAPSHOT))
    assert (meter.link.mode, meter.link.wire_bytes_up) == ("metered", None)
    assert meter.link.rtt_ms == 8.5


@pytest.mark.parametrize(
    ("kind", "pair", "way", "reason"),
    [
        (WayKind.LOCAL, {"place": "127.0.0.1:4"}, "local", ""),
        (WayKind.TUNNEL, None, "tunnel", ""),
        (WayKind.DIRECT, None, "direct", ""),
        (WayKind.TUNNEL, {"place": "10.0.0.7:4"}, "direct", ""),
        (WayKind.TUNNEL, {"place": "unix:/w", "detour": "no"}, "tunnel", "no"),
        (WayKind.TUNNEL, {"place": "unix:/w"}, "tunnel", "bob has none"),
        (WayKind.TUNNEL, {"up": False}, "", ""),
        (None, {"place": "unix:/w"}, "", ""),
    ],
)
def test_a_link_tells_what_it_leads_through(
    kind: WayKind | None, pair: dict[str, object] | None, way: str, reason: str
) -> None:
    route = LinkRoute(kind, direct="10.0.0.7:4", why="bob has none")
    meter = LinkMeter("w", route=lambda: route)
    meter.take(line({**SNAPSHOT, "pair": pair and {"up": True, **pair}}))
    assert (meter.link.way, meter.link.way_reason) == (way, reason)


def test_a_link_that_is_down_tells_what_its_tunnel_says() -> None:
    said = ["The sshd of bob forbids forwarding"]
    meter = LinkMeter("w", route=lambda: LinkRoute(WayKind.TUNNEL, trouble=said[0]))
    down = {"up": False, "reason": "the other end is gone"}
    meter.take(line({**SNAPSHOT, "pair": down}))
    assert meter.link.reason == said[0]
    said[0] = ""
    meter.take(line({**SNAPSHOT, "pair": down}))
    assert meter.link.reason == "the other end is gone"


def passes(*of: dict[str, object]) -> Line:
    return line({"type": "passes", "worker": "w", "passes": list(of)})


def test_counters_become_a_link() -> None:
    meter = LinkMeter("w")
    assert meter.take(line(SNAPSHOT))
    link = meter.link
    assert (link.protocol, link.mode, link.rtt_ms) == ("7.0.0", "metered", 1.5)
    assert link.lab == Lab(latency_ms=20, jitter_ms=2, rate_mb_s=30, seed=1)
    assert link.waiting == ("127.0.0.1:9",)
    assert (link.refused, link.reason) == (2, "custom op")
    assert link.commands["GET_TENSOR"].p99_us == 525
    assert link.round_trips_per_token is None


@pytest.mark.parametrize(
    ("rtt_us", "latency_ms", "rtt_ms"),
    [(3_100, 0.0, 3.1), (43_100, 20.0, 3.1), (323, 0.15, 0.023), (40_000, 20.0, None)],
)
def test_the_round_trip_is_the_links_own_whatever_the_lab_adds(
    rtt_us: int, latency_ms: float, rtt_ms: float | None
) -> None:
    """A Unix socket knows no round trip: all that the relay tells is the lab's."""
    meter = LinkMeter("w")
    lab = {"latency_ms": latency_ms, "jitter_ms": 2.0, "rate_mb_s": 0.0, "seed": 1}
    meter.take(line(SNAPSHOT | {"rtt_us": rtt_us, "lab": lab}))
    assert meter.link.rtt_ms == rtt_ms


def test_a_worker_without_an_answer_is_silent_until_the_relay_is() -> None:
    meter = LinkMeter("w")
    meter.take(line(SNAPSHOT | {"unanswered_ms": 3100}))
    assert meter.link.unanswered_ms == 3100
    assert meter.take_silence()
    assert meter.link.unanswered_ms is None
    meter.take(line(SNAPSHOT))
    assert meter.link.unanswered_ms is None


def test_passes_become_figures_per_token() -> None:
    meter = LinkMeter("w")
    meter.take(passes(one_pass(), one_pass(), one_pass(batch=512, rows=0)))
    assert meter.link.round_trips_per_token == 1.0
    assert meter.link.bytes_up_per_token == 2948
    assert meter.link.compute_ms_per_token == 3.0
    assert len(meter.link.passes) == 3


def test_what_a_tunnel_takes_is_not_compute() -> None:
    meter = LinkMeter("w", lambda: 1.0)
    plain = LinkMeter("w")
    told = passes(one_pass())
    meter.take(told)
    plain.take(told)
    (here,), (there,) = plain.passes, meter.passes
    taken_ms = min(1.0 * here.round_trips, here.compute_ms)
    assert taken_ms > 0
    assert there.compute_ms == pytest.approx(here.compute_ms - taken_ms)
    assert there.up_ms == pytest.approx(here.up_ms + taken_ms / 2)
    assert there.down_ms == pytest.approx(here.down_ms + taken_ms / 2)
    assert there.wall_ms == pytest.approx(here.wall_ms)


def test_a_pause_is_no_part_of_a_token() -> None:
    """The first token after a pause carries it; the figure per token must not."""
    meter = LinkMeter("w")
    meter.take(passes(one_pass(head_ms=30_000), *(one_pass() for _ in range(5))))
    assert meter.link.head_ms_per_token == 1.0


def test_a_snapshot_shows_few_passes_a_trace_all() -> None:
    meter = LinkMeter("w")
    meter.take(passes(*(one_pass() for _ in range(100))))
    assert len(meter.link.passes) == PASSES_SHOWN
    assert len(meter.passes) == 100


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"type": 5}', b"\xff"])
def test_junk_is_no_line(raw: bytes) -> None:
    assert parse(raw) is None


def test_unknown_lines_change_nothing() -> None:
    meter = LinkMeter("w")
    assert not meter.take(line({"type": "hello", "worker": "w"}))
    assert meter.link == Link(worker="w")


def test_a_trace_has_the_parts_end_to_end() -> None:
    meter = LinkMeter("w")
    meter.take(passes(one_pass()))
    events = chrome_trace({"w": tuple(meter.passes)})["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert [s["name"] for s in slices] == ["head", "up", "compute", "down", "wait"]
    for one, following in itertools.pairwise(slices):
        assert one["ts"] + one["dur"] == pytest.approx(following["ts"])
    assert slices[-1]["ts"] + slices[-1]["dur"] == pytest.approx(9000.0)
