"""The predicted best split beside every split of two workers, measured.

Run it with ``make bench-best MODEL=…``. The workers have one and two threads. Two runs
calibrate. Then each split runs without delay, and with 10 ms one way to a worker. It
prints a Markdown table of all, with the pace of the machine (see ``bench_predict``).
Below are two comparisons of the predicted best split: with the measured best, and with
the split by free memory, which llama.cpp takes.
``STEP=3`` measures every third split.
"""

from __future__ import annotations

import argparse
import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from backends.state import Lab
from backends.units import format_factor, format_percent
from tools.bench.bench_predict import (
    Pace,
    Trial,
    counts_text,
    own_folders,
    predicted,
    rate_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


FAR = Lab(latency_ms=10)
NETWORKS = {
    "no delay": "",
    "worker1 10 ms away": "worker1",
    "worker2 10 ms away": "worker2",
}
"""The worker that is far away in each."""
THREADS = 1, 2


class Row(NamedTuple):
    """A split of both workers on one network."""

    network: str
    counts: tuple[int, int]
    predicted: float
    measured: float
    pace: float


def main() -> None:
    """Measure all, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument(
        "--step", type=int, default=1, help="measure every STEPth split"
    )
    options = parser.parse_args()
    with own_folders():
        rows, usual = asyncio.run(
            _measured(str(options.model.absolute()), options.step)
        )
    print("\n".join(_verdicts(rows, usual)))


async def _measured(path: str, step: int) -> tuple[list[Row], tuple[int, int]]:
    with ExitStack() as stack:
        pace = Pace(stack, Path(path))
        async with Trial(THREADS, pace) as trial:
            return await _all(trial, path, step)


async def _all(trial: Trial, path: str, step: int) -> tuple[list[Row], tuple[int, int]]:
    """A row for each split and network, and the split by free memory."""
    model = await trial.client.inspect(path)
    known = await trial.client.speeds(await trial.calibrated(model))
    whole = model.n_layer + 1
    usual = (whole - whole // 2, whole // 2)
    print("| network | layers | predicted | measured | pace |")
    print("|---|---|--:|--:|--:|", flush=True)
    rows = []
    for near in sorted({*range(0, whole + 1, step), whole, usual[0]}):
        counts = near, whole - near
        plan = await trial.launched(model, (0, *counts))
        # A worker without layers has no link.
        links = {link.worker for link in (await trial.client.snapshot()).links}
        for network, far in NETWORKS.items():
            for worker in links:
                lab = FAR if worker == far else None
                await trial.client.set_lab(worker, lab)
            asked = await trial.asked()
            told = predicted(model, plan, known, {far: FAR}, asked.depth)
            pace = trial.pace(asked)
            row = Row(network, counts, told.tok_per_s, asked.tok_per_s, pace)
            rows.append(row)
            print(_line(row), flush=True)
    return rows, usual


def _line(row: Row) -> str:
    rates = f"~{rate_text(row.predicted)} | {rate_text(row.measured)}"
    rates += f" | {row.pace:.2f}"
    return f"| {row.network} | {counts_text(row.counts)} | {rates} |"


def _verdicts(rows: Sequence[Row], usual: tuple[int, int]) -> Iterator[str]:
    """The comparisons on each network."""
    for network in NETWORKS:
        here = [row for row in rows if row.network == network]
        best = max(here, key=lambda row: row.measured)
        chosen = max(here, key=lambda row: row.predicted)
        by_memory = next(row for row in here if row.counts == usual)
        behind = format_percent(1 - chosen.measured / best.measured)
        gain = format_factor(chosen.measured / by_memory.measured)
        yield (
            f"\n{network}: predicted best {_told(chosen)}; measured best "
            f"{_told(best)}: {behind} behind. By free memory {_told(by_memory)}: the "
            f"predicted best is {gain} as fast."
        )


def _told(row: Row) -> str:
    return f"{counts_text(row.counts)}, {rate_text(row.measured)}"


if __name__ == "__main__":
    main()
