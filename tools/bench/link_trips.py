"""The part of ``bench-link`` about single tokens: what a pair adds to a round trip."""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from typing import TYPE_CHECKING

from tests.native.pairing import AS_ASKED, key_file, paired
from tests.native.stock import free_port
from tools.bench.bench_relay import block_medians, load, start

if TYPE_CHECKING:
    from tools.bench.link_ways import Site

BYTES = 8192
BLOCKS = 20
TRIPS = 20
"""Of a block: over one connection, one every 20 ms."""


def _reached(stack: ExitStack, site: Site) -> dict[str, int]:
    """The port of a worker that computes nothing, and those of pairs before it."""
    worker = free_port()
    start(stack, [str(site.build / "bench/rpc_load"), "worker", str(worker)], worker)
    ports = {"direct": worker}
    ways: dict[str, tuple[str, ...]] = {
        "plain": (),
        "TLS": key_file(site.work / "trips.key"),
    }
    for way, key in ways.items():
        stats = site.work / f"trips-{way}.sock"
        # That worker answers no questions of ours.
        ends = paired(site.relay, worker, stats, *key, near_options=AS_ASKED)
        near, _ = stack.enter_context(ends)
        with near.stats() as told:
            told.until(lambda line: bool((line.get("pair") or {}).get("up")))
        ports[way] = near.port
    return ports


def compare_trips(site: Site, rounds: int) -> None:
    """Cold trips over loopback by every way, in turn; new processes each round."""
    for _ in range(rounds):
        with ExitStack() as stack:
            ports = _reached(stack, site)
            taken = load(site.build, "cold", BYTES, BLOCKS, TRIPS, ports=ports)
        medians = {way: block_medians(each, TRIPS) for way, each in taken.items()}
        direct = medians.pop("direct")
        base = statistics.median(direct) / 1e6
        print(f"cold trip of {BYTES} bytes: {base:.3f} ms direct")
        for way, of_way in medians.items():
            added = [ours - its for ours, its in zip(of_way, direct, strict=True)]
            print(
                f"  a pair adds {statistics.median(added) / 1e6:.3f} ms {way}"
                f" (median of {len(added)} runs in turn)",
                flush=True,
            )
