"""``dllm-tui demo``: the bundled model on two local workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from backends.state import Ask, ChatMessage, ChatRequest, Sampling
from tui.cli.chats import answer_text, asked
from tui.cli.command import (
    Command,
    Inherited,
    Name,
    cluster_option,
    console_options,
    options,
    refuse_with,
    refuse_without,
    run,
    tidily,
)
from tui.cli.model_argument import require_model
from tui.cli.output import emit_json, say, show, shower, unseen
from tui.cli.status import measured_text
from tui.cli.up import BUSY, launched, shares

if TYPE_CHECKING:
    from backends.client.client import ControllerClient
    from backends.state import ClusterSnapshot, Plan
    from tui.cli.chats import Answer

EXAMPLES = """
dllm-tui demo
dllm-tui demo --headless --prompt "What is a split?"
dllm-tui demo --headless --prompt "How do I launch?" --split 4,4,5 --json
"""

PROMPT = "What is a split?"
WORKERS = 2


@click.command(cls=Command, quiet=True, examples=EXAMPLES)
@options(
    ("--headless", bool, "Ask one prompt, print the answer and stop."),
    ("--prompt", "TEXT", "The prompt.", PROMPT),
    ("--max-tokens", click.IntRange(1), "Longest answer, in tokens."),
)
@click.option(
    "--model",
    cls=Inherited,
    metavar="PATH",
    type=Name("models"),
    help="Model to use instead of the bundled one.",
)
@options(("--split", "N,N…", "Whole layers per worker, such as 6,7."))
@console_options
@cluster_option
def demo(
    headless: bool,
    prompt: str,
    max_tokens: int | None,
    model: str | None,
    split: str | None,
    theme: str | None,
    no_mouse: bool,
    ascii_only: bool,
    cluster: str,
    as_json: bool,
) -> None:
    """Try it: a real two-worker cluster on this machine.

    Opens the console; with --headless (or --json) it asks one prompt and stops what it
    started.
    """
    from backends.client.client import ControllerClient
    from backends.demo import MODEL_PATH

    asks = headless or as_json
    if asks:
        refuse_with("--headless", "--theme", "--no-mouse", "--ascii")
    else:
        refuse_without("--headless", "--prompt", "--max-tokens")
    client = ControllerClient(cluster=cluster)
    path = run(require_model(model or str(MODEL_PATH)))
    ask = Ask(model=path, workers=WORKERS, **shares(split))
    if asks:
        request = ChatRequest(
            messages=(ChatMessage(role="user", content=prompt),),
            sampling=Sampling(temperature=0.0, max_tokens=max_tokens),
        )
        run(tidily(client, _headless(client, ask, request, as_json=as_json)))
        return
    from tui.cli.main import import_console, open_console

    # Before the launch: nobody waits for it afterwards.
    import_console()
    run(tidily(client, _launch_if_idle(client, ask)))
    open_console(
        model=path,
        theme=theme,
        mouse=not no_mouse,
        ascii_only=ascii_only,
        cluster=cluster,
    )


async def _headless(
    client: ControllerClient, ask: Ask, request: ChatRequest, *, as_json: bool
) -> None:
    plan = await _plan(client, ask)
    async with launched(client, plan, keep=False) as (serving, _):
        say(f"Serving; {measured_text(serving)}.")
        answer = await asked(client, request, unseen if as_json else shower())
    if as_json:
        emit_json(_result(serving, answer))
    else:
        show()
        say(answer_text(answer))


async def _plan(client: ControllerClient, ask: Ask) -> Plan:
    """The demo's plan: as many workers as shares were given, else two.

    A GPU here is left out, so that the demo shows the same on any laptop.
    """
    simple = Ask(model=ask.model, workers=WORKERS)
    found = (await client.propose(simple)).split.shares
    gpus = [s.device for s in found if s.device.startswith("local/")]
    workers = len(ask.counts) if ask.counts else None if ask.split else WORKERS
    exclude = tuple(device for device in gpus if device != "local/CPU")
    return await client.propose(
        msgspec.structs.replace(ask, workers=workers, exclude=exclude)
    )


def _result(serving: ClusterSnapshot, answer: Answer) -> dict[str, Any]:
    measured, engine = serving.measured, serving.engine
    return {
        "text": answer.text,
        "reasoning": answer.reasoning,
        "tokens": answer.timings.tokens,
        "tok_per_s": answer.timings.tok_per_s,
        "first_token_s": answer.timings.first_token_s,
        "load_s": sum(step.seconds or 0.0 for step in serving.steps),
        "model": serving.plan.model if serving.plan else "",
        "plan": {"layers": serving.planned},
        "measured": {"layers": measured.layers if measured else ()},
        "mismatches": measured.mismatches if measured else (),
        "engine": {
            "version": engine.version if engine else "",
            "rpc_protocol": engine.rpc_protocol if engine else "",
        },
    }


async def _launch_if_idle(client: ControllerClient, ask: Ask) -> None:
    if (await client.snapshot()).state in BUSY:
        say("A cluster is already running: opening the console on it.")
        return
    plan = await _plan(client, ask)
    async with launched(client, plan, keep=True) as (serving, _):
        say(f"Serving {serving.api_url}; {measured_text(serving)}.")
