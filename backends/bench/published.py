"""The profile ``seeds``: published figures of llama.cpp RPC, and ours beside them.

The model was GLM-4.7-Flash Q4_K_M. Speeds are those of one Apple M4 Max, whose workers
stood behind a proxy that sleeps. The load went over Wi-Fi to a second machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from backends.bench.matrix import HOME, STOCK, WEIGHTS, Case
from backends.bench.results import BenchRun, CaseResult, interval_text, launch_text
from backends.units import MS_PER_S, format_bytes, format_difference, three_figures

LATENCIES_MS = (0.0, 5.0, 10.0, 20.0, 30.0)
WORKERS = (2, 3, 4)
TOK_PER_S = {
    (2, 0): 60.2,
    (2, 5): 30.1,
    (2, 10): 21.4,
    (2, 20): 12.6,
    (2, 30): 9.4,
    (3, 0): 57.1,
    (3, 5): 21.8,
    (3, 10): 15.7,
    (3, 20): 8.0,
    (4, 0): 52.8,
    (4, 5): 18.4,
}
"""Published speeds, by workers beside the head and milliseconds."""
LOADS = {STOCK: ("16.88 GB", "more than 14 m"), HOME: ("0 B", "9 s")}
"""Published bytes over the network, and time to load."""
LOAD_MB_S = 20.0
"""16.88 GB in 14 minutes."""


def seeds_cases(n_layer: int) -> tuple[Case, ...]:
    """Their latencies with equal shares, and each way of weights to one worker."""
    latencies = (
        Case(workers=workers, split=_equal_split(n_layer + 1, workers), latency_ms=ms)
        for workers in WORKERS
        for ms in LATENCIES_MS
    )
    all_away = f"worker1/CPU={n_layer + 1}"
    loads = (
        Case(workers=1, split=all_away, weights=way, rate_mb_s=LOAD_MB_S)
        for way in WEIGHTS
    )
    return (*latencies, *loads)


def _equal_split(layers: int, workers: int) -> str:
    devices = ["local/CPU", *(f"worker{n}/CPU" for n in range(1, workers + 1))]
    each, rest = divmod(layers, len(devices))
    return ",".join(
        f"{device}={each + (at < rest)}" for at, device in enumerate(devices)
    )


def _by_rule(base: float, workers: int, latency_ms: float) -> float:
    # Their rule of thumb: a token takes one latency more for each worker.
    return _slowed(base, workers * latency_ms)


def _slowed(tok_per_s: float, added_ms: float) -> float:
    return MS_PER_S / (MS_PER_S / tok_per_s + added_ms)


def _with_error(predicted: float, measured: float, sign: str = "") -> str:
    off = format_difference(predicted / measured - 1)
    return f"{sign}{three_figures(predicted)} ({off})"


def _latency_results(run: BenchRun) -> Iterator[tuple[CaseResult, int, float, float]]:
    measured = [r for r in run.results if r.rates and not r.case.weights]
    bases = {
        result.case.workers: median(result.rates)
        for result in measured
        if not result.case.latency_ms
    }
    for result in measured:
        workers = result.case.workers
        if workers is not None and workers in bases:
            yield result, workers, median(result.rates), bases[workers]


def latency_table(run: BenchRun) -> list[list[str]]:
    """Measured speeds, beside their rule of thumb and our prediction."""
    rows = [["nodes", "latency", "tok/s", "rule of thumb", "predicted"]]
    for result, workers, tok_per_s, base in _latency_results(run):
        latency_ms = result.case.latency_ms
        told = result.predicted_tok_per_s
        rows.append(
            [
                str(workers + 1),
                f"{latency_ms:g} ms",
                interval_text(result),
                _with_error(_by_rule(base, workers, latency_ms), tok_per_s),
                _with_error(told, tok_per_s, "~") if told else "",
            ]
        )
    return rows


def published_table(run: BenchRun) -> list[list[str]]:
    """Published speeds, beside three ways to get them from that without latency.

    Their proxy sleeps before each command that computes, which fits 2 W - 1 sleeps a
    token for W workers. Each of our trips has two delays. So a token has one delay
    more here.
    """
    rows = [["nodes", "latency", "theirs", "rule of thumb", "by trips", "by our links"]]
    for result, workers, tok_per_s, our_base in _latency_results(run):
        latency_ms = result.case.latency_ms
        theirs = TOK_PER_S.get((workers, round(latency_ms)))
        trips = result.trips_per_token
        if theirs is None or not trips:
            continue
        base, delays = TOK_PER_S[workers, 0], 2 * trips
        added_ms = MS_PER_S / tok_per_s - MS_PER_S / our_base
        rows.append(
            [
                str(workers + 1),
                f"{latency_ms:g} ms",
                three_figures(theirs),
                _with_error(_by_rule(base, workers, latency_ms), theirs),
                _with_error(_slowed(base, (delays - 1) * latency_ms), theirs),
                _with_error(_slowed(base, added_ms * (delays - 1) / delays), theirs),
            ]
        )
    return rows


def loads_table(run: BenchRun) -> list[list[str]]:
    """Bytes and seconds until a cluster serves, for each way of weights."""
    rows = [["weights", "theirs crossed", "load", "ours crossed", "of weights", "load"]]
    for result in run.results:
        if not result.samples or not result.case.weights:
            continue
        sample = result.samples[-1]
        crossed, sent = sample.launch_bytes, sample.weight_bytes_sent
        rows.append(
            [
                result.case.weights,
                *LOADS.get(result.case.weights, ("", "")),
                "" if crossed is None else format_bytes(crossed),
                "" if sent is None else format_bytes(sent),
                launch_text(result),
            ]
        )
    return rows


def seeds_tables(run: BenchRun) -> list[list[list[str]]]:
    tables = latency_table(run), published_table(run), loads_table(run)
    return [rows for rows in tables if len(rows) > 1]


def seeds_notes(run: BenchRun) -> str:
    """The meaning of the columns, and why theirs and ours differ."""
    size = format_bytes(run.conditions.model_bytes)
    return (
        "theirs: published figures of GLM-4.7-Flash Q4_K_M, 17 GB, the speeds on one "
        "M4 Max behind a latency proxy, the loads over Wi-Fi. rule of thumb: one "
        "latency a worker. predicted: by our cost model, before the last round. by "
        "trips: their time without latency, and the delays of the trips that our "
        "relays counted. by our links: the time that latency added here, in place of "
        "these. Their proxy sleeps 2 W - 1 times a token for W workers, and our trips "
        "have 2 W delays; both are scaled by that ratio. Loads differ by the model's "
        f"size ({size} here) and by the network: ours is a simulated "
        f"{LOAD_MB_S:g} MB/s, the rate at which theirs came. rpc-server -c keeps only "
        "tensors above 10 MiB."
    )
