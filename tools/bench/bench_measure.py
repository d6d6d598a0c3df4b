"""Compare what ``dllm-tui peers measure`` teaches with runs of another model.

Run it with ``make bench-measure MODEL=…``. Two workers of one thread run on this
machine, behind relays. One holds the test model of ``peers measure`` and answers as it
asks. Then MODEL runs split over both, on simulated networks. Each speed is predicted
three times: before anything ran, after the test model, and after the runs themselves.

A stock cluster answers between all answers, as for ``make bench-predict``. So the
predictions are told at the pace of the machine then.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from backends.models.synthetic import synthetic_model
from backends.state import Lab
from backends.units import format_lab, format_percent
from tools.bench.bench_predict import (
    SETTLE_S,
    Asked,
    Pace,
    Trial,
    at_pace,
    counts_of,
    own_folders,
    predicted,
    rate_text,
)
from tui.cli.measure import OF_CPU

if TYPE_CHECKING:
    from backends.state import ClusterSpeeds, ModelInfo, Plan

THREADS = 1, 1
LABS = None, Lab(latency_ms=10)
TESTS = 3
"""Looks at the test model."""


class Measured(NamedTuple):
    lab: Lab | None
    asked: Asked
    pace: float


async def measured(trial: Trial, model: ModelInfo, test_model: Path) -> None:
    counts = counts_of(model, len(THREADS), 0.0, (1, 1))
    plan = await trial.planned(model, counts)
    known = [await trial.client.speeds(plan)]
    other = await trial.client.inspect(str(test_model))
    await trial.launched(other, [0, other.n_layer + 1, 0])
    await trial.taught(TESTS)
    known.append(await trial.client.speeds(plan))
    await trial.launched(model, counts)
    runs = []
    for lab in LABS:
        await trial.client.set_lab(None, lab)
        asked = await trial.asked()
        await asyncio.sleep(SETTLE_S)
        runs.append(Measured(lab, asked, trial.pace(asked)))
    known.append(await trial.client.speeds(plan))
    print("| network | pace | before | test model known | runs known | measured |")
    print("|---|--:|--:|--:|--:|--:|")
    for run in runs:
        # Only of the test model's time a later pace is another one.
        before, tested, after = known
        there = before, at_pace(tested, run.pace), after
        told = " | ".join(_told(model, plan, one, run) for one in there)
        network = format_lab(run.lab or Lab()) or "-"
        speed = rate_text(run.asked.tok_per_s)
        print(f"| {network} | {run.pace:.2f} | {told} | {speed} |")


def _told(model: ModelInfo, plan: Plan, known: ClusterSpeeds, run: Measured) -> str:
    labs = {worker.name: run.lab for worker in plan.workers}
    told = predicted(model, plan, known, labs, run.asked.depth)
    error = format_percent(abs(told.tok_per_s / run.asked.tok_per_s - 1))
    low, high = map(rate_text, (told.low, told.high))
    return f"~{rate_text(told.tok_per_s)} ({low} to {high}), {error} off"


async def _main(model: Path) -> None:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        test_model = Path(folder) / f"{OF_CPU.name}.gguf"
        synthetic_model(test_model, OF_CPU)
        async with Trial(THREADS, Pace(stack, model)) as trial:
            info = await trial.client.inspect(str(model))
            await measured(trial, info, test_model)


def main() -> None:
    """Measure all, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    options = parser.parse_args()
    with own_folders():
        asyncio.run(_main(options.model.absolute()))


if __name__ == "__main__":
    main()
