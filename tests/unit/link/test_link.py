"""Links: the meter of a relay, its weights, throughput, reasons for none, and ways."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from backends.config import Config
from backends.controller.links import Links, Transports
from backends.controller.snapshot_store import SnapshotStore
from backends.errors import DllmError, MachineError, UsageError
from backends.link import relay
from backends.link.figures import chrome_trace, why_no_link
from backends.link.meter import PASSES_SHOWN, LinkMeter, Throughput
from backends.link.relay import RelayReader, put_lab, worker_weights
from backends.link.transport import (
    LinkRoute,
    TransportKind,
    direct_transport,
    local_transport,
    path_of,
    port_of,
    tcp_endpoint,
    unix_endpoint,
)
from backends.link.wire import Line, parse
from backends.paths import SOCKET_PATH_BYTES_MAX, Paths
from backends.state import (
    ClusterSnapshot,
    ClusterState,
    Lab,
    Link,
    Pass,
    Plan,
    Share,
    Split,
)
from backends.state.links import DeviceWeights, Held, LayersHeld, WorkerWeights
from tests.unit.state.scene import busy_scene
from tui.cli import links as links_module
from tui.cli.links import links, trace

NO_RECORDER: Any = None
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
        (TransportKind.LOCAL, {"place": "127.0.0.1:4"}, "local", ""),
        (TransportKind.TUNNEL, None, "tunnel", ""),
        (TransportKind.DIRECT, None, "direct", ""),
        (TransportKind.TUNNEL, {"place": "10.0.0.7:4"}, "direct", ""),
        (TransportKind.TUNNEL, {"place": "unix:/w", "detour": "no"}, "tunnel", "no"),
        (TransportKind.TUNNEL, {"place": "unix:/w"}, "tunnel", "bob has none"),
        (TransportKind.TUNNEL, {"up": False}, "", ""),
        (None, {"place": "unix:/w"}, "", ""),
    ],
)
def test_a_link_tells_what_it_leads_through(
    kind: TransportKind | None, pair: dict[str, object] | None, way: str, reason: str
) -> None:
    route = LinkRoute(kind, direct="10.0.0.7:4", why="bob has none")
    meter = LinkMeter("w", route=lambda: route)
    meter.take(line({**SNAPSHOT, "pair": pair and {"up": True, **pair}}))
    assert (meter.link.way, meter.link.way_reason) == (way, reason)


def test_a_link_that_is_down_tells_what_its_tunnel_says() -> None:
    said = ["The sshd of bob forbids forwarding"]
    meter = LinkMeter(
        "w", route=lambda: LinkRoute(TransportKind.TUNNEL, trouble=said[0])
    )
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
    meter = LinkMeter("w")
    meter.take(passes(one_pass(head_ms=30_000), *(one_pass() for _ in range(5))))
    assert meter.link.head_ms_per_token == 1.0


def test_a_snapshot_shows_few_passes_a_trace_all() -> None:
    meter = LinkMeter("w")
    meter.take(passes(*(one_pass() for _ in range(100))))
    assert len(meter.link.passes) == PASSES_SHOWN
    assert len(meter.passes) == 100


JUNK = [b"", b"{", b"[]", b'{"type": 5}', b"\xff", b"[" * 100_000]


@pytest.mark.parametrize("raw", JUNK, ids=range(len(JUNK)))
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


def test_a_trace_tells_a_pause_from_the_head() -> None:
    usual = [Pass(at_ms=50.0 * at, head_ms=10.0, compute_ms=40.0) for at in range(5)]
    after = Pass(at_ms=9_000.0, head_ms=8_000.0, compute_ms=40.0, generated=False)
    events = chrome_trace({"w": (*usual, after)})["traceEvents"]
    names = [one["name"] for one in events if one["ph"] == "X"][::5]
    assert names == [*["head"] * 5, "pause"]


def snapshot(at_s: float, up: int, down: int = 0) -> Line:
    return Line(type="snapshot", at_ns=int(at_s * 1e9), bytes_up=up, bytes_down=down)


def rates(meter: LinkMeter) -> tuple[float | None, float | None]:
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
    seen = Throughput()
    seen.take(10.0, 0, 0)
    assert seen.take(40.0, 1_000, 500) == (4_000, 2_000)


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
        await asyncio.wait_for(seen.wait(), 60)
        asked.set()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    assert told == [None, 2_000, 0]


BUSY = replace(busy_scene(0), links=())
UNMETERED = replace(BUSY.plan, relay=False) if BUSY.plan else None
HEAD_ALONE = Plan(
    model="/m.gguf",
    split=Split(n_layer=12, shares=(Share(device="local/CPU", layers=13),)),
)


@pytest.mark.parametrize(
    ("snapshot", "why"),
    [
        (busy_scene(0), ""),
        (ClusterSnapshot(), "There is no link: nothing runs"),
        (
            replace(busy_scene(0), state=ClusterState.FAILED),
            "There is no link: nothing runs",
        ),
        (
            replace(BUSY, plan=HEAD_ALONE),
            "There is no link: local, the head, runs alone, without workers",
        ),
        (
            replace(BUSY, plan=UNMETERED),
            "The links are not measured: the plan was launched with --relay off",
        ),
        (
            replace(BUSY, state=ClusterState.LOADING),
            "The links are not there yet: the cluster is loading",
        ),
    ],
)
def test_the_reason_is_the_true_one(snapshot: ClusterSnapshot, why: str) -> None:
    assert why_no_link(snapshot) == why


@pytest.fixture
def head_alone(monkeypatch: pytest.MonkeyPatch) -> ClusterSnapshot:
    """A cluster without workers, as commands find it."""
    snapshot = replace(BUSY, plan=HEAD_ALONE)

    async def current(_cluster: str) -> ClusterSnapshot:
        return snapshot

    monkeypatch.setattr(links_module, "current_snapshot", current)
    return snapshot


def test_the_lab_of_a_head_alone_has_no_links(head_alone: ClusterSnapshot) -> None:
    shown = CliRunner().invoke(links, ["list"])
    assert shown.output == f"{why_no_link(head_alone)}.\n"


def test_a_trace_of_a_head_alone_is_refused_with_the_reason(
    head_alone: ClusterSnapshot,
) -> None:
    error = CliRunner().invoke(trace, []).exception
    assert isinstance(error, DllmError)
    assert str(error) == why_no_link(head_alone)


async def test_controller_refuses_lab_with_reason(head_alone: ClusterSnapshot) -> None:
    store = SnapshotStore(Config)
    store.snapshot = head_alone
    with pytest.raises(UsageError) as refused:
        await Links(store, Transports(lambda: None), NO_RECORDER).set_lab(None, None)
    assert str(refused.value).startswith(why_no_link(head_alone))


def test_endpoints() -> None:
    assert path_of(unix_endpoint("/run/a b.sock")) == Path("/run/a b.sock")
    assert path_of(tcp_endpoint(80)) is None
    assert port_of(tcp_endpoint(4711)) == 4711
    assert port_of("[::1]:4711") == 4711
    assert port_of("unix:/x:80") == 0


async def test_plain_ways() -> None:
    local, direct = local_transport(7), direct_transport("10.0.0.7:50052")
    assert (local.kind, local.endpoint) == (TransportKind.LOCAL, "127.0.0.1:7")
    assert (direct.kind, direct.endpoint) == (TransportKind.DIRECT, "10.0.0.7:50052")
    assert (local.rtt_ms, direct.rtt_ms) == (0.0, None)
    await local.close()
    assert local.open


@pytest.mark.parametrize("length", [1, 60, 95])
def test_a_worker_s_socket_always_fits(length: int) -> None:
    directory = Path("/" + "d" * (SOCKET_PATH_BYTES_MAX - 17))
    paths = Paths(
        config_dir=directory,
        data_dir=directory,
        state_dir=directory,
        cache_dir=directory,
        runtime_dir=Path("/run") if length == 60 else directory,
    )
    sockets = [paths.worker_socket("default", c * length) for c in "ab"]
    assert max(len(str(socket)) for socket in sockets) <= SOCKET_PATH_BYTES_MAX
    assert sockets[0] != sockets[1]
    assert sockets == [paths.worker_socket("default", c * length) for c in "ab"]


HELLO = b'{"type":"hello","format":1}\n'
PLACEMENT = (
    b'{"type":"placement","worker":"w","complete":true,"devices":[{"device":1,'
    b'"layers":[[0,5,9,714240]],"embedding":[1,8],"output":[2,787200]}]}\n'
)


@asynccontextmanager
async def answering(path: Path, *answers: bytes) -> AsyncIterator[Path]:
    """One that says something else to every new reader, and its last word at last."""
    left = list(answers)

    async def tell(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(left.pop(0) if len(left) > 1 else left[0])
        await writer.drain()
        writer.close()

    async with await asyncio.start_unix_server(tell, path):
        yield path


async def test_it_is_among_the_first_lines(tmp_path: Path) -> None:
    async with answering(tmp_path / "s", HELLO + PLACEMENT) as path:
        assert await worker_weights(path) == WorkerWeights(
            complete=True,
            devices=(
                DeviceWeights(
                    device=1,
                    layers=(LayersHeld(0, 5, 9, 714240),),
                    embedding=Held(1, 8),
                    output=Held(2, 787200),
                ),
            ),
        )


async def test_a_connection_lost_on_the_way_is_made_again(tmp_path: Path) -> None:
    async with answering(tmp_path / "s", b"", HELLO + PLACEMENT) as path:
        assert await worker_weights(path)


@pytest.mark.parametrize("answer", [b"", b"junk\n", HELLO * 9, PLACEMENT[:40]])
async def test_a_relay_that_does_not_say(tmp_path: Path, answer: bytes) -> None:
    async with answering(tmp_path / "s", answer) as path:
        assert await worker_weights(path) is None
    assert await worker_weights(tmp_path / "none") is None


async def test_a_silent_relay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "ANSWER_S", 0.05)
    silent = asyncio.Event()

    async def tell(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await silent.wait()
        writer.close()

    async with await asyncio.start_unix_server(tell, tmp_path / "s"):
        assert await worker_weights(tmp_path / "s") is None
        silent.set()


async def test_a_lab_is_on_once_a_relay_that_just_began_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Lab(rate_mb_s=20)
    told = msgspec.json.encode(Line(type="snapshot", lab=slow)) + b"\n"
    putting = asyncio.create_task(put_lab("mini", tmp_path / "s", slow))
    await asyncio.sleep(0.05)
    assert not putting.done(), "nothing listens there yet"
    async with answering(tmp_path / "s", HELLO, told):
        await putting
    monkeypatch.setattr(relay, "ANSWER_S", 0.05)
    with pytest.raises(MachineError, match="The relay of mini took no lab"):
        await put_lab("mini", tmp_path / "none", slow)
