"""The ways of data between machines: tried directly, timed, and told why not."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Iterable, Sequence
from itertools import permutations
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from backends.errors import DllmError
from backends.state import NOT_JSON, Peer, Transport, Value
from backends.state.health import MeasuredWay
from backends.tasks import end_tasks

if TYPE_CHECKING:
    from backends.machines.machine import Machine

LOOPBACK, DIRECT, TUNNEL, BARE = "loopback", "direct", "tunnel", "bare"
PROBE = "probe"
TOKEN_VARIABLE = "DLLM_PROBE_TOKEN"
TOKEN_BYTES = 32
RATE_MS = 300
CONNECT_S = 8.0
"""A probe gives up long before; it is killed then."""
LISTEN_S = 4.0
"""After so long nobody comes any more."""


class _Told(Value, frozen=True, kw_only=True):
    rtt_us: int
    bytes_per_s: int | None = None


async def measure_paths(
    machines: Sequence[Machine], peers: Iterable[Peer], serves: Callable[[str], bool]
) -> tuple[MeasuredWay, ...]:
    """The way of every ordered pair of machines, measured in rounds of apart pairs."""
    rtts = {peer.name: peer.rtt_ms for peer in peers}
    found: list[MeasuredWay] = []
    for pairs in rounds(len(machines)):
        these = [(machines[head], machines[worker]) for head, worker in pairs]
        found += await asyncio.gather(
            *(
                measure_path(
                    head,
                    worker,
                    rtts,
                    rate=not (serves(head.name) or serves(worker.name)),
                )
                for head, worker in these
            )
        )
    return tuple(sorted(found, key=lambda way: (way.head, way.worker)))


def rounds(count: int) -> list[list[tuple[int, int]]]:
    """Every ordered pair of ``count`` once; no one is twice in a round."""
    left = list(permutations(range(count), 2))
    found = []
    while left:
        busy: set[int] = set()
        now = []
        for pair in left:
            if busy.isdisjoint(pair):
                busy.update(pair)
                now.append(pair)
        left = [pair for pair in left if pair not in now]
        found.append(now)
    return found


async def measure_path(
    head: Machine, worker: Machine, rtts: dict[str, float | None], *, rate: bool
) -> MeasuredWay:
    """Try the direct way of a pair; else it is the tunnel, with the reason."""
    way = MeasuredWay(head=head.name, worker=worker.name, way=TUNNEL)
    way = replace(way, rtt_ms=_through_us(head, worker, rtts))
    try:
        place = await worker.direct_address()
        if not place.address:
            return replace(way, why=place.why)
        port = place.port or await worker.agent.free_port()
        return await _tried(way, head, worker, place.endpoint(port), rate=rate)
    except DllmError as error:
        return replace(way, why=error.what)


async def _tried(
    way: MeasuredWay, head: Machine, worker: Machine, address: str, *, rate: bool
) -> MeasuredWay:
    env = {TOKEN_VARIABLE: secrets.token_hex(TOKEN_BYTES)}
    listening = asyncio.ensure_future(
        worker.agent.run(
            [worker.relay_program(), PROBE, "--listen", address],
            env=env,
            timeout_s=LISTEN_S,
        )
    )
    rate_ms = str(RATE_MS if rate else 0)
    try:
        done = await head.agent.run(
            [head.relay_program(), PROBE, "--connect", address, "--rate-ms", rate_ms],
            env=env,
            timeout_s=CONNECT_S,
        )
        heard = await listening
    finally:
        await end_tasks(listening)
    way = replace(way, address=address)
    if done.code == 0:
        with contextlib.suppress(*NOT_JSON):
            told = msgspec.json.decode(done.stdout, type=_Told)
            return replace(
                way,
                way=DIRECT,
                rtt_ms=told.rtt_us / 1000,
                rate_mb_s=told.bytes_per_s / 1e6 if told.bytes_per_s else None,
                why="" if rate else "no rate: a cluster serves there",
            )
    if heard.code != 0 and "cannot listen" in heard.stderr:
        return replace(way, why=_said(heard.stderr))
    return replace(way, blocked=True, why=_said(done.stderr) or "it did not answer")


def _said(stderr: str) -> str:
    last = stderr.strip().rpartition("\n")[2]
    return last.removeprefix("dllm-relay: ").replace("the worker at ", "")


def _through_us(
    head: Machine, worker: Machine, rtts: dict[str, float | None]
) -> float | None:
    """Round trip of the tunnel: between two peers the bytes pass through us."""
    parts = [
        rtts.get(machine.name)
        for machine in (head, worker)
        if machine.transport is not Transport.LOCAL
    ]
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None
