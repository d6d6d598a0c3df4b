"""``dllm-tui demo``: the bundled model on two local workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from backends.state import Ask, ChatMessage, ChatRequest, Sampling
from tui.cli.chats import answer_text, ask
from tui.cli.command import (
    Command,
    Inherited,
    cluster_option,
    completing,
    refuse_with,
    refuse_without,
    run,
    tidily,
)
from tui.cli.models import require_model
from tui.cli.output import emit_json, say, show, shower, unseen
from tui.cli.status import measured_text
from tui.cli.up import BUSY, launched

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


class DemoOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command line."""

    model: str
    prompt: str
    max_tokens: int | None
    split: tuple[int, ...] | dict[str, int] | None
    as_json: bool


@click.command(cls=Command, quiet=True, examples=EXAMPLES)
@click.option(
    "--headless", is_flag=True, help="Ask one prompt, print the answer, stop."
)
@click.option("--prompt", metavar="TEXT", help=f"What to ask; else {PROMPT!r}.")
@click.option("--max-tokens", type=click.IntRange(1), help="Longest answer.")
@click.option(
    "--model",
    cls=Inherited,
    metavar="PATH",
    shell_complete=completing("models"),
    help="Another GGUF than the bundled one.",
)
@click.option("--split", metavar="N,N…", help="Whole layers per worker, e.g. 6,7.")
@click.option(
    "--theme",
    cls=Inherited,
    metavar="NAME",
    shell_complete=completing("themes"),
    help="Open in this theme.",
)
@click.option(
    "--no-mouse",
    cls=Inherited,
    is_flag=True,
    help="Leave the mouse to the terminal.",
)
@click.option(
    "--ascii",
    "ascii_only",
    cls=Inherited,
    is_flag=True,
    help="Draw with ASCII signs alone.",
)
@cluster_option
def demo(
    headless: bool,
    prompt: str | None,
    max_tokens: int | None,
    model: str | None,
    split: str | None,
    theme: str | None,
    no_mouse: bool,
    ascii_only: bool,
    cluster: str,
    as_json: bool,
) -> None:
    """Show a real two-worker cluster on this machine, on any laptop.

    Opens the console on it; with --headless (or --json) it asks one prompt and stops
    what it started.
    """
    from backends.client.client import ControllerClient
    from backends.demo import MODEL_PATH
    from backends.split.flags import parse_split

    if headless or as_json:
        refuse_with("--headless", "--theme", "--no-mouse", "--ascii")
    else:
        refuse_without("--headless", "--prompt", "--max-tokens")
    options = DemoOptions(
        model=run(require_model(model or str(MODEL_PATH))),
        prompt=prompt or PROMPT,
        max_tokens=max_tokens,
        split=parse_split(split) if split is not None else None,
        as_json=as_json,
    )
    client = ControllerClient(cluster=cluster)
    if headless or as_json:
        run(tidily(client, _headless(client, options)))
        return
    from tui.cli.main import import_console, open_console

    # Before the launch: nobody waits for it afterwards.
    import_console()
    run(tidily(client, _launch_if_idle(client, options)))
    open_console(
        model=options.model,
        theme=theme,
        mouse=not no_mouse,
        ascii_only=ascii_only,
        cluster=cluster,
    )


async def _headless(client: ControllerClient, options: DemoOptions) -> None:
    plan = await _plan(client, options)
    async with launched(client, plan, keep=False) as (serving, _):
        say(f"Serving; {measured_text(serving)}.")
        on_text = unseen if options.as_json else shower()
        answer = await ask(client, _request(options), on_text)
    if options.as_json:
        emit_json(_result(options, serving, answer))
    else:
        show()
        say(answer_text(answer))


async def _plan(client: ControllerClient, options: DemoOptions) -> Plan:
    """The demo's plan: as many workers as shares were given, else two.

    A GPU here is left out, so that the demo shows the same on any laptop.
    """
    found = await client.propose(Ask(model=options.model, workers=WORKERS))
    own = [s.device for s in found.split.shares if s.device.startswith("local/")]
    gpus = [device for device in own if device != "local/CPU"]
    split = options.split
    return await client.propose(
        Ask(
            model=options.model,
            workers=_workers(split),
            exclude=tuple(gpus),
            counts=None if isinstance(split, dict) else split,
            split=split if isinstance(split, dict) else None,
        )
    )


def _workers(split: tuple[int, ...] | dict[str, int] | None) -> int | None:
    if isinstance(split, dict):
        return None
    return WORKERS if split is None else len(split)


def _request(options: DemoOptions) -> ChatRequest:
    return ChatRequest(
        messages=(ChatMessage(role="user", content=options.prompt),),
        sampling=Sampling(temperature=0.0, max_tokens=options.max_tokens),
    )


def _result(
    options: DemoOptions, serving: ClusterSnapshot, answer: Answer
) -> dict[str, Any]:
    measured, engine = serving.measured, serving.engine
    return {
        "text": answer.text,
        "reasoning": answer.reasoning,
        "tokens": answer.timings.tokens,
        "tok_per_s": answer.timings.tok_per_s,
        "first_token_s": answer.timings.first_token_s,
        "load_s": sum(step.seconds or 0.0 for step in serving.steps),
        "model": options.model,
        "plan": {"layers": serving.planned},
        "measured": {"layers": measured.layers if measured else ()},
        "mismatches": measured.mismatches if measured else (),
        "engine": {
            "version": engine.version if engine else "",
            "rpc_protocol": engine.rpc_protocol if engine else "",
        },
    }


async def _launch_if_idle(client: ControllerClient, options: DemoOptions) -> None:
    if (await client.snapshot()).state in BUSY:
        say("A cluster is already running: opening the console on it.")
        return
    plan = await _plan(client, options)
    async with launched(client, plan, keep=True) as (serving, _):
        say(f"Serving {serving.api_url}; {measured_text(serving)}.")
