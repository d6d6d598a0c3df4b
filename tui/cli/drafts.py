"""``dllm-tui models drafts``: what could guess ahead for a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from backends.units import format_bytes
from tui.cli.model_search import searched
from tui.cli.options import completing
from tui.cli.output import emit_json, json_option, run, show
from tui.cli.session import require_model
from tui.kit.safe_text import safe_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backends.client.client import ControllerClient
    from backends.state import DraftCandidate, Drafts

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
    does, and is smaller than a quarter of it.
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
    if found.head_why_not:
        yield safe_line(f"No --draft mtp: {found.head_why_not}.")
    yield from map(_line, found.candidates)
    if all(one.why_not for one in found.candidates):
        yield "No model found here could guess ahead for it; --draft ngram needs none."


def _line(one: DraftCandidate) -> str:
    able = f"yes, as a head ({one.head})" if one.head else "yes"
    verdict = f"no: {one.why_not}" if one.why_not else able
    about = f"{one.arch} {one.file_type}"
    size = format_bytes(one.size_bytes)
    return safe_line(f"{one.name:40} {size:>10}  {about:20} {verdict}")
