"""``dllm-tui chat``: ask what is serving."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from backends.errors import UsageError
from backends.state import ChatMessage, ChatRequest, Sampling
from tui.cli.options import cluster_option, completing
from tui.cli.output import emit_json, json_option, run, say, show, shower, unseen
from tui.cli.session import Answer, answer_text, ask

if TYPE_CHECKING:
    from collections.abc import Callable

EXAMPLES = """
\b
Examples:
  dllm-tui chat "What is a split?"
  dllm-tui chat --system "Answer in one word." "Sky colour?" --temperature 0
  cat question.txt | dllm-tui chat -
  dllm-tui chat --conversation sky "And at night?"    goes on; the console shows it
  dllm-tui chat --conversation sky --again 1          another answer to question 1

Without --conversation nothing is kept and nothing that was said before is sent along.
A question asked again keeps its answers, each with what followed it: chats pick goes
back to one.
"""


@click.command(epilog=EXAMPLES)
@click.argument("text", required=False)
@click.option("--system", metavar="TEXT", help="System prompt.")
@click.option("--max-tokens", type=click.IntRange(1), help="Longest answer.")
@click.option("--temperature", type=click.FloatRange(0), help="0 is greedy.")
@click.option("--seed", type=int, help="Seed of the sampler.")
@click.option(
    "--conversation",
    metavar="NAME",
    shell_complete=completing("chats"),
    help="Go on with this chat, or begin one of that name.",
)
@click.option(
    "--again",
    type=click.IntRange(1),
    metavar="NUMBER",
    help="Ask this question of the chat again, in other words where TEXT is given.",
)
@cluster_option
@json_option
def chat(
    text: str | None,
    system: str | None,
    max_tokens: int | None,
    temperature: float | None,
    seed: int | None,
    conversation: str | None,
    again: int | None,
    as_json: bool,
    cluster: str,
) -> None:
    """Ask the model that is serving; TEXT is - to read standard input."""
    prompt = sys.stdin.read() if text == "-" else text
    if again is not None and conversation is None:
        raise UsageError("--again asks in a chat", "Name it with --conversation.")
    if not (prompt or "").strip() and (prompt is not None or again is None):
        raise UsageError("The question is empty", "Give some text.")
    sampling = Sampling(temperature=temperature, max_tokens=max_tokens, seed=seed)
    if conversation is not None:
        from tui.cli.conversing import go_on

        index = None if again is None else again - 1
        on_text = _shown(as_json)
        work = go_on(
            conversation, prompt, system, sampling, cluster, on_text, again=index
        )
    else:
        first = [ChatMessage(role="system", content=system)] if system else []
        messages = (*first, ChatMessage(role="user", content=prompt or ""))
        request = ChatRequest(messages=messages, sampling=sampling)
        work = _chat(request, cluster, _shown(as_json))
    answer = run(work)
    if as_json:
        emit_json(answer)
    else:
        show()
        say(answer_text(answer))


def _shown(as_json: bool) -> Callable[[str], None]:
    return unseen if as_json else shower()


async def _chat(
    request: ChatRequest, cluster: str, on_text: Callable[[str], None]
) -> Answer:
    from backends.client.client import ControllerClient

    return await ask(ControllerClient(cluster=cluster), request, on_text)
