"""``dllm-tui links``, ``trace`` and ``why``: slower links, and where time goes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import click
import msgspec

from backends.bench.sweep_report import sweep_csv, sweep_svg, sweep_text
from backends.client.client import ControllerClient
from backends.errors import DllmError, UsageError
from backends.link.figures import chrome_trace, why_no_link
from backends.link.wire import require_possible
from backends.state import (
    DEFAULT_CLUSTER,
    LAB_DELAY_MAX_MS,
    Bottleneck,
    ClusterSnapshot,
    ClusterState,
    Lab,
    Link,
    Pass,
    PlanChange,
    to_json,
)
from backends.state.sweeps import (
    SWEEP_STEPS,
    SWEEP_TOKENS,
    Sweep,
    SweepPoint,
    SweepRequest,
)
from backends.units import (
    format_lab,
    format_ms,
    format_percent,
    format_rate,
    format_speed,
)
from tui.cli.command import Command, Group, Name, cluster_option, options, quantity
from tui.cli.output import (
    Column,
    Table,
    emit_json,
    require_folder,
    say,
    table_lines,
    write_document,
)
from tui.cli.progress import ProgressLine, ticking
from tui.cli.status import current_snapshot
from tui.model.facts import is_off
from tui.model.launch_settings import up_command
from tui.model.quantities import way_text

EXAMPLES = """
dllm-tui links list
dllm-tui links slow worker1 --latency 20ms --jitter 2ms --rate 30MB/s
dllm-tui links slow all --latency 5ms
dllm-tui links reset
dllm-tui links sweep --svg sweep.svg --csv sweep.csv
dllm-tui links sweep worker1 --to 20ms --steps 5
"""
TRACE_EXAMPLES = """
dllm-tui trace passes.json         open it in https://ui.perfetto.dev
dllm-tui trace --json | jq '.traceEvents | length'
"""
WHY_EXAMPLES = """
dllm-tui why
dllm-tui why --json | jq -r .command
"""
MS = {"us": 1e-3, "ms": 1.0, "s": 1e3, "": 1.0}
MB_PER_S = {"kb/s": 1e-3, "mb/s": 1.0, "gb/s": 1e3, "mbit/s": 0.125, "gbit/s": 125.0}
ALL = "all"


def _links(snapshot: ClusterSnapshot) -> tuple[Link, ...]:
    return () if why_no_link(snapshot) else snapshot.links


LINKS = Table(
    columns=[
        Column("WORKER", lambda link: link.worker),
        Column("MODE", lambda link: link.mode),
        Column("LAB", lambda link: format_lab(link.lab) if link.lab else "off"),
        Column("PATH", way_text, wide=True),
        Column("WHY", lambda link: link.why, wide=True),
    ],
    name=lambda link: link.worker,
    rows=_links,
    none=lambda snapshot: f"{why_no_link(snapshot)}.",
)


@click.group(
    cls=Group,
    default="list",
    aliases={"show": "list", "set": "slow", "clear": "reset"},
    examples=EXAMPLES,
)
def links() -> None:
    """Show the links to workers, and simulate slower ones."""


@links.command(
    "list",
    shows=LINKS,
    as_json=lambda snapshot: {link.worker: link.lab for link in _links(snapshot)},
    watches=True,
)
@cluster_option
async def list_links(cluster: str) -> ClusterSnapshot:
    """List the links and their simulated limits."""
    return await current_snapshot(cluster)


@links.command("slow")
@click.argument("link", type=Name("links"))
@options(
    ("--latency", None, "Added one-way latency, such as 20ms.", "0ms"),
    ("--jitter", None, "Standard deviation of the latency, such as 2ms.", "0ms"),
    ("--rate", None, "Bandwidth each way, such as 30MB/s or 100Mbit/s."),
    ("--seed", click.IntRange(0), "Seed of the jitter.", 1),
)
@cluster_option
async def slow_link(
    client: ControllerClient,
    link: str,
    latency: str,
    jitter: str,
    rate: str | None,
    seed: int,
) -> dict[str, Any]:
    """Simulate a slower link to a worker.

    LINK is the name of a worker, or all. It stays so, whatever is launched next, until
    links reset or down.
    """
    wanted = Lab(
        latency_ms=quantity(latency, MS, "20ms"),
        jitter_ms=quantity(jitter, MS, "2ms"),
        rate_mb_s=quantity(rate, MB_PER_S, "30MB/s") if rate else 0.0,
        seed=seed,
    )
    require_possible(wanted)
    if is_off(wanted):
        raise UsageError(
            "No limit is given: there is nothing to simulate",
            "Give --latency, --jitter or --rate; links reset removes all.",
        )
    return await _applied(client, link, wanted)


@links.command("reset")
@click.argument("link", default=ALL, type=Name("links"))
@cluster_option
async def reset_link(client: ControllerClient, link: str) -> dict[str, Any]:
    """Remove simulated limits.

    Without LINK from all links.
    """
    return await _applied(client, link, None)


SWEPT = [
    Column("LATENCY", lambda one: format_ms(one.latency_ms), right=True),
    Column("MEASURED", lambda one: format_rate(one.tok_per_s).strip(), right=True),
    Column("PREDICTED", lambda one: format_rate(one.predicted_tok_per_s), right=True),
    Column("BAND", lambda one: _band_text(one), right=True),
    Column("TOKENS", lambda one: str(one.tokens), right=True),
    Column("NOTE", lambda one: _step_note(one)),
]


def _band_text(one: SweepPoint) -> str:
    return " to ".join(format_rate(end).strip() for end in (one.low, one.high))


def _step_note(one: SweepPoint) -> str:
    outside = "" if one.is_within or one.tok_per_s is None else "outside the band"
    return "; ".join(filter(None, (outside, "disturbed" if one.disturbed else "")))


def _sweep_lines(sweep: Sweep) -> Iterator[str]:
    yield from (*table_lines(SWEPT, sweep.points), "", f"{sweep_text(sweep)}.")


@links.command("sweep", shows=_sweep_lines, quiet=True)
@click.argument("link", default=ALL, type=Name("links"))
@options(
    ("--to", None, "The most added one-way latency.", "50ms"),
    ("--steps", click.IntRange(2, 101), "Steps from 0 up to that.", SWEEP_STEPS),
    ("--tokens", click.IntRange(8, 4096), "Longest answer, in tokens.", SWEEP_TOKENS),
    ("--csv", "FILE", "Write each step as a line."),
    ("--svg", "FILE", "Write the plot as a picture."),
)
@cluster_option
async def sweep_links(
    client: ControllerClient,
    link: str,
    to: str,
    steps: int,
    tokens: int,
    csv: str | None,
    svg: str | None,
) -> Sweep:
    """Measure the speed while a link gets slower step by step.

    The model that serves answers short prompts; measured speeds stand beside those
    predicted before. Afterwards, and after Ctrl-C, the limits are what they were, and
    the files have what was measured.
    """
    for target in filter(None, (csv, svg)):
        require_folder(target)
    to_ms = quantity(to, MS, "50ms")
    if not 0 < to_ms <= LAB_DELAY_MAX_MS:
        raise UsageError(
            f"--to {to} is not from 0 to {LAB_DELAY_MAX_MS / 1000:g} s",
            "Write it like 50ms.",
        )
    worker = None if link == ALL else link
    asked = SweepRequest(worker=worker, to_ms=to_ms, steps=steps, tokens=tokens)
    now, progress = None, ProgressLine()
    try:
        async with ticking(progress), aclosing(client.sweep(asked)) as states:
            async for now in states:
                if now.measuring is not None:
                    point = now.points[now.measuring]
                    title = f"+{point.latency_ms:g} ms"
                    progress.show(title, now.measuring / len(now.points))
    finally:
        # A late step may fail, or somebody has seen enough.
        if now is not None and now.measured:
            for name, text in (csv, sweep_csv(now)), (svg, sweep_svg(now)):
                if name:
                    write_document(Path(name), text)
                    say(f"Wrote {name}.")
    if now is None:
        raise DllmError("The sweep was cut off", "dllm-tui status says why.")
    return now


async def _applied(
    client: ControllerClient, link: str, wanted: Lab | None
) -> dict[str, Any]:
    await client.set_lab(None if link == ALL else link, wanted)
    what = format_lab(wanted) if wanted else "no limits"
    say(f"{'All links' if link == ALL else link}: {what}.")
    return {"link": link, "lab": wanted}


@click.command(cls=Command, watches=True, examples=TRACE_EXAMPLES)
@click.argument("file", required=False, type=click.Path(dir_okay=False))
@cluster_option
async def trace(client: ControllerClient, file: str | None, as_json: bool) -> None:
    """Export the latest token timings as a Chrome trace.

    Writes to FILE, or to standard output.
    """
    if file and as_json:
        raise click.UsageError("Give one of FILE and --json.")
    events = chrome_trace(await _passes(client))
    if file is None:
        emit_json(events)
    else:
        write_document(Path(file), to_json(events))
        say(f"Wrote {len(events['traceEvents'])} events to {file}.")


async def _passes(client: ControllerClient) -> dict[str, tuple[Pass, ...]]:
    if why := why_no_link(await current_snapshot(client.cluster)):
        raise DllmError(why)
    passes = await client.passes()
    if not any(passes.values()):
        raise DllmError(
            "No token has been measured yet",
            "Ask something first, for example: dllm-tui chat hello.",
        )
    return passes


PART_COLUMNS = [
    Column("PART", lambda part: f"{part.name}'s {part.part}"),
    Column("TIME", lambda part: format_ms(part.ms), right=True),
    Column("SHARE", lambda part: format_percent(part.share), right=True),
]


def _why_lines(found: Bottleneck) -> Iterator[str]:
    yield found.text
    if found.pass_ms is None or found.tok_per_s is None:
        return
    yield from ("", *table_lines(PART_COLUMNS, found.parts))
    speed, time = format_speed(found.tok_per_s), format_ms(found.pass_ms)
    yield from ("", f"Measured: the median pass takes {time}, which is {speed}.")
    if found.change is not None:
        yield from ("", "To make the change:", f"  {_change_command(found.change)}")


def _why_json(found: Bottleneck) -> dict[str, Any]:
    value: dict[str, Any] = msgspec.to_builtins(found)
    value["command"] = _change_command(found.change) if found.change else None
    return value


def _change_command(change: PlanChange) -> str:
    cluster = click.get_current_context().params["cluster"]
    named = () if cluster == DEFAULT_CLUSTER else ("--cluster", cluster)
    return up_command(change.plan, *named, "--replace", "--detach")


@click.command(
    cls=Command,
    shows=_why_lines,
    as_json=_why_json,
    watches=True,
    examples=WHY_EXAMPLES,
)
@cluster_option
async def why(client: ControllerClient, cluster: str) -> Bottleneck:
    """Show what a token waits for, and the change that helps most.

    The parts are measured, from the last answer. The gain is predicted, with the band
    that holds nine of ten. Changes nothing.
    """
    snapshot = await current_snapshot(cluster)
    if snapshot.state is not ClusterState.SERVING:
        raise DllmError("Nothing serves", "Launch a model: dllm-tui up MODEL.")
    return await client.why()
