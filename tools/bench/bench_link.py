"""Loading and reading over a network: stock, and by pairs of relays that have the file.

Run it with ``make bench-link`` (root). Two workers in network namespaces are joined
with this machine by veth pairs. Their counters tell what crosses, headers included.
Each way loads the same model (1.1 GB, written once below the user's cache) and must
say the same tokens:

- loopback: stock workers on this machine
- stock: stock workers over the network; nobody should let one listen there
- pair: links with TLS, with the weights from the workers' own files.

The last two then go through a simulated network of 5 ms and 30 MB/s. A second model
with a context of 8,192 shows how a long prompt fares there. It is so small that what
crosses decides, as it does when the devices are fast. A third model shows the start of
``llama-server`` over four workers with that latency, as it asks and asked ahead. Then
comes what a pair adds to a token's round trip on this machine. The last part is what
crosses for a token and for a prompt. ``--only PART`` runs one of these.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from backends.units import format_bytes
from tests.hosts.network import Network, missing
from tests.kit.models import write_llama
from tests.native.pairing import (
    AS_ASKED,
    all_waited_for,
    paired,
    waited_for,
)
from tests.native.stock import (
    SHORT_PROMPT,
    Cluster,
    engine,
    server,
    start_worker,
)
from tools.bench.link_bytes import compare_bytes
from tools.bench.link_trips import compare_trips
from tools.bench.link_ways import (
    SLOW,
    WAYS,
    WORKERS,
    Site,
    crossed,
    large_model,
    model_file,
    workers,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.native.relaying import Relay

TOKENS = 16
PATIENCE_S = 300.0
CONTEXT = 8192
STARTING = 4
AWAY_MS = 20


@dataclass
class Load:
    way: str
    load_s: float
    up_bytes: int
    """To the workers, from kernel counters, from the start until it serves."""
    down_bytes: int
    home_bytes: int
    sent_bytes: int
    tokens: list[int] = field(default_factory=list)


def long(file: Path) -> None:
    write_llama(file, n_layer=2, n_embd=128, n_ff=128, n_ctx=CONTEXT)


def starting(file: Path) -> None:
    write_llama(file, n_layer=12, n_embd=128, n_ff=256)


def load(site: Site, way: str, model: Path, *, limited: bool) -> Load:
    """Start llama-server, see it serve, and let it say a few tokens."""
    with ExitStack() as stack:
        entered = workers(site, way, model, limited=limited)
        ends, relays = stack.enter_context(entered)
        before = [crossed(machine) for machine in site.machines]
        began = time.perf_counter()
        log = site.work / "server.log"
        url = stack.enter_context(
            server(site.version, model, ends, log, patience_s=PATIENCE_S)
        )
        load_s = time.perf_counter() - began
        after = [crossed(machine) for machine in site.machines]
        tokens = Cluster(url).complete(SHORT_PROMPT, TOKENS)
        home, sent = weights(relays)
    up, down = (
        sum(a[way] - b[way] for a, b in zip(after, before, strict=True))
        for way in (0, 1)
    )
    return Load(way, load_s, up, down, home, sent, tokens)


def weights(relays: list[Relay]) -> tuple[int, int]:
    """Bytes of weights that stayed at home, and that crossed, by the relays' count."""
    home = sent = 0
    for relay in relays:
        with relay.stats() as stats:
            counted = stats.until(lambda line: line["type"] == "snapshot")["pair"]
        if counted:
            home += counted["weight_bytes_home"]
            sent += counted["weight_bytes_sent"]
    return home, sent


def prompt_tokens_per_s(site: Site, way: str, model: Path) -> float:
    """Of a prompt that fills the context, through the lab."""
    body = {
        "prompt": [1, *(10 + i % 400 for i in range(CONTEXT - 16))],
        "n_predict": 1,
        "cache_prompt": False,
    }
    with ExitStack() as stack:
        ends, _ = stack.enter_context(workers(site, way, model, limited=True))
        log = site.work / "server.log"
        options = ("-c", str(CONTEXT))
        url = stack.enter_context(server(site.version, model, ends, log, *options))
        headers = {"Content-Type": "application/json"}
        asked = urllib.request.Request(
            url + "/completion", json.dumps(body).encode(), headers
        )
        with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
            return float(json.load(answer)["timings"]["prompt_per_second"])


def show(found: Load, limited: bool, base: float | None) -> None:
    """One line."""
    ratio = f"{found.load_s / base:6.2f}" if base else "      "
    up, down = format_bytes(found.up_bytes), format_bytes(found.down_bytes)
    print(
        f"{found.way:9} {'5 ms, 30 MB/s' if limited else 'as it is':14}"
        f"{found.load_s:7.2f} s {ratio}{up:>11} up {down:>11} down"
        f"   weights home {format_bytes(found.home_bytes)}"
        f", sent {format_bytes(found.sent_bytes)}",
        flush=True,
    )


def compare_loads(site: Site, rounds: int) -> None:
    """Every way in turn, each time with new processes."""
    model = large_model()
    print(f"{model.stat().st_size:,} bytes, {len(WORKERS)} workers, {site.version}")
    print("way       network          load  /loopback")
    said = set()
    for _ in range(rounds):
        base = None
        for limited, ways in ((False, WAYS), (True, SLOW)):
            for way in ways:
                found = load(site, way, model, limited=limited)
                base = base or found.load_s
                said.add(tuple(found.tokens))
                show(found, limited, base)
    print("every way said the same tokens" if len(said) == 1 else "TOKENS DIFFER")


def compare_prompts(site: Site, rounds: int) -> None:
    """Prompt tokens per second at a context of 8,192, in turn."""
    model = model_file("link-2x128x128", long)
    for _ in range(rounds):
        rates = {way: prompt_tokens_per_s(site, way, model) for way in SLOW}
        print(
            f"prompt of {CONTEXT - 16}: stock {rates['stock']:.0f} tok/s,"
            f" pair {rates['pair']:.0f}, ratio {rates['pair'] / rates['stock']:.2f}",
            flush=True,
        )


def starts_s(
    site: Site, model: Path, latency_ms: int, *options: str
) -> tuple[float, int]:
    with ExitStack() as stack:
        logs = [site.work / f"near{index}.log" for index in range(STARTING)]
        workers = [start_worker(stack, engine(site.version), log) for log in logs]
        relays = [
            _far_away(stack, site, worker, latency_ms, options)
            for worker in enumerate(workers)
        ]
        return _start_s(site, model, [relay.port for relay in relays], relays)


def _far_away(
    stack: ExitStack,
    site: Site,
    worker: tuple[int, int],
    latency_ms: int,
    options: tuple[str, ...],
) -> Relay:
    """A pair before one of the workers, once it is up."""
    index, port = worker
    stats = site.work / f"near{index}.sock"
    ends = paired(site.relay, port, stats, near_options=options)
    relay, _ = stack.enter_context(ends)
    with relay.stats() as told:
        told.send({"lab": {"latency_ms": latency_ms}})
        told.until(lambda line: bool((line.get("pair") or {}).get("up")))
    return relay


def _start_s(
    site: Site, model: Path, ports: list[int], relays: list[Relay]
) -> tuple[float, int]:
    before = [all_waited_for(relay) for relay in relays]
    began = time.perf_counter()
    with server(site.version, model, ports, site.work / "server.log"):
        took_s = time.perf_counter() - began
        waited = [waited_for(*each) for each in zip(relays, before, strict=True)]
    return took_s, sum(sum(each.values()) for each in waited)


def compare_starts(site: Site, rounds: int) -> None:
    """Here and far away, in turn."""
    model = model_file("link-12x128x256", starting)
    for _ in range(rounds):
        for way, options in (("as asked", AS_ASKED), ("asked ahead", ())):
            here_s, _ = starts_s(site, model, 0, *options)
            away_s, questions = starts_s(site, model, AWAY_MS, *options)
            trips = (away_s - here_s) / (2 * AWAY_MS / 1000)
            what = f"start, {STARTING} workers, {way:11}"
            far = f"{away_s:.2f} s at {AWAY_MS} ms each way ({trips:.0f} trips)"
            waited = f"{questions} questions waited"
            print(f"{what}: {here_s:.2f} s here, {far}, {waited}", flush=True)


PARTS: dict[str, Callable[[Site, int], None]] = {
    "loads": compare_loads,
    "prompts": compare_prompts,
    "starts": compare_starts,
    "trips": compare_trips,
    "bytes": compare_bytes,
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path, help="of native/, with bench_programs")
    parser.add_argument("--version", default="8.0.0", help="protocol of the engine")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", choices=PARTS, action="append", help="a part")
    parsed = parser.parse_args()
    if why := missing():
        sys.exit(f"bench-link cannot run: {why}")
    network = Network()
    try:
        with tempfile.TemporaryDirectory() as work:
            site = Site(network, parsed.build.resolve(), parsed.version, Path(work))
            for part in parsed.only or PARTS:
                PARTS[part](site, parsed.rounds)
    finally:
        network.close()


if __name__ == "__main__":
    main()
