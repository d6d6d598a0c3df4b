"""``dllm-tui demo``: the bundled model on two local workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from backends.state import Ask, ChatMessage, ChatRequest, LayerRange, Sampling
from tui.cli.ending import tidily
from tui.cli.options import Inherited, cluster_option, completing
from tui.cli.output import emit_json, json_option, run, say, show, shower, unseen
from tui.cli.session import (
    BUSY,
    answer_text,
    ask,
    launched,
    measured_text,
    require_model,
)

if TYPE_CHECKING:
    from backends.client.client import ControllerClient
    from backends.state import ClusterSnapshot, Plan
    from tui.cli.session import Answer

EXAMPLES = """
\b
Examples:
  dllm-tui demo
  dllm-tui demo --headless --prompt "What is a split?"
  dllm-tui demo --headless --prompt "How do I launch?" --split 4,4,5 --json
"""

PROMPT = "What is a split?"
WORKERS = 2


class Layers(msgspec.Struct, frozen=True):
    """Layer ranges, as the JSON result shows them."""

    layers: tuple[LayerRange, ...]


class EngineVersion(msgspec.Struct, frozen=True):
    """Which llama.cpp answered."""

    version: str
    rpc_protocol: str


class DemoResult(msgspec.Struct, frozen=True, kw_only=True):
    """What ``demo --headless --json`` prints."""

    text: str
    reasoning: str
    tokens: int
    tok_per_s: float
    first_token_s: float | None
    load_s: float
    model: str
    plan: Layers
    measured: Layers
    mismatches: tuple[str, ...]
    engine: EngineVersion


class DemoOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked of the demo."""

    model: str
    prompt: str
    max_tokens: int | None
    split: tuple[int, ...] | dict[str, int] | None
    cluster: str
    as_json: bool


@click.command(epilog=EXAMPLES)
@click.option("--headless", is_flag=True, help="Ask one prompt, print it, stop.")
@click.option("--prompt", default=PROMPT, show_default=True, help="What to ask.")
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
@json_option
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
    """Show a real two-worker cluster on this machine, on any laptop.

    Opens the console on it; with --headless it asks one prompt and stops what it
    started.
    """
    from backends.demo import MODEL_PATH
    from backends.split.flags import parse_split

    options = DemoOptions(
        model=require_model(model or str(MODEL_PATH)),
        prompt=prompt,
        max_tokens=max_tokens,
        split=parse_split(split) if split is not None else None,
        cluster=cluster,
        as_json=as_json,
    )
    if headless or as_json:
        run(_headless(options))
    else:
        _console(options, theme=theme, mouse=not no_mouse, ascii_only=ascii_only)


async def _headless(options: DemoOptions) -> None:
    """Launch, ask once, stop; the result on stdout, everything else on stderr."""
    from backends.client.client import ControllerClient

    client = ControllerClient(cluster=options.cluster)
    await tidily(client, _headless_on(client, options))


async def _headless_on(client: ControllerClient, options: DemoOptions) -> None:
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
    """As many as shares were given; those named are found by their names."""
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
) -> DemoResult:
    measured, engine = serving.measured, serving.engine
    return DemoResult(
        text=answer.text,
        reasoning=answer.reasoning,
        tokens=answer.timings.tokens,
        tok_per_s=answer.timings.tok_per_s,
        first_token_s=answer.timings.first_token_s,
        load_s=sum(step.seconds or 0.0 for step in serving.steps),
        model=options.model,
        plan=Layers(serving.planned),
        measured=Layers(measured.layers if measured else ()),
        mismatches=measured.mismatches if measured else (),
        engine=EngineVersion(
            engine.version if engine else "", engine.rpc_protocol if engine else ""
        ),
    )


def _console(
    options: DemoOptions, *, theme: str | None, mouse: bool, ascii_only: bool
) -> None:
    """Launch the demo unless something runs already, then open the console."""
    from tui.cli.main import load_console

    open_console = load_console()
    run(_launch_if_idle(options))
    open_console(
        model=options.model,
        theme=theme,
        mouse=mouse,
        ascii_only=ascii_only,
        cluster=options.cluster,
    )


async def _launch_if_idle(options: DemoOptions) -> None:
    from backends.client.client import ControllerClient

    client = ControllerClient(cluster=options.cluster)
    await tidily(client, _launch_if_idle_on(client, options))


async def _launch_if_idle_on(client: ControllerClient, options: DemoOptions) -> None:
    if (await client.snapshot()).state in BUSY:
        say("A cluster is running already: opening the console on it.")
        return
    plan = await _plan(client, options)
    async with launched(client, plan, keep=True) as (serving, _):
        say(f"Serving {serving.api_url}; {measured_text(serving)}.")
