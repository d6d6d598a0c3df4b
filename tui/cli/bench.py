"""``dllm-tui bench``: measure a model over splits, networks and settings."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from importlib.metadata import version
from itertools import cycle
from pathlib import Path
from statistics import median
from textwrap import wrap
from typing import Any

import click
import msgspec

from backends.bench.chart import Chart, chart_svg
from backends.bench.matrix import (
    CACHED,
    NO_RELAY,
    RELAYS,
    SPLIT_MODES,
    Case,
    by_launch,
    combined,
)
from backends.bench.published import seeds_cases, seeds_notes, seeds_tables
from backends.bench.results import (
    AXES,
    ROUNDS_MAX,
    BenchRun,
    BusyTime,
    CaseResult,
    Conditions,
    Measurement,
    as_csv,
    as_markdown,
    chart_of,
    comparison_tables,
    conditions,
    conditions_text,
    load,
    save,
    table,
    unlike,
    varying,
)
from backends.client.calls import RequestFailed
from backends.client.client import ControllerClient
from backends.errors import ControllerError, DllmError, ProcessFailed, UsageError
from backends.link.wire import require_possible
from backends.machine_names import LOCAL
from backends.paths import user_paths
from backends.server_settings import CTX_MIN, SLOTS_MAX
from backends.split.cost import Workload, forecast, with_labs
from backends.split.flags import DEVICES_MAX
from backends.state import (
    NO_DRAFT,
    Ask,
    ChatRequest,
    ClusterSnapshot,
    ClusterSpeeds,
    Lab,
    Preview,
)
from backends.units import format_count, format_seconds
from backends.writing import remove_leftovers
from tui.cli.chats import Answer, asked
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
from tui.cli.output import (
    aligned,
    emit_json,
    on_terminal,
    require_folder,
    say,
    show,
    unseen,
    write_document,
)
from tui.cli.plan import METHODS, prepared
from tui.cli.up import launched
from tui.widgets.safe_text import safe_line

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
SETTLED_S, POLL_S = 2.0, 0.1
COUNTED_S = 0.5
"""A relay that nothing goes through has told its counters after so long."""
WIDTH = 78
PLOT_ROWS = 14
PLOT_COLUMNS_MIN = 40
_INTEGER = re.compile("[0-9]{1,9}")
SIGNS = "●▲■◆○△"
SEEDS = "seeds"
AXIS_OPTIONS = (
    *("--workers", "--peer", "--head", "--split", "--context", "--slots", "--draft"),
    *("--relay", "--split-mode", "--latency", "--rate"),
)


@click.command(cls=Command, quiet=True, examples=EXAMPLES)
@click.argument("MODEL", metavar="[MODEL]", required=False, type=Name("models"))
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
    (
        "--rounds",
        click.IntRange(1, ROUNDS_MAX),
        "Samples of each case, in turn.",
        ROUNDS,
    ),
    ("--tokens", click.IntRange(8, 4096), "Tokens of each answer.", TOKENS),
    ("--prompt", "TEXT", "The prompt.", PROMPT),
    (
        "--profile",
        click.Choice([SEEDS]),
        "seeds: 3 to 5 nodes at 0 to 30 ms, and loads with weights that cross, are "
        "cached or at home, beside published figures.",
    ),
    ("--to", "FILE", "Results file; below the state folder by default."),
    ("--resume", "FILE", "Continue an interrupted run."),
    ("--compare", "FILE", "Compare with the results of another run."),
    ("--csv", "FILE", "Write each sample as a line."),
    ("--markdown", "FILE", "Write the table for a document."),
    ("--svg", "FILE", "Write the plot as a picture."),
)
@cluster_option
async def bench(
    client: ControllerClient,
    model: str | None,
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
    kept after each sample: Ctrl-C loses none, and --resume continues. If a case cannot
    be measured, the others are, and the exit code is 1.
    """
    before = load(Path(compare)) if compare else None
    if resume:
        others = ("--to", "--profile", "--rounds", "--tokens", "--prompt")
        refuse_with("--resume", "MODEL", *others, *AXIS_OPTIONS)
        run, file = load(Path(resume)).retried(), Path(resume)
    elif model is None:
        raise click.UsageError("Missing argument 'MODEL'.", click.get_current_context())
    else:
        run = await _planned(client, await require_model(model), **wish)
        file = _results_file(to, run)
    for target in filter(None, (csv, markdown, svg)):
        _require_writable(Path(target), file)
    if run.missing:
        await require_quiet(client)
        save(run, file)
        run = await BenchRunner(client, run, file).run()
    if as_json:
        emit_json(run)
    else:
        show("\n".join(_report(run, before)))
        say(f"Results: {file}")
    tables = [table(run), *(seeds_tables(run) if run.profile == SEEDS else [])]
    article = "\n".join([f"{conditions_text(run)}\n", *map(as_markdown, tables)])
    picture = chart_svg(chart_of(run) or Chart("", {}), conditions_text(run))
    for name, text in (csv, as_csv(run)), (markdown, article), (svg, picture):
        if name:
            write_document(Path(name), text)
            say(f"Wrote {name}.")
    if failed := [_case_text(run, one.case) for one in run.results if one.failure]:
        count = f"{len(failed)} of {format_count(len(run.results), 'case')}"
        raise DllmError(
            f"{count} could not be measured: {'; '.join(failed)}",
            f"Once that is mended: dllm-tui bench --resume {shlex.quote(str(file))}",
        )


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
    **typed: Any,
) -> BenchRun:
    base = Ask(model=model, peers=peers or None, head=head)
    if profile == SEEDS:
        refuse_with("--profile", *AXIS_OPTIONS)
        cases = seeds_cases((await client.inspect(model)).n_layer)
    else:
        drafts = typed["drafts"]
        drafts = [d if d in METHODS else await require_model(d) for d in drafts]
        cases = _cases(typed | {"drafts": drafts})
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


def _cases(typed: Mapping[str, Any]) -> tuple[Case, ...]:
    """The matrix as typed; what was not typed has its default value alone."""
    axes: dict[str, Any] = {
        "workers": _integers("--workers", typed["workers"], 0, DEVICES_MAX),
        "split": typed["splits"],
        "ctx_size": _integers("--context", typed["context"], CTX_MIN, 1 << 30),
        "slots": _integers("--slots", typed["slots"], 1, SLOTS_MAX),
        "draft": typed["drafts"],
        "relay": _words("--relay", typed["relay"], RELAYS),
        "split_mode": _words("--split-mode", typed["split_mode"], SPLIT_MODES),
        "latency_ms": [quantity(x, MS, "10ms") for x in _parts(typed["latency"])],
        "rate_mb_s": [quantity(x, MB_PER_S, "30MB/s") for x in _parts(typed["rate"])],
    }
    cases = combined(axes)
    for case in cases:
        require_possible(case.lab or Lab())
    if NO_RELAY in axes["relay"] and any(case.lab for case in cases):
        raise UsageError(
            "A network cannot be simulated without relays",
            "Leave out --relay off, or --latency and --rate.",
        )
    return cases


def _parts(text: str | None) -> list[str]:
    return [] if text is None else [part.strip() for part in text.split(",")]


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


async def require_quiet(client: ControllerClient) -> None:
    now = await client.snapshot()
    if now.wanted_generation or now.others_run:
        raise ControllerError(
            "A cluster is running, and would disturb the measurement",
            "Stop it with dllm-tui down --all.",
        )


class BenchRunner:
    """Measures what a run lacks, and keeps each sample at once."""

    def __init__(self, client: ControllerClient, run: BenchRun, file: Path) -> None:
        self._client = client
        self._run = run
        self._file = file
        self._began = time.monotonic()
        self._missing = run.missing
        self._caches = user_paths().cache_dir / "bench"
        self._worker_cache = self._caches / str(os.getpid())

    async def run(self) -> BenchRun:
        """Measure round by round; each round has every case once."""
        await asyncio.to_thread(remove_leftovers, self._caches)
        try:
            with _live(self) as shown:
                for number in self._run.all_rounds:
                    await self._round(number, shown)
        except (asyncio.CancelledError, DllmError):
            command = shlex.join(["dllm-tui", "bench", "--resume", str(self._file)])
            say(f"What was saved is kept: {command}")
            raise
        finally:
            await asyncio.to_thread(
                shutil.rmtree, self._worker_cache, ignore_errors=True
            )
        return self._run

    async def _round(self, number: int, shown: Callable[[str], None]) -> None:
        groups = [
            (launch, lacking)
            for launch, cases in by_launch(self._run.cases)
            if (lacking := [c for c in cases if self._run.lacks(number, c)])
        ]
        # Before the controller learns from this round.
        previews = [await self._prepared(number, *group) for group in groups]
        for (launch, cases), preview in zip(groups, previews, strict=True):
            if preview is not None:
                await self._measure(number, launch, cases, preview, shown)

    async def _prepared(
        self, number: int, launch: Case, cases: Sequence[Case]
    ) -> Preview | None:
        ask = launch.ask(self._run.base, str(self._worker_cache))
        try:
            preview = await prepared(self._client, ask)
        except (ProcessFailed, RequestFailed) as error:
            self._fail(number, cases, error.failure().sentence)
            return None
        if preview.refusal is None:
            return preview
        self._fail(number, cases, preview.refusal.sentence)
        return None

    @property
    def results(self) -> BenchRun:
        return self._run

    @property
    def progress(self) -> str:
        """``4 of 12 samples, about 1 m 05 s left``."""
        total, left = self._missing, self._run.missing
        text = f"{total - left} of {format_count(total, 'sample')}"
        elapsed_s = time.monotonic() - self._began
        if left and left < total:
            text += f", about {format_seconds(elapsed_s / (total - left) * left)} left"
        return text

    async def _measure(
        self,
        number: int,
        launch: Case,
        cases: Sequence[Case],
        preview: Preview,
        shown: Callable[[str], None],
    ) -> None:
        shown(f"round {number}: launching")
        try:
            if launch.weights == CACHED:
                await self._fill_cache()
            # By now the token may have run out, but its plan holds.
            plan, lab = preview.plan, launch.lab
            async with launched(
                self._client, plan, keep=False, measures=True, lab=lab
            ) as (serving, _, launch_s):
                now = conditions(serving, at=time.time(), program=version("dllm-tui"))
                run = msgspec.structs.replace(self._run, conditions=now)
                if not self._run.conditions.program:
                    self._keep(run)
                elif found := unlike(self._run, run):
                    raise UsageError(
                        f"{self._file} is of other conditions: {', '.join(found)}",
                        "Begin a new run, and compare the two with --compare.",
                    )
                await asyncio.sleep(COUNTED_S)
                launch_bytes = _crossed(await self._client.snapshot())
                start = Measurement(
                    round=number,
                    tok_per_s=0.0,
                    launch_s=launch_s,
                    launch_bytes=launch_bytes,
                )
                for case in cases:
                    shown(f"round {number}: {_case_text(self._run, case)}")
                    self._keep(await self._sampled(start, case, preview.speeds))
                    shown("")
        except (ProcessFailed, RequestFailed) as error:
            self._fail(number, cases, error.failure().sentence)

    async def _fill_cache(self) -> None:
        work = self._client.models.seeding(
            self._run.base.model,
            machine=LOCAL,
            directory=str(self._worker_cache / "rpc"),
        )
        async with aclosing(work) as told:
            async for _ in told:
                pass

    def _fail(self, number: int, cases: Sequence[Case], why: str) -> None:
        for case in cases:
            if self._run.lacks(number, case):
                self._keep(self._run.with_failure(case, why))

    def _keep(self, run: BenchRun) -> None:
        self._run = run
        save(run, self._file)

    async def _sampled(
        self, start: Measurement, case: Case, speeds: ClusterSpeeds | None
    ) -> BenchRun:
        """The run with a sample of a case more, or with why it has none.

        ``start`` has the figures of the launch, ``speeds`` predict it.
        """
        number = start.round
        # A head alone has no links, and can be measured as it is.
        if case.relay != NO_RELAY and (
            case.lab or (await self._client.snapshot()).links
        ):
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
        if restarted := _restarted(before, after):
            why = f"{restarted} was restarted amid the sample. Use --resume."
            return self._run.with_failure(case, why)
        depth = answers[0].timings.prompt_tokens + self._run.tokens // 2
        sample = msgspec.structs.replace(
            start,
            tok_per_s=_speed(answers, elapsed_s),
            prompt_tok_per_s=_prompt_speed(answers),
            first_token_s=_first_token_s(answers),
            tokens=tokens,
            trips_per_token=_trips_per_token(after),
            bytes_per_token=_bytes_per_token(after),
            predicted_tok_per_s=_predicted(after, speeds, case, depth),
            weight_bytes_sent=_weights_sent(after),
            other_cores=other_cores,
        )
        return self._run.with_sample(case, sample)

    async def _ask(self, question: str, *, tokens: int) -> Answer:
        # Each begins in its own way, so that no prompt is known already.
        text = f"Question {question}. {self._run.prompt}"
        return await asked(self._client, ChatRequest.greedy(text, tokens), unseen)

    async def _counted(self, before: ClusterSnapshot, tokens: int) -> ClusterSnapshot:
        """The snapshot in which relays and controller have counted the tokens.

        Then the controller has learnt from them, before the network changes.
        """
        deadline = time.monotonic() + SETTLED_S
        while True:
            now = await self._client.snapshot()
            by_relays = not now.links or _tokens(now) - _tokens(before) >= tokens
            read = now.speed.tokens - before.speed.tokens >= tokens
            if by_relays and read and not now.speed.requests_active:
                return now
            if time.monotonic() > deadline:
                return now
            await asyncio.sleep(POLL_S)


def _restarted(before: ClusterSnapshot, after: ClusterSnapshot) -> str:
    now = {(one.peer, one.name): one.pid for one in after.processes}
    then = ((now.get((one.peer, one.name)), one) for one in before.processes)
    return next((one.name for pid, one in then if pid != one.pid), "")


def _tokens(snapshot: ClusterSnapshot) -> int:
    return max((link.generation.tokens for link in snapshot.links), default=0)


def _speed(answers: Sequence[Answer], elapsed_s: float) -> float:
    # Of several clients, llama-server's own figures overlap.
    if len(answers) == 1:
        return answers[0].timings.tok_per_s
    return sum(answer.timings.tokens for answer in answers) / elapsed_s


def _prompt_speed(answers: Sequence[Answer]) -> float | None:
    return answers[0].timings.prompt_tok_per_s if len(answers) == 1 else None


def _first_token_s(answers: Sequence[Answer]) -> float | None:
    known = [a.timings.first_token_s for a in answers if a.timings.first_token_s]
    return median(known) if known else None


def _trips_per_token(after: ClusterSnapshot) -> float | None:
    found = [link.round_trips_per_token or 0.0 for link in after.links]
    return sum(found) if any(found) else None


def _bytes_per_token(after: ClusterSnapshot) -> float | None:
    found = [
        (link.bytes_up_per_token or 0.0) + (link.bytes_down_per_token or 0.0)
        for link in after.links
    ]
    return sum(found) if any(found) else None


def _crossed(snapshot: ClusterSnapshot) -> int | None:
    """Bytes between head and workers so far, both ways; None without relays."""
    if not snapshot.links:
        return None
    return sum(
        link.bytes_up + link.bytes_down
        if link.wire_bytes_up is None or link.wire_bytes_down is None
        else link.wire_bytes_up + link.wire_bytes_down
        for link in snapshot.links
    )


def _predicted(
    serving: ClusterSnapshot, speeds: ClusterSpeeds | None, case: Case, depth: int
) -> float | None:
    # With a draft, tokens of a pass are not known before.
    plan, model = serving.plan, serving.model
    if speeds is None or plan is None or model is None or case.draft != NO_DRAFT:
        return None
    load = Workload(depth=depth, slots=case.slots)
    return forecast(model, plan, with_labs(speeds, lambda _: case.lab), load).tok_per_s


def _weights_sent(after: ClusterSnapshot) -> int | None:
    sent = [link.weight_bytes_sent for link in after.links]
    known = [n_bytes for n_bytes in sent if n_bytes is not None]
    return sum(known) if known else None


# --- what is shown -------------------------------------------------------------------


def _case_text(run: BenchRun, case: Case) -> str:
    axes = [AXES[name] for name in varying(run.cases)]
    return ", ".join(f"{title} {text(case) or 'default'}" for title, text in axes)


@contextmanager
def _live(runner: BenchRunner) -> Iterator[Callable[[str], None]]:
    """Redraw table and plot on a terminal after each sample; else print lines."""

    def tell(doing: str) -> None:
        if doing:
            say(f"{runner.progress}: {doing}")

    if not on_terminal():
        yield tell
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    def draw(doing: str) -> None:
        lines = [*_lines(table(runner.results)), "", *_plot(runner.results)]
        rows = max(shutil.get_terminal_size().lines - 2, 0)
        text = "\n".join([*map(safe_line, lines[:rows]), ""])
        shown = Text(text, no_wrap=True, overflow="crop")
        shown.append(f"{runner.progress}  {safe_line(doing)}", style="bold")
        screen.update(shown, refresh=True)

    console = Console(stderr=True)
    with Live(console=console, auto_refresh=False, transient=True) as screen:
        yield draw


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
        count = format_count(disturbed, "sample")
        lines += ["", f"{count} disturbed by other programs."]
    if run.profile == SEEDS:
        for rows in seeds_tables(run):
            lines += ["", *_lines(rows)]
        lines += ["", *wrap(seeds_notes(run), WIDTH)]
    if plot := _plot(run):
        lines += ["", *plot]
    if before is not None:
        tables = comparison_tables(before, run)
        for rows in tables:
            lines += ["", *_lines(rows)]
        lines += [] if tables else ["", "No case stands in both runs."]
        lines += [f"Not alike: {one}." for one in unlike(before, run)]
    return lines


def _plot(run: BenchRun) -> list[str]:
    """The chart of a run in characters, with its legend below."""
    chart, (columns, rows) = chart_of(run), shutil.get_terminal_size()
    if chart is None or columns < PLOT_COLUMNS_MIN or rows < PLOT_ROWS:
        return []
    import plotext

    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plotsize(WIDTH, PLOT_ROWS)
    plotext.title(f"tok/s over {chart.axis}")
    signs = dict(zip(chart.lines, cycle(SIGNS), strict=False))
    for label, line in chart.lines.items():
        xs, ys = [p.x for p in line], [p.y for p in line]
        plotext.plot(xs, ys, marker=signs[label])
    plotext.xticks(chart.xs)
    plotext.ylim(0, None)
    text = plotext.uncolorize(plotext.build())
    legend = "   ".join(f"{sign} {label}" for label, sign in signs.items() if label)
    return [*(line.rstrip() for line in text.splitlines()), *filter(None, [legend])]


# --- files ---------------------------------------------------------------------------


def _results_file(to: str | None, run: BenchRun) -> Path:
    if to and os.path.lexists(to):
        raise UsageError(f"{to} is there already", "Use --resume, or another name.")
    if to:
        return Path(to)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    name = f"{Path(run.base.model).stem}-{stamp}.json"
    return user_paths().state_dir / "bench" / name


def _require_writable(target: Path, results: Path) -> None:
    require_folder(str(target))
    if target.is_dir() or target.resolve() == results.resolve():
        raise UsageError(f"{target} is no file to write to", "Give another name.")
