"""The part of ``bench-link`` about bytes: what tokens and prompts cost on the wire."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.kit.models import N_VOCAB, write_llama
from tests.native.pairing import key_file, paired
from tests.native.stock import Cluster, engine, server, start_worker
from tools.bench.link_ways import WORKERS, Site, model_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.native.relaying import Relay

WIDTH = 512
HIDDEN_BYTES = 4 * WIDTH
"""The state that a token has between two layers."""
DEPTHS = (1024, 7680)
TOKENS = 64
# Else the cache of one prompt is fetched when the next one comes.
OPTIONS = ("-c", "8192", "--cache-ram", "0")
BATCH = 512
PINGS = 3
OF_TOKEN = "at most 1.05 times, and 256 bytes"
OF_BATCH = "at most 1.03 times"


class Bytes(NamedTuple):
    """Both ways together, of one worker."""

    stock: float
    """As `llama-server` and worker say it."""
    wire: float
    """Between the relays, TLS records included."""

    def beyond(self, other: Bytes, parts: int) -> Bytes:
        return Bytes(*((a - b) / parts for a, b in zip(self, other, strict=True)))


def _write(file: Path) -> None:
    write_llama(file, n_layer=4, n_embd=WIDTH, n_ff=WIDTH, n_ctx=8192)


def _more_than(wire_bytes_up: int) -> Callable[[dict[str, Any]], bool]:
    return lambda line: bool(
        line.get("pair") and line["pair"]["wire_bytes_up"] > wire_bytes_up
    )


def _counted(relay: Relay) -> Bytes:
    with relay.stats() as stats:
        line = stats.until(_more_than(0))
        # What has crossed is told now and then: let some pings pass.
        for _ in range(PINGS):
            line = stats.until(_more_than(line["pair"]["wire_bytes_up"]))
    stock, wire = (
        sum(counts[f"{what}bytes_{way}"] for way in ("up", "down"))
        for what, counts in (("", line), ("wire_", line["pair"]))
    )
    return Bytes(stock, wire)


def _cost(cluster: Cluster, relays: list[Relay], depth: int, count: int) -> list[Bytes]:
    prompt = [1, *(10 + i % 400 for i in range(depth - 1))]
    before = [_counted(relay) for relay in relays]
    cluster.complete(prompt, count)
    return [_counted(r).beyond(b, 1) for r, b in zip(relays, before, strict=True)]


def _show(what: str, found: Bytes, states: int, allowed: str) -> None:
    print(
        f"{what}: stock {found.stock:,.0f} bytes, pair {found.wire:,.0f},"
        f" {found.wire / states:.3f} times the {states:,} of states ({allowed})",
        flush=True,
    )


def compare_bytes(site: Site, rounds: int) -> None:
    """Counted, so that one round tells all."""
    model = model_file(f"link-4x{WIDTH}x{WIDTH}", _write)
    first, last = DEPTHS
    with ExitStack() as stack:
        relays = []
        for name in WORKERS:
            port = start_worker(stack, engine(site.version), site.work / f"{name}.log")
            key = key_file(site.work / f"{name}-bytes.key")
            stats = site.work / f"{name}-bytes.sock"
            ends = paired(site.relay, port, stats, *key)
            relays.append(stack.enter_context(ends)[0])
        ports = [relay.port for relay in relays]
        log = site.work / "server.log"
        url = stack.enter_context(server(site.version, model, ports, log, *OPTIONS))
        _cost(Cluster(url), relays, last, 1 + TOKENS)
        prompts = {depth: _cost(Cluster(url), relays, depth, 1) for depth in DEPTHS}
        longer = {
            depth: _cost(Cluster(url), relays, depth, 1 + TOKENS) for depth in DEPTHS
        }
    batches = (last - first) // BATCH
    # What the last worker gives back is no state, but logits, of a prompt's end alone.
    of_token = {"ada": 2 * HIDDEN_BYTES, "bob": HIDDEN_BYTES + 4 * N_VOCAB}
    of_batch = {"ada": 2 * HIDDEN_BYTES * BATCH, "bob": HIDDEN_BYTES * BATCH}
    for at, name in enumerate(WORKERS):
        for depth in DEPTHS:
            token = longer[depth][at].beyond(prompts[depth][at], TOKENS)
            _show(f"{name}, a token at {depth}", token, of_token[name], OF_TOKEN)
        batch = prompts[last][at].beyond(prompts[first][at], batches)
        _show(f"{name}, {BATCH} of a prompt", batch, of_batch[name], OF_BATCH)
