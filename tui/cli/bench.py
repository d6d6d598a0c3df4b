"""``dllm-tui bench``: measure a model over splits, networks and settings."""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from importlib.metadata import version
from itertools import cycle
from pathlib import Path
from statistics import median
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import click
import msgspec

from backends.bench.chart import as_svg, chart_of
from backends.bench.matrix import (
    NO_RELAY,
    RELAYS,
    SPLIT_MODES,
    Axes,
    by_launch,
    seeds_cases,
)
from backends.bench.results import (
    AXES,
    BenchRun,
    BusyTime,
    CaseResult,
    Conditions,
    Measurement,
    as_csv,
    as_markdown,
    comparison_table,
    conditions,
    conditions_text,
    load,
    save,
    seeds_table,
    table,
    varying,
)
from backends.client.calls import RequestFailed
from backends.errors import ControllerError, DllmError, ProcessFailed, UsageError
from backends.paths import user_paths
from backends.places import LOCAL
from backends.server_settings import CTX_MIN, SLOTS_MAX
from backends.state import Ask, ChatMessage, ChatRequest, Sampling
from backends.units import format_count, format_seconds
from tui.cli.chats import asked
from tui.cli.command import (
    Command,
    Name,
    cluster_option,
    options,
    quantity,
    refuse_with,
)
from tui.cli.links import MB_PER_S, MS
from tui.cli.model_argument import require_model
from tui.cli.output import aligned, emit_json, on_terminal, say, show, unseen
from tui.cli.up import launched

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from backends.bench.matrix import Case
    from backends.client.client import ControllerClient
    from backends.state import ClusterSnapshot
    from tui.cli.chats import Answer

EXAMPLES = """
dllm-tui bench m.gguf --latency 0ms,5ms,10ms
dllm-tui bench m.gguf --workers 2,3,4 --latency 0ms,10ms --rounds 5
dllm-tui bench m.gguf --split 6,7 --split 9,4 --rate 10MB/s,100MB/s
dllm-tui bench m.gguf --peer mini --draft none --draft ngram --slots 1,4
dllm-tui bench m.gguf --profile seeds --svg seeds.svg
dllm-tui bench --resume results.json --compare before.json
"""
PROMPT = "Explain in a few sentences how a large language model writes text."
TOKENS, ROUNDS = 64, 3
SETTLED_S, POLL_S = 1.0, 0.1
WIDTH = 78
PLOT_ROWS = 14
_INTEGER = re.compile("[0-9]{1,9}")
SIGNS = "●▲■◆○△"
SEEDS = "seeds"


@click.command(cls=Command, quiet=True, examples=EXAMPLES)
@click.argument("path", metavar="[MODEL]", required=False, type=Name("models"))
@options(
    ("--workers", "N,N…", "CPU workers to start on this machine."),
    ("--peer peers", Name("peers"), "Peer to use as a worker (repeatable)."),
    ("--head", Name("heads"), "Peer to run llama-server on, not this machine."),
    ("--split splits", "N,N…|DEVICE=N…", "Whole layers per device (repeatable)."),
    ("--context", "N,N…", "Context lengths in tokens."),
    ("--slots", "N,N…", "Parallel requests, with one client each."),
    ("--draft drafts", "MODEL|ngram|none", "Speculation method (repeatable)."),
    ("--relay", "WORD,WORD…", f"Relays as in up: {', '.join(RELAYS)}."),
    ("--split-mode", "WORD,WORD…", "layer, or tensor: a part of every tensor each."),
    ("--latency", "MS,MS…", "Simulated one-way latencies, such as 0ms,10ms."),
    ("--rate", "MB/S,…", "Simulated bandwidths, such as 10MB/s,1Gbit/s."),
    ("--rounds", click.IntRange(1, 1000), "Samples of each case, in turn.", ROUNDS),
    ("--tokens", click.IntRange(8, 4096), "Tokens of each answer.", TOKENS),
    ("--prompt", "TEXT", "The prompt.", PROMPT),
    (
        "--profile",
        click.Choice([SEEDS]),
        "seeds: 3 to 5 nodes at 0 to 30 ms, beside published figures.",
    ),
    ("--to", "FILE", "Results file; below the state folder by default."),
    ("--resume", "FILE", "Continue an interrupted run."),
    ("--compare", "FILE", "Compare with the results of another run."),
    ("--csv", "FILE", "Write each sample as a line."),
    ("--markdown", "FILE", "Write the table for a document."),
    ("--svg", "FILE", "Write table and plot as a picture."),
)
@cluster_option
async def bench(
    client: ControllerClient,
    path: str | None,
    resume: str | None,
    compare: str | None,
    to: str | None,
    as_json: bool,
    csv: str | None,
    markdown: str | None,
    svg: str | None,
    **wish: Any,
) -> None:
    """Measure MODEL over a matrix of splits, networks and settings.

    Every combination is launched and asked in turn, round after round. Results are
    kept after each sample: Ctrl-C loses none, and --resume continues.
    """
    before = load(Path(compare)) if compare else None
    if resume:
        refuse_with("--resume", "--to", "--profile", "--rounds", "--tokens", "--prompt")
        run, file = load(Path(resume)).retried(), Path(resume)
    elif path is None:
        raise click.UsageError("Missing argument 'MODEL'.", click.get_current_context())
    else:
        run = await _planned(client, await require_model(path), **wish)
        file = Path(to) if to else _new_file(run)
    for target in (csv, markdown, svg):
        _require_writable(target)
    if not run.done:
        await _require_quiet(client)
        save(run, file)
        run = await BenchRunner(client, run, file).run()
    if as_json:
        emit_json(run)
    else:
        show("\n".join(_report(run, before)))
        say(f"Results: {file}")
    _write(csv, lambda: as_csv(run))
    _write(markdown, lambda: f"{conditions_text(run)}\n\n{as_markdown(table(run))}")
    _write(svg, lambda: as_svg(run))
    if not any(result.samples for result in run.results):
        raise DllmError("No case could be measured", "The table says why.")


async def _planned(
    client: ControllerClient,
    model: str,
    *,
    peers: tuple[str, ...],
    head: str | None,
    prompt: str,
    tokens: int,
    rounds: int,
    profile: str | None,
    **axes: Any,
) -> BenchRun:
    base = Ask(model=model, peers=peers or None, head=head)
    if profile == SEEDS:
        refuse_with(
            "--profile",
            *("--workers", "--peer", "--head", "--split", "--context", "--slots"),
            *("--draft", "--relay", "--split-mode", "--latency", "--rate"),
        )
        cases = seeds_cases((await client.inspect(model)).n_layer)
    else:
        cases = _axes(**axes).cases()
    for case in cases:
        case.ask(base)
    now = Conditions(
        at=time.time(), program="", machine="", cores=0, memory_bytes=0, model=model
    )
    return BenchRun(
        conditions=now,
        base=base,
        prompt=prompt,
        tokens=tokens,
        rounds=rounds,
        profile=profile or "",
        results=tuple(CaseResult(case=case) for case in cases),
    )


def _axes(
    *,
    workers: str | None,
    splits: tuple[str, ...],
    context: str | None,
    slots: str | None,
    drafts: tuple[str, ...],
    relay: str | None,
    split_mode: str | None,
    latency: str | None,
    rate: str | None,
) -> Axes:
    """The axes as typed; what was not typed has its default value alone."""
    typed: dict[str, Any] = {
        "workers": _integers("--workers", workers, 0, 16),
        "split": splits,
        "ctx_size": _integers("--context", context, CTX_MIN, 1 << 30),
        "slots": _integers("--slots", slots, 1, SLOTS_MAX),
        "draft": drafts,
        "relay": _words("--relay", relay, RELAYS),
        "split_mode": _words("--split-mode", split_mode, SPLIT_MODES),
        "latency_ms": [quantity(part, MS, "10ms") for part in _parts(latency)],
        "rate_mb_s": [quantity(part, MB_PER_S, "30MB/s") for part in _parts(rate)],
    }
    axes = msgspec.convert({k: tuple(v) for k, v in typed.items() if v}, Axes)
    simulated = any(axes.latency_ms) or any(axes.rate_mb_s)
    if NO_RELAY in axes.relay and simulated:
        raise UsageError(
            "A network cannot be simulated without relays",
            "Leave out --relay off, or --latency and --rate.",
        )
    return axes


def _parts(text: str | None) -> list[str]:
    return [part.strip() for part in text.split(",")] if text else []


def _integers(option: str, text: str | None, least: int, most: int) -> list[int]:
    parts = [] if text is None else text.replace(" ", "").split(",")
    if not all(_INTEGER.fullmatch(p) and least <= int(p) <= most for p in parts):
        raise UsageError(
            f"{option} {text} is not a list of numbers from {least} to {most}",
            f"Write it like {option} {max(least, 1)},{max(least, 1) * 2}.",
        )
    return [int(part) for part in parts]


def _words(option: str, text: str | None, known: Sequence[str]) -> list[str]:
    for part in _parts(text):
        if part not in known:
            raise UsageError(
                f"{option} has no value {part!r}", f"Use {', '.join(known)}."
            )
    return _parts(text)


async def _require_quiet(client: ControllerClient) -> None:
    """Refuse to measure beside another cluster: both would be slower.

    Raises:
        ControllerError: one runs.
    """
    now = await client.snapshot()
    if now.wanted_generation or now.others_run:
        raise ControllerError(
            "A cluster is running, and would disturb the benchmark",
            "Stop it with dllm-tui down --all.",
        )


class BenchRunner:
    """Measures what a run lacks, and keeps each sample at once."""

    def __init__(self, client: ControllerClient, run: BenchRun, file: Path) -> None:
        self._client = client
        self._run = run
        self._file = file
        self._began = time.monotonic()
        self._missing = self._count()

    async def run(self) -> BenchRun:
        """Measure round by round; each round has every case once.

        Raises:
            KeyboardInterrupt: it was interrupted; the file has all samples so far.
        """
        try:
            with _live(self) as shown:
                for number in self._run.all_rounds:
                    for launch, cases in by_launch(self._run.cases):
                        lacking = [c for c in cases if self._run.lacks(number, c)]
                        if lacking:
                            await self._measure(number, launch, lacking, shown)
        except (asyncio.CancelledError, DllmError):
            say(f"What was saved is kept: dllm-tui bench --resume {self._file}")
            raise
        return self._run

    @property
    def results(self) -> BenchRun:
        return self._run

    @property
    def progress(self) -> str:
        """``4 of 12 samples, about 1 m 05 s left``."""
        total, left = self._missing, self._count()
        text = f"{total - left} of {format_count(total, 'sample')}"
        elapsed_s = time.monotonic() - self._began
        if left and left < total:
            text += f", about {format_seconds(elapsed_s / (total - left) * left)} left"
        return text

    def _count(self) -> int:
        run = self._run
        return sum(run.lacks(n, case) for n in run.all_rounds for case in run.cases)

    async def _measure(
        self,
        number: int,
        launch: Case,
        cases: Sequence[Case],
        shown: Callable[[str], None],
    ) -> None:
        """Launch once, and take a sample of each network."""
        shown(f"round {number}: launching")
        began = time.monotonic()
        try:
            ask = launch.ask(self._run.base)
            if ask.peers or ask.head:
                await self._client.settled_peers()
            preview = await self._client.prepare(ask)
            if preview.refusal is not None:
                return self._fail(number, cases, preview.refusal.sentence)
            async with launched(self._client, preview, keep=False, measures=True) as (
                serving,
                _,
            ):
                launch_s = time.monotonic() - began
                self._note(serving)
                for case in cases:
                    shown(f"round {number}: {_case_text(self._run, case)}")
                    sample = await self._sample(number, case, launch_s)
                    self._keep(self._run.with_sample(case, sample))
                    shown("")
        except (ProcessFailed, RequestFailed) as error:
            self._fail(number, cases, error.failure().sentence)

    def _note(self, serving: ClusterSnapshot) -> None:
        now = conditions(serving, at=time.time(), program=version("dllm-tui"))
        known = self._run.conditions
        if not known.program:
            self._keep(msgspec.structs.replace(self._run, conditions=now))
        elif not known.is_like(now):
            raise UsageError(
                f"{self._file} has results of another machine, engine or release",
                "Begin a new run, and compare the two with --compare.",
            )

    def _fail(self, number: int, cases: Sequence[Case], why: str) -> None:
        for case in cases:
            if self._run.lacks(number, case):
                self._keep(self._run.with_failure(case, why))

    def _keep(self, run: BenchRun) -> None:
        self._run = run
        save(run, self._file)

    async def _sample(self, number: int, case: Case, launch_s: float) -> Measurement:
        if case.relay != NO_RELAY:
            await self._client.set_lab(None, case.lab)
        # Warm caches, and the network of this case.
        await self._ask(f"warm-up {number}", tokens=8)
        before = await self._client.snapshot()
        pids = [p.pid for p in before.processes if p.pid and p.peer == LOCAL]
        busy = BusyTime([*pids, before.controller_pid])
        began = time.monotonic()
        questions = [f"{number}.{slot}" for slot in range(case.slots)]
        answers = await asyncio.gather(
            *(self._ask(one, tokens=self._run.tokens) for one in questions)
        )
        elapsed_s = time.monotonic() - began
        other_cores = busy.other_cores(elapsed_s)
        tokens = sum(answer.timings.tokens for answer in answers)
        after = await self._counted(before, tokens)
        return Measurement(
            round=number,
            tok_per_s=_speed(answers, elapsed_s),
            prompt_tok_per_s=_prompt_speed(answers),
            first_token_s=_first_token_s(answers),
            tokens=tokens,
            trips_per_token=_trips_per_token(before, after, tokens),
            bytes_per_token=_bytes_per_token(after),
            launch_s=launch_s,
            weight_bytes_sent=_weights_sent(after),
            other_cores=other_cores,
        )

    async def _ask(self, question: str, *, tokens: int) -> Answer:
        # Each begins in its own way, so that no prompt is known already.
        text = f"Question {question}. {self._run.prompt}"
        request = ChatRequest(
            messages=(ChatMessage(role="user", content=text),),
            sampling=Sampling(temperature=0.0, max_tokens=tokens),
        )
        return await asked(self._client, request, unseen)

    async def _counted(self, before: ClusterSnapshot, tokens: int) -> ClusterSnapshot:
        """The snapshot in which the relays have counted the tokens, or nearly so."""
        deadline = time.monotonic() + SETTLED_S
        while True:
            now = await self._client.snapshot()
            if _tokens(now) - _tokens(before) >= tokens or time.monotonic() > deadline:
                return now
            await asyncio.sleep(POLL_S)


def _tokens(snapshot: ClusterSnapshot) -> int:
    return max((link.generation.tokens for link in snapshot.links), default=0)


def _speed(answers: Sequence[Answer], elapsed_s: float) -> float:
    # Of several clients, llama-server's own figures overlap.
    if len(answers) == 1:
        return answers[0].timings.tok_per_s
    return sum(answer.timings.tokens for answer in answers) / elapsed_s


def _prompt_speed(answers: Sequence[Answer]) -> float | None:
    timings = answers[0].timings
    if len(answers) > 1 or not timings.prompt_ms:
        return None
    return timings.prompt_tokens / timings.prompt_ms * 1000


def _first_token_s(answers: Sequence[Answer]) -> float | None:
    known = [a.timings.first_token_s for a in answers if a.timings.first_token_s]
    return median(known) if known else None


def _trips_per_token(
    before: ClusterSnapshot, after: ClusterSnapshot, tokens: int
) -> float | None:
    counted = _tokens(after) - _tokens(before)
    if not after.links or counted < tokens:
        return None
    then = {link.worker: link.generation.trips for link in before.links}
    trips = sum(x.generation.trips - then.get(x.worker, 0) for x in after.links)
    return trips / counted


def _bytes_per_token(after: ClusterSnapshot) -> float | None:
    found = [
        (link.bytes_up_per_token or 0.0) + (link.bytes_down_per_token or 0.0)
        for link in after.links
    ]
    return sum(found) if any(found) else None


def _weights_sent(after: ClusterSnapshot) -> int | None:
    sent = [link.weight_bytes_sent for link in after.links]
    known = [n_bytes for n_bytes in sent if n_bytes is not None]
    return sum(known) if known else None


# --- what is shown -------------------------------------------------------------------


def _case_text(run: BenchRun, case: Case) -> str:
    axes = [AXES[name] for name in varying(run.cases)]
    return ", ".join(f"{title} {text(case) or 'default'}" for title, text in axes)


class _live:
    """Redraws table and plot on a terminal after each sample; else prints lines."""

    def __init__(self, runner: BenchRunner) -> None:
        self._runner = runner
        self._screen: Any = None

    def __enter__(self) -> Callable[[str], None]:
        if on_terminal():
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True)
            self._screen = Live(console=console, auto_refresh=False, transient=True)
            self._screen.start()
            return self._draw
        return self._tell

    def __exit__(self, *_: object) -> None:
        if self._screen is not None:
            self._screen.stop()

    def _draw(self, doing: str) -> None:
        from rich.text import Text

        run = self._runner.results
        lines = [*_lines(table(run)), "", *_plot(run)]
        rows = shutil.get_terminal_size().lines - 2
        text = Text("\n".join(lines[:rows]), no_wrap=True, overflow="crop")
        text.append(f"\n{self._runner.progress}  {doing}", style="bold")
        self._screen.update(text, refresh=True)

    def _tell(self, doing: str) -> None:
        if doing:
            say(f"{self._runner.progress}: {doing}")


def _lines(rows: Sequence[Sequence[str]]) -> list[str]:
    return aligned(
        [[cell or "-" for cell in row] for row in rows],
        [at > 0 for at in range(len(rows[0]))],
    )


def _report(run: BenchRun, before: BenchRun | None) -> list[str]:
    lines = [*wrap(conditions_text(run), WIDTH), "", *_lines(table(run))]
    failed = [result for result in run.results if result.failure]
    lines += [f"Failed: {_case_text(run, one.case)}: {one.failure}" for one in failed]
    disturbed = sum(s.disturbed for r in run.results for s in r.samples)
    if disturbed:
        lines += [
            "",
            f"{format_count(disturbed, 'sample')} disturbed by other programs.",
        ]
    if run.profile == SEEDS:
        lines += ["", *_lines(seeds_table(run)), "", *SEEDS_NOTES]
    if plot := _plot(run):
        lines += ["", *plot]
    if before is not None:
        rows = comparison_table(before, run)
        found = _lines(rows) if len(rows) > 1 else ["No case stands in both runs."]
        lines += ["", *found]
    return lines


SEEDS_NOTES = (
    "theirs: published figures of a latency proxy, GLM-4.7-Flash Q4_K_M on an M4 Max.",
    "Their figures fit 2 W - 1 sleeps a token for W workers beside the head. Our",
    "simulated latency acts on each way of each worker's trip, so 2 W times.",
    "theirs, our links: their time without latency, plus our added time by that ratio.",
)


def _plot(run: BenchRun) -> list[str]:
    """The chart of a run in characters, with its legend below."""
    chart = chart_of(run)
    if chart is None:
        return []
    import plotext

    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plotsize(WIDTH, PLOT_ROWS)
    plotext.title(f"tok/s over {chart.axis}")
    signs = dict(zip(chart.lines, cycle(SIGNS), strict=False))
    for label, line in chart.lines.items():
        xs, ys = [p.x for p in line], [p.median for p in line]
        plotext.plot(xs, ys, marker=signs[label])
    plotext.xticks(chart.xs)
    plotext.ylim(0, None)
    text = plotext.uncolorize(plotext.build())
    legend = "   ".join(f"{sign} {label}" for label, sign in signs.items() if label)
    return [*(line.rstrip() for line in text.splitlines()), legend]


# --- files ---------------------------------------------------------------------------


def _new_file(run: BenchRun) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    name = f"{Path(run.base.model).stem}-{stamp}.json"
    return user_paths().state_dir / "bench" / name


def _require_writable(target: str | None) -> None:
    if target and not Path(target).absolute().parent.is_dir():
        raise UsageError(f"There is no folder for {target}", "Make it first.")


def _write(target: str | None, text: Callable[[], str]) -> None:
    if target is None:
        return
    try:
        Path(target).write_text(text())
    except OSError as error:
        raise DllmError(f"Cannot write {target} ({error.strerror})") from error
    say(f"Wrote {target}.")
