"""``dllm-tui models drafts``: what can draft for a model."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import click

from backends.client.client import ControllerClient
from backends.errors import UsageError
from backends.state import NGRAM_DRAFT, DraftCandidate, Drafts, DraftTrial
from backends.units import (
    format_bytes,
    format_count,
    format_factor,
    format_percent,
    format_rate,
    format_speed,
)
from tui.cli.command import Command, Name, options
from tui.cli.model_argument import require_model, searched
from tui.cli.output import say
from tui.widgets.safe_text import safe_line

EXAMPLES = """
dllm-tui models drafts big.gguf
dllm-tui models drafts big.gguf --json | jq '.candidates[].name'
dllm-tui models drafts big.gguf --measure    compare all of them again
dllm-tui up big.gguf --peer mini --draft small.gguf
"""
SAME = 1.03
"""A speedup within this factor makes no difference."""


@click.command(
    cls=Command, shows=lambda found: _lines(found), watches=True, examples=EXAMPLES
)
@click.argument("model", type=Name("models"))
@options(("--measure", bool, "Have its cluster (up --draft auto) measure again."))
async def drafts(client: ControllerClient, model: str, measure: bool) -> Drafts:
    """List draft models for a model (up --draft).

    A draft model has the vocabulary of the model, token by token, and is smaller than a
    quarter of it. Below each one are the results of up --draft auto on this machine, by
    network: speed with and without the draft, and the verdict.
    """
    return await _found(client, await require_model(model), measure=measure)


async def _found(client: ControllerClient, path: str, *, measure: bool) -> Drafts:
    if measure:
        plan = (await client.snapshot()).plan
        if plan is None or plan.model != path:
            raise UsageError(
                f"The cluster does not run {path}: its drafts cannot be measured",
                f"Launch it: dllm-tui up {path} --draft auto",
            )
        await client.measure_drafts()
        say("All drafts are measured again when nobody asks; dllm-tui status shows it.")
    await searched(client)
    return await client.models.drafts(path)


def _lines(found: Drafts) -> Iterator[str]:
    for method in found.heads:
        yield (
            f"The model has layers of its own to draft with (--draft mtp: {method}); "
            "they run where its last layers do."
        )
        yield from _trial_lines(found.head_found)
    if found.head_why_not:
        yield safe_line(f"No --draft mtp: {found.head_why_not}.")
    for one in found.candidates:
        yield _line(one)
        if not one.why_not and not one.head:
            yield from _trial_lines(one.found)
    yield f"{NGRAM_DRAFT:40} {'':>10}  {'no model needed':20} yes"
    yield from _trial_lines(found.ngram)
    if all(one.why_not for one in found.candidates):
        yield "No model found here can draft for it; --draft ngram needs none."


def _trial_lines(found: Sequence[DraftTrial]) -> Iterator[str]:
    newest = {(one.draft_max, one.network, one.slots): one for one in reversed(found)}
    for one in newest.values():
        yield safe_line(f"  auto: {trial_text(one)}")
    if not newest:
        yield "  auto: not measured yet"


def trial_text(one: DraftTrial) -> str:
    """``61.2 tok/s, 22.5 without (×2.72): pays · 71 % accepted · …``."""
    compared = ", not compared yet"
    if one.speedup:
        plain = format_rate(one.tok_per_s / one.speedup).strip()
        times = format_factor(one.speedup)
        compared = f", {plain} without ({times}): {_verdict(one.speedup)}"
    accepted = one.acceptance
    parts = (
        f"{format_speed(one.tok_per_s)}{compared}",
        "" if accepted is None else f"{format_percent(accepted)} accepted",
        f"{format_count(one.draft_max, 'token')} at a time",
        one.network,
        format_count(one.slots, "slot") if one.slots > 1 else "",
        time.strftime("%Y-%m-%d %H:%M", time.localtime(one.at)),
    )
    return " · ".join(filter(None, parts))


def _verdict(speedup: float) -> str:
    if speedup >= SAME:
        return "pays"
    return "costs more than it brings" if speedup * SAME < 1 else "makes no difference"


def _line(one: DraftCandidate) -> str:
    able = f"yes, as a head ({one.head})" if one.head else "yes"
    verdict = f"no: {one.why_not}" if one.why_not else able
    about = f"{one.arch} {one.file_type}"
    size = format_bytes(one.size_bytes)
    return safe_line(f"{one.name:40} {size:>10}  {about:20} {verdict}")
