"""``dllm-tui race``: one prompt for two plans, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import aclosing
from typing import Any, NamedTuple

import click
import msgspec

from backends.bench.race_verdict import NAMES, RaceVerdict, figures_text, verdict_of
from backends.client.client import ControllerClient
from backends.errors import ControllerError, UsageError
from backends.paths import user_paths
from backends.plan_files import find_plan
from backends.split.cost import band_text
from backends.split.layout import counted_text
from backends.state import Ask, ClusterState, Plan, Step
from backends.state.races import (
    RACE_PROMPT,
    RACE_TOKENS,
    RACE_TOKENS_MAX,
    Contestant,
    Race,
    RaceRequest,
    RaceSide,
    RaceStage,
)
from backends.units import format_rate, format_seconds, three_figures
from tui.cli.command import Command, Name, cluster_option, options
from tui.cli.model_argument import require_model
from tui.cli.output import Column, on_terminal, say, show, shower, table_lines, unseen
from tui.cli.plan import METHODS
from tui.cli.progress import ProgressLine, ticking
from tui.model.contestants import (
    BEST,
    NOW,
    as_it_is,
    best_of,
    saved,
    side_title,
    with_draft,
    with_split,
)

EXAMPLES = """
dllm-tui race                              what serves against the best plan
dllm-tui race --split 9,4                  what serves against another split
dllm-tui race --split 6,7 --split 9,4
dllm-tui race m.gguf --draft none --draft ngram --prompt "Count to twenty."
dllm-tui race --plan evening --plan ./theirs.toml --json
"""


class _Result(NamedTuple):
    race: Race
    verdict: RaceVerdict


def _row_columns() -> list[Column]:
    def of(figure: Any) -> Any:
        return lambda row: figure(row[1].figures) if row[1].figures else ""

    def trips(figures: Any) -> str:
        told = figures.trips_per_token
        return "" if told is None else three_figures(told)

    def first(figures: Any) -> str:
        told = figures.first_token_s
        return "" if told is None else format_seconds(told)

    return [
        Column("", lambda row: row[0]),
        Column("PLAN", lambda row: row[1].name),
        Column("TOK/S", of(lambda f: format_rate(f.tok_per_s).strip()), right=True),
        Column("PREDICTED", lambda row: _predicted(row[1]), right=True),
        Column("FIRST TOKEN", of(first), right=True),
        Column("TOKENS", of(lambda f: str(f.tokens)), right=True),
        Column("TRIPS/TOKEN", of(trips), right=True),
        Column("LAUNCH", of(lambda f: _launch(f.launch_s)), right=True),
        Column(
            "LAYERS", lambda row: counted_text(p.split) if (p := row[1].plan) else ""
        ),
    ]


def _predicted(side: RaceSide) -> str:
    return band_text(side.predicted) if side.predicted else ""


def _launch(launch_s: float) -> str:
    return format_seconds(launch_s) if launch_s else "ran already"


def _lines(result: _Result) -> Iterator[str]:
    rows = list(zip(NAMES, result.race.sides, strict=True))
    yield from ("", *table_lines(_row_columns(), rows), "")
    for name, side in rows:
        if side.failure is not None:
            yield f"{name} failed: {side.failure.sentence}"
    yield f"{result.verdict.text}."


def _json(result: _Result) -> dict[str, Any]:
    value: dict[str, Any] = msgspec.to_builtins(result.race)
    for side, told in zip(result.race.sides, value["sides"], strict=True):
        del told["pieces"]
        told["text"] = side.text
    return {**value, "verdict": result.verdict}


@click.command(
    cls=Command,
    shows=_lines,
    as_json=_json,
    fails=lambda result: any(side.failure for side in result.race.sides),
    quiet=True,
    examples=EXAMPLES,
)
@click.argument("MODEL", metavar="[MODEL]", required=False, type=Name("models"))
@options(
    (
        "--plan plans",
        Name("plans", "PLAN"),
        f"A plan to race: {NOW} (what serves), {BEST} (as predicted), a saved one, a "
        "launch or file.toml (repeatable).",
    ),
    ("--split splits", "N,N…|DEVICE=N…", "Other layers to race (repeatable)."),
    (
        "--draft drafts",
        Name("models", "MODEL|ngram|mtp|none"),
        "Another speculation method to race (repeatable).",
    ),
    ("--prompt", "TEXT", "The prompt.", RACE_PROMPT),
    (
        "--tokens",
        click.IntRange(1, RACE_TOKENS_MAX),
        "Longest answer, in tokens.",
        RACE_TOKENS,
    ),
)
@cluster_option
async def race(
    client: ControllerClient,
    model: str | None,
    plans: tuple[str, ...],
    splits: tuple[str, ...],
    drafts: tuple[str, ...],
    prompt: str,
    tokens: int,
    as_json: bool,
) -> _Result:
    """Race two plans of one model on one prompt.

    Each is launched, answers greedily, and makes way for the other. Then what served
    before serves again; so it does after Ctrl-C. Clients of the API wait meanwhile.
    Without MODEL it is the one that serves. With one plan the other is what serves.
    """
    asked = RaceRequest(
        contestants=await _contestants(client, model, plans, splits, drafts),
        prompt=prompt,
        tokens=tokens,
    )
    now = await _watched(client, asked, quiet=as_json)
    if client.started_controller:
        await client.shutdown(only_if_idle=True)
    return _Result(now, verdict_of(now))


async def _contestants(
    client: ControllerClient,
    model: str | None,
    plans: tuple[str, ...],
    splits: tuple[str, ...],
    drafts: tuple[str, ...],
) -> tuple[Contestant, Contestant]:
    base = await _base(client, model)
    found = [await _planned(client, base, name) for name in plans]
    found += [with_split(base, typed) for typed in splits]
    for draft in drafts:
        method = draft if draft in METHODS else await require_model(draft)
        found.append(with_draft(base, method))
    if not found:
        found = [await _planned(client, base, BEST)]
    if len(found) == 1:
        found = [as_it_is(base), *found]
    if len(found) > 2:
        raise UsageError(
            f"A race has two plans, not {len(found)}",
            "Leave some out; dllm-tui bench compares many.",
        )
    return found[0], found[1]


async def _base(client: ControllerClient, model: str | None) -> Plan:
    """The plan that serves; of a MODEL that does not, the one ``up`` would launch."""
    running = None
    if await client.running() or client.left_processes():
        now = await client.snapshot()
        running = now.plan if now.state is ClusterState.SERVING else None
    if model is None:
        if running is None:
            raise ControllerError(
                "Nothing serves that could race", "Name a MODEL, or launch one: up."
            )
        return running
    path = await require_model(model)
    if running is not None and running.model == path:
        return running
    await client.settled_peers()
    return await client.propose(Ask(model=path))


async def _planned(client: ControllerClient, base: Plan, name: str) -> Contestant:
    if name == NOW:
        return as_it_is(base)
    if name == BEST:
        return best_of(base, await client.best(base))
    paths = user_paths()
    kept = find_plan(name, paths.plans_dir, paths.launches_dir)
    return saved(kept.name, kept.plan)


async def _watched(
    client: ControllerClient, asked: RaceRequest, *, quiet: bool
) -> Race:
    """Print the answers as they come, and the steps between them on stderr."""
    now, progress = Race.of(asked), ProgressLine()
    told: list[RaceStage | None] = [None, None]
    show_text = [unseen if quiet else shower() for _ in NAMES]
    shown = [0, 0]
    async with ticking(progress), aclosing(client.race(asked)) as states:
        async for now in states:
            for at, side in enumerate(now.sides):
                if side.stage is not told[at]:
                    told[at] = side.stage
                    progress.clear()
                    _tell(NAMES[at], side, ends_text=not quiet)
                if side.stage is RaceStage.LAUNCHING:
                    _show_step(progress, f"{NAMES[at]}: ", side.step)
                for piece in side.pieces[shown[at] :]:
                    show_text[at](piece.text)
                shown[at] = len(side.pieces)
            if now.ended:
                _show_step(progress, "Going back: ", now.going_back)
    return now


def _show_step(progress: ProgressLine, label: str, step: Step | None) -> None:
    if step is not None and on_terminal():
        progress.show(
            f"{label}{step.title}", step.progress, step.detail, since=step.started_at
        )


def _tell(name: str, side: RaceSide, *, ends_text: bool) -> None:
    if side.stage is RaceStage.LAUNCHING:
        say(side_title(name, side))
    elif side.stage is RaceStage.DONE and side.figures is not None:
        if ends_text:
            show()
        say(figures_text(side.figures))
    elif side.stage is RaceStage.FAILED and side.failure is not None:
        say(f"{name} failed: {side.failure.sentence}")
