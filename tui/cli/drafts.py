"""``dllm-tui models drafts``: what could guess ahead for a model."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from backends.state import DEFAULT_CLUSTER, NGRAM_DRAFT
from backends.units import (
    format_bytes,
    format_count,
    format_factor,
    format_percent,
    format_rate,
    format_speed,
)
from tui.cli.model_search import searched
from tui.cli.options import completing
from tui.cli.output import emit_json, json_option, run, show
from tui.cli.session import require_model
from tui.kit.safe_text import safe_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from backends.client.client import ControllerClient
    from backends.state import DraftCandidate, DraftFound, Drafts

EXAMPLES = """
\b
Examples:
  dllm-tui models drafts glm-4.7-flash
  dllm-tui models drafts big.gguf --json | jq '.candidates[] | select(.why_not == "")'
  dllm-tui up --model big.gguf --peer mini --draft small.gguf
"""


@click.command(epilog=EXAMPLES)
@click.argument("model", shell_complete=completing("models"))
@json_option
def drafts(model: str, as_json: bool) -> None:
    """List what could guess ahead for MODEL (up --draft), and why not the others.

    A draft speaks the very words of the model, compared token by token as llama-server
    does, and is smaller than a quarter of it. Below each stands what up --draft auto
    found of it on this machine, network by network: the speed with it and without, and
    whether it pays.
    """
    found = run(_found(require_model(model)))
    if as_json:
        emit_json(found)
        return
    for line in _lines(found):
        show(line)


async def _found(path: str) -> Drafts:
    from backends.client.client import ControllerClient
    from tui.cli.ending import tidily

    client = ControllerClient()
    return await tidily(client, _asked(client, path))


async def _asked(client: ControllerClient, path: str) -> Drafts:
    await searched(client)
    return await client.models.drafts(path)


def _lines(found: Drafts) -> Iterator[str]:
    for way in found.heads:
        yield (
            f"The model has layers of its own to guess with (--draft mtp: {way}); "
            "they run where its last layers do."
        )
        yield from _found_lines(found.head_found)
    if found.head_why_not:
        yield safe_line(f"No --draft mtp: {found.head_why_not}.")
    for one in found.candidates:
        yield _line(one)
        if not one.why_not and not one.head:
            yield from _found_lines(one.found)
    yield f"{NGRAM_DRAFT:40} {'':>10}  {'no model needed':20} yes"
    yield from _found_lines(found.ngram)
    if all(one.why_not for one in found.candidates):
        yield "No model found here could guess ahead for it; --draft ngram needs none."


def _found_lines(found: Sequence[DraftFound]) -> Iterator[str]:
    """What auto found of a draft: the newest of each length, network and cluster."""
    newest = {
        (one.draft_max, one.network, one.slots, one.cluster): one
        for one in reversed(found)
    }
    for one in newest.values():
        yield safe_line(f"  auto: {found_text(one)}")
    if not newest:
        yield "  auto: not tried yet"


def found_text(one: DraftFound) -> str:
    """``61.2 tok/s, 22.5 without (×2.72): pays · 71 % of guesses right · …``."""
    plain, times = one.plain_tok_per_s, one.speedup
    without = "" if plain is None else f", {format_rate(plain).strip()} without"
    factor = "" if times is None else f" ({format_factor(times)})"
    said = f": {one.verdict.value}" if one.verdict else ", not compared yet"
    right = one.acceptance
    told = (
        f"{format_speed(one.tok_per_s)}{without}{factor}{said}",
        "" if right is None else f"{format_percent(right)} of guesses right",
        f"{format_count(one.draft_max, 'token')} at a time",
        one.network,
        format_count(one.slots, "slot") if one.slots > 1 else "",
        f"cluster {one.cluster}" if one.cluster not in ("", DEFAULT_CLUSTER) else "",
        time.strftime("%Y-%m-%d %H:%M", time.localtime(one.at)),
    )
    return " · ".join(filter(None, told))


def _line(one: DraftCandidate) -> str:
    able = f"yes, as a head ({one.head})" if one.head else "yes"
    verdict = f"no: {one.why_not}" if one.why_not else able
    about = f"{one.arch} {one.file_type}"
    size = format_bytes(one.size_bytes)
    return safe_line(f"{one.name:40} {size:>10}  {about:20} {verdict}")
