"""Predicted beside measured speed, of splits that never ran before.

Run it with ``make bench-predict MODEL=…``. Two runs calibrate. Then other splits run on
simulated networks, each predicted from the two alone. The workers have one and two
threads, so that four cores are needed for figures that say something.

The speed of a machine itself drifts. So a stock cluster of one worker answers between
all answers, and tells the pace: its time now by its time while the two runs calibrated.
The times of all devices are multiplied by it, and the error is told both ways.

It prints a Markdown table. Below are the median and 95th percentile of the error, and
the share of runs within the band. ``QUICK=1`` is a part of it. ``THREADS=1,1`` suits
two cores; it has a figure for each of two to four workers. ``MODEL=large`` is a model
of 22 layers and 1.1 GB, written once.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from contextlib import ExitStack, aclosing, contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple, Self

from msgspec.structs import replace

from backends.client.client import ControllerClient
from backends.engine.llama_client import ServerClient
from backends.errors import DllmError
from backends.split.cost import Workload, forecast, with_labs
from backends.split.layout import make_split
from backends.state import (
    Ask,
    ChatMessage,
    ChatRequest,
    ChatTimings,
    ClusterState,
    Lab,
    Sampling,
    ServerSettings,
)
from backends.units import MS_PER_S, format_lab, format_percent, format_rate
from tests.native.stock import engine, server, start_worker
from tools.bench.bench_decode import tokens_per_s
from tools.bench.link_ways import large_model

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from backends.state import ClusterSpeeds, DeviceSpeed, Forecast, ModelInfo, Plan

RPC_PROTOCOL = "7.0.0"
TOKENS = 64
ROUNDS = 2
SETTLE_S = 3.0
"""The speed is read twice a second; then the run is in the store."""
CALIBRATION = ((0.2, (3, 1)), (0.3, (1, 6)))
"""The head's share of the layers, and the ratio of the first, the last worker to any
other."""
SPLITS = (
    (0.0, (1, 1)),
    (0.5, (1, 1)),
    (0.1, (8, 1)),
    (0.0, (3, 17)),
    (0.6, (1, 0)),
    (0.0, (0, 1)),
)
LABS = (
    None,
    Lab(latency_ms=5, rate_mb_s=1000),
    Lab(latency_ms=10, rate_mb_s=100),
    Lab(latency_ms=30),
    Lab(latency_ms=1, rate_mb_s=10),
)
LARGE = Path("large")
QUICK = 2, 5
"""Splits and labs of a part."""
# Answers of one length, and no prompt kept from an earlier request.
ARGUMENTS = ("--ignore-eos", "--cache-ram", "0")


class Pace:
    """A stock cluster of one worker that tells how fast the machine is now."""

    def __init__(self, stack: ExitStack, model: Path) -> None:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        programs = engine(RPC_PROTOCOL)
        worker = start_worker(stack, programs, logs / "worker.log", "-t", "1")
        with_it = server(RPC_PROTOCOL, model, [worker], logs / "server.log")
        self._url = stack.enter_context(with_it)
        tokens_per_s(self._url)

    async def token_ms(self) -> float:
        return MS_PER_S / await asyncio.to_thread(tokens_per_s, self._url)


class Asked(NamedTuple):
    """Two answers of a cluster, and the time of the stock one's between them."""

    depth: int
    """Tokens in context in the middle of an answer."""
    tok_per_s: float
    stock_token_ms: float


class Row(NamedTuple):
    split: Sequence[int]
    lab: Lab | None
    predicted: float
    low: float
    high: float
    measured: float
    pace: float
    at_once: float
    """Predicted without a word of the pace."""

    @property
    def error(self) -> float:
        return abs(self.predicted / self.measured - 1)

    @property
    def error_at_once(self) -> float:
        return abs(self.at_once / self.measured - 1)

    @property
    def is_inside(self) -> bool:
        return self.low <= self.measured <= self.high


def main() -> None:
    """Measure all, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--threads", default="1,2", help="of each worker")
    options = parser.parse_args()
    if options.model == LARGE:
        options.model = large_model()
    with own_folders():
        rows = asyncio.run(_rows(options))
    print("\n".join(verdicts(rows)))


async def _rows(options: argparse.Namespace) -> list[Row]:
    threads = tuple(map(int, options.threads.split(",")))
    with ExitStack() as stack:
        model = options.model.absolute()
        async with Trial(threads, Pace(stack, model)) as trial:
            return await trial.measured(str(model), options.quick)


@contextmanager
def own_folders() -> Iterator[None]:
    """Settings, state and sockets that no other controller here uses."""
    with tempfile.TemporaryDirectory(prefix="dllm-predict-") as folder:
        for name in ("CONFIG", "STATE", "DATA"):
            os.environ[f"XDG_{name}_HOME"] = f"{folder}/{name.lower()}"
        os.environ["XDG_RUNTIME_DIR"] = folder
        yield


def counts_of(
    model: ModelInfo, workers: int, head: float, ends: tuple[int, int]
) -> list[int]:
    """Whole layers of each device, the output being one.

    ``head`` is its share; ``ends`` weighs the first and the last worker. Those between
    weigh as much as the lighter end.
    """
    first, last = ends
    weights = [first, *[min(ends)] * (workers - 2), last]
    whole = model.n_layer + 1
    own = round(head * whole)
    counts = [own]
    for index in range(workers):
        until = round((whole - own) * sum(weights[: index + 1]) / sum(weights))
        counts.append(until - sum(counts[1:]))
    return counts


def predicted(
    model: ModelInfo,
    plan: Plan,
    known: ClusterSpeeds,
    labs: Mapping[str, Lab | None],
    depth: int,
) -> Forecast:
    """The speed with these networks of the workers, amid an answer."""
    return forecast(model, plan, with_labs(known, labs.get), Workload(depth=depth))


def at_pace(known: ClusterSpeeds, pace: float) -> ClusterSpeeds:
    """The speeds if all that computes takes so many times as long."""

    def slower(speed: DeviceSpeed) -> DeviceSpeed:
        return replace(
            speed,
            ms=tuple(ms * pace for ms in speed.ms),
            covariance=tuple(one * pace * pace for one in speed.covariance),
        )

    return replace(
        known,
        head=slower(known.head),
        devices=tuple(map(slower, known.devices)),
        links=tuple(replace(link, pass_ms=link.pass_ms * pace) for link in known.links),
    )


def counts_text(counts: Sequence[int]) -> str:
    return " + ".join(map(str, counts))


def rate_text(tok_per_s: float) -> str:
    """Without the blanks that line up a column."""
    return format_rate(tok_per_s).strip()


def verdicts(rows: Sequence[Row]) -> Iterator[str]:
    """The figures that predictions are judged by."""
    inside = sum(row.is_inside for row in rows) / len(rows)
    yield (
        f"\n{len(rows)} runs: {_errors([row.error for row in rows])}, "
        f"{format_percent(inside)} within the band (90 % are meant to be)"
    )
    yield f"Without the pace: {_errors([row.error_at_once for row in rows])}"


def _errors(errors: Sequence[float]) -> str:
    ranked = sorted(errors)
    p95 = ranked[min(int(len(ranked) * 0.95), len(ranked) - 1)]
    return (
        f"median error {format_percent(median(ranked))}, "
        f"95th percentile {format_percent(p95)}"
    )


class Trial:
    """A controller of its own, that launches splits of a model and asks them.

    The workers run on this machine, each with its number of threads.
    """

    def __init__(
        self, threads: Sequence[int], pace: Pace, *, ctx_size: int = 1024
    ) -> None:
        self._threads = threads
        self._ctx_size = ctx_size
        self._workers = len(threads)
        self._pace = pace
        self.client = ControllerClient()
        self._usual_ms = 0.0
        """Of a stock token while two runs calibrated."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.stop()
        await self.client.shutdown()

    async def measured(self, model: str, quick: bool) -> list[Row]:
        """Calibrate, then compare other splits with their predictions."""
        info = await self.client.inspect(model)
        known = await self.client.speeds(await self.calibrated(info))
        print("| layers | lab | pace | predicted | band | measured | error |")
        print("|---|---|--:|--:|---|--:|--:|", flush=True)
        rows = []
        for split in SPLITS[: QUICK[0]] if quick else SPLITS:
            plan = await self.launched(info, counts_of(info, self._workers, *split))
            for lab in LABS[: QUICK[1]] if quick else LABS:
                row = await self._compared(info, plan, known, lab)
                rows.append(row)
                print(_line(row), flush=True)
        return rows

    async def calibrated(self, model: ModelInfo) -> Plan:
        """Run the two splits that teach the speeds; the plan of the last."""
        stock_ms = []
        for split in CALIBRATION:
            plan = await self.launched(model, counts_of(model, self._workers, *split))
            stock_ms += await self._taught(ROUNDS)
        self._usual_ms = median(stock_ms)
        return plan

    async def taught(self, rounds: int) -> None:
        """Let what runs teach the speeds by so many answers."""
        self._usual_ms = median(await self._taught(rounds))

    async def _taught(self, rounds: int) -> list[float]:
        stock_ms = []
        for _ in range(rounds):
            stock_ms.append(await self._pace.token_ms())
            await self._answer()
            await asyncio.sleep(SETTLE_S)
        return stock_ms

    async def stock_ms(self) -> float:
        """The time of a token of the stock cluster, now."""
        return await self._pace.token_ms()

    def pace(self, asked: Asked) -> float:
        """The time of some work then by that while two runs calibrated."""
        return asked.stock_token_ms / self._usual_ms

    async def planned(self, model: ModelInfo, counts: Sequence[int]) -> Plan:
        """The plan of the model with these numbers of layers."""
        ask = Ask(
            model=model.path,
            workers=self._workers,
            ctx_size=self._ctx_size,
            server=ServerSettings(threads=1),
            extra_args=ARGUMENTS,
        )
        proposed = await self.client.propose(ask)
        workers = tuple(
            replace(worker, threads=threads)
            for worker, threads in zip(proposed.workers, self._threads, strict=True)
        )
        devices = ("local/CPU", *(f"{worker.name}/CPU" for worker in workers))
        split = make_split(model.n_layer, devices, counts)
        return replace(proposed, workers=workers, split=split)

    async def launched(self, model: ModelInfo, counts: Sequence[int]) -> Plan:
        """Serve the model with these numbers of layers; the plan."""
        plan = await self.planned(model, counts)
        await self.client.launch(await self.client.prepare(plan))
        async with aclosing(self.client.snapshots()) as snapshots:
            async for now in snapshots:
                if now.state is ClusterState.FAILED and now.failure is not None:
                    raise DllmError(now.failure.sentence)
                is_ours = now.plan is not None and now.plan.split == plan.split
                if is_ours and now.state is ClusterState.SERVING:
                    return plan
        raise DllmError("The controller ended")

    async def _compared(
        self,
        model: ModelInfo,
        plan: Plan,
        known: ClusterSpeeds,
        lab: Lab | None,
    ) -> Row:
        if (await self.client.snapshot()).links:
            await self.client.set_lab(None, lab)
        asked = await self.asked()
        await asyncio.sleep(SETTLE_S)
        pace = self.pace(asked)
        labs = {worker.name: lab for worker in plan.workers}
        then = at_pace(known, pace)
        told = predicted(model, plan, then, labs, asked.depth)
        at_once = predicted(model, plan, known, labs, asked.depth)
        return Row(
            split=[share.layers for share in plan.split.shares],
            lab=lab,
            predicted=told.tok_per_s,
            low=told.low,
            high=told.high,
            measured=asked.tok_per_s,
            pace=pace,
            at_once=at_once.tok_per_s,
        )

    async def asked(self) -> Asked:
        stock_ms, answers = [await self._pace.token_ms()], []
        for _ in range(ROUNDS):
            answers.append(await self._answer())
            stock_ms.append(await self._pace.token_ms())
        return Asked(
            depth=answers[0].prompt_tokens + TOKENS // 2,
            tok_per_s=median(one.tok_per_s for one in answers),
            stock_token_ms=median(stock_ms),
        )

    async def _answer(self) -> ChatTimings:
        """The timings of one answer by llama-server itself."""
        port = next(
            process.port
            for process in (await self.client.snapshot()).processes
            if process.name == "llama-server" and process.port
        )
        question = ChatMessage(role="user", content="Tell a story of a lighthouse.")
        sampling = Sampling(temperature=0.0, max_tokens=TOKENS)
        request = ChatRequest(messages=(question,), sampling=sampling)
        last = ChatTimings()
        async with (
            ServerClient(port) as server,
            aclosing(server.chat(request)) as deltas,
        ):
            async for delta in deltas:
                last = delta.timings or last
        return last


def _line(row: Row) -> str:
    low, high = map(rate_text, (row.low, row.high))
    lab = format_lab(row.lab or Lab()) or "-"
    return (
        f"| {counts_text(row.split)} | {lab} | {row.pace:.2f} | "
        f"~{rate_text(row.predicted)} | {low} to {high} | "
        f"{rate_text(row.measured)} | {format_percent(row.error)} |"
    )


if __name__ == "__main__":
    main()
