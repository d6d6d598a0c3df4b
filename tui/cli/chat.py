"""``dllm-tui chat``: ask what is serving."""

from __future__ import annotations

import sys

import click

from backends.errors import UsageError
from backends.state import ChatMessage, ChatRequest, Sampling
from tui.cli.output import emit_json, json_option, printable, run, say
from tui.cli.session import Answer, ask, figures

EXAMPLES = """
\b
Examples:
  dllm-tui chat "What is a split?"
  dllm-tui chat --system "Answer in one word." "Sky colour?" --temperature 0
  cat question.txt | dllm-tui chat -
"""


@click.command(epilog=EXAMPLES)
@click.argument("text")
@click.option("--system", metavar="TEXT", help="System prompt.")
@click.option("--max-tokens", type=click.IntRange(1), help="Longest answer.")
@click.option("--temperature", type=click.FloatRange(0), help="0 is greedy.")
@click.option("--seed", type=int, help="Seed of the sampler.")
@json_option
def chat(
    text: str,
    system: str | None,
    max_tokens: int | None,
    temperature: float | None,
    seed: int | None,
    as_json: bool,
) -> None:
    """Ask the model that is serving; TEXT is - to read standard input."""
    prompt = sys.stdin.read() if text == "-" else text
    if not prompt.strip():
        raise UsageError("The question is empty", "Give some text.")
    first = [ChatMessage(role="system", content=system)] if system else []
    request = ChatRequest(
        messages=(*first, ChatMessage(role="user", content=prompt)),
        sampling=Sampling(temperature=temperature, max_tokens=max_tokens, seed=seed),
    )
    answer = run(_chat(request, as_json=as_json))
    if as_json:
        emit_json(answer)
    else:
        click.echo()
        say(figures(answer))


async def _chat(request: ChatRequest, *, as_json: bool) -> Answer:
    from backends.controller.client import ControllerClient

    def show(text: str) -> None:
        if not as_json:
            click.echo(printable(text), nl=False)

    return await ask(ControllerClient(), request, show)
