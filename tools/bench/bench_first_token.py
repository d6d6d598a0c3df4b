"""Predicted beside measured time to the first token, by the length of the prompt.

Run it with ``make bench-first-token MODEL=…``. Prompts of two lengths calibrate, with
one split of two workers of one thread each. Then prompts of other lengths are read with
that split and with another. A stock cluster tells the pace of the machine, as for
``make bench-predict``. It prints a Markdown table, and the errors below.
"""

from __future__ import annotations

import argparse
import asyncio
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

from backends.split.cost import Workload, forecast
from backends.state import ChatRequest, ChatTimings
from backends.units import MS_PER_S, format_percent, format_seconds
from tools.bench.bench_predict import Pace, Trial, at_pace, counts_text, own_folders
from tui.cli.chats import asked
from tui.cli.output import unseen

CALIBRATION = (200, 600)
"""Words of a prompt; each is a token, and the chat's template adds some."""
PROMPTS = (100, 400, 500, 900, 1500)
SPLITS = ((8, 12, 11), (0, 20, 11))
CTX = 4096
TOKENS = 24
SETTLE_S = 3.0


class Row(NamedTuple):
    """A prompt that was read."""

    split: tuple[int, ...]
    tokens: int
    pace: float
    predicted_s: float
    low_s: float
    high_s: float
    measured_s: float

    @property
    def error(self) -> float:
        return abs(self.predicted_s / self.measured_s - 1)


def main() -> None:
    """Measure all, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    model = parser.parse_args().model.absolute()
    with own_folders():
        rows = asyncio.run(_rows(model))
    errors = sorted(row.error for row in rows)
    inside = sum(row.low_s <= row.measured_s <= row.high_s for row in rows)
    middle, most = format_percent(median(errors)), format_percent(errors[-1])
    print(
        f"\nMedian error {middle}, {most} at most; {inside} of {len(rows)} in the band"
    )


async def _rows(model: Path) -> list[Row]:
    with ExitStack() as stack:
        async with Trial((1, 1), Pace(stack, model), ctx_size=CTX) as trial:
            info = await trial.client.inspect(str(model))
            await trial.launched(info, SPLITS[0])
            usual = []
            for words in CALIBRATION * 2:
                usual.append(await trial.stock_ms())
                await _read(trial, words)
            usual_ms = median(usual)
            titles = "prompt, tokens | pace | predicted | band | measured | error"
            print(f"| layers | {titles} |\n|---|--:|--:|--:|---|--:|--:|", flush=True)
            rows = []
            for split in SPLITS:
                plan = await trial.launched(info, split)
                known = await trial.client.speeds(plan)
                for words in PROMPTS:
                    stock_ms = await trial.stock_ms()
                    timings = await _read(trial, words)
                    stock_ms = (stock_ms + await trial.stock_ms()) / 2
                    pace = stock_ms / usual_ms
                    load = Workload(prompt_tokens=timings.prompt_tokens)
                    told = forecast(info, plan, at_pace(known, pace), load)
                    row = Row(
                        split,
                        timings.prompt_tokens,
                        pace,
                        told.first_token_s,
                        told.first_token_low_s,
                        told.first_token_high_s,
                        timings.prompt_ms / MS_PER_S,
                    )
                    rows.append(row)
                    print(_line(row), flush=True)
            return rows


async def _read(trial: Trial, words: int) -> ChatTimings:
    # It begins as no other does, so that no prompt is known already.
    request = ChatRequest.greedy(f"{words}" + " word" * words, TOKENS)
    answer = await asked(trial.client, request, unseen)
    await asyncio.sleep(SETTLE_S)
    return answer.timings


def _line(row: Row) -> str:
    predicted, low, high, measured = map(
        format_seconds, (row.predicted_s, row.low_s, row.high_s, row.measured_s)
    )
    return (
        f"| {counts_text(row.split)} | {row.tokens} | {row.pace:.2f} | ~{predicted} "
        f"| {low} to {high} | {measured} | {format_percent(row.error)} |"
    )


if __name__ == "__main__":
    main()
