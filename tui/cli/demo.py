"""``dllm-tui demo``: a small real model on two local workers."""

from __future__ import annotations

import time
from typing import Any

import click
import msgspec

from backends.client.client import ControllerClient
from backends.errors import DllmError, UsageError
from backends.models.download import THERE
from backends.paths import user_paths
from backends.state import (
    Ask,
    ChatRequest,
    ClusterSnapshot,
    Plan,
)
from backends.units import format_seconds
from tui.cli.chats import Answer, answer_text, asked
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
from tui.cli.engine import require_engine
from tui.cli.model_argument import require_model
from tui.cli.model_get import got
from tui.cli.output import emit_json, say, show, shower, unseen
from tui.cli.plan import shares
from tui.cli.status import measured_text
from tui.cli.up import BUSY, launched

EXAMPLES = """
dllm-tui demo
dllm-tui demo --headless --prompt "Why is the sky blue?"
dllm-tui demo --headless --split 16,15
dllm-tui demo --headless --bundled --split 6,7  # in a checkout
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
    help="Model to use instead.",
)
@options(
    ("--bundled", bool, "Use a checkout's model of 5 million parameters."),
    ("--split", "N,N…", "Whole layers per worker, such as 16,15."),
)
@console_options
@cluster_option
def demo(
    headless: bool,
    prompt: str,
    max_tokens: int | None,
    model: str | None,
    bundled: bool,
    split: str | None,
    theme: str | None,
    no_mouse: bool,
    ascii_only: bool,
    record: str | None,
    no_text: bool,
    cluster: str,
    as_json: bool,
) -> None:
    """Try it: a real two-worker cluster on this machine.

    Where no llama.cpp is here it is got, or built. The model is SmolLM2-135M-Instruct,
    a download of 94 MB the first time; without network, in a checkout, it is the one
    bundled there. Opens the console; with --headless (or --json) it asks one prompt and
    stops what it started.
    """
    if model:
        refuse_with("--model", "--bundled")
    asks = headless or as_json
    if asks:
        refuse_with("--headless", "--theme", "--no-mouse", "--ascii", "--record")
    else:
        refuse_without("--headless", "--prompt", "--max-tokens")
    client = ControllerClient(cluster=cluster)
    if asks:
        run(require_engine(user_paths()))
        path = run(_model_path(model, bundled=bundled))
        ask = Ask(model=path, workers=WORKERS, **shares(split))
        request = ChatRequest.greedy(prompt, max_tokens)
        run(tidily(client, _headless(client, ask, request, as_json=as_json)))
        return
    from tui.cli.main import import_console, open_console

    # Before the launch: nobody waits for it afterwards.
    import_console()
    opened = run(tidily(client, _launch_if_idle(client, model, split, bundled=bundled)))
    open_console(
        model=opened,
        theme=theme,
        mouse=not no_mouse,
        ascii_only=ascii_only,
        cluster=cluster,
        record=record,
        words=not no_text,
    )


async def _headless(
    client: ControllerClient, ask: Ask, request: ChatRequest, *, as_json: bool
) -> None:
    plan = await _plan(client, ask)
    async with launched(client, plan, keep=False) as (serving, _, _):
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


async def _launch_if_idle(
    client: ControllerClient, model: str | None, split: str | None, *, bundled: bool
) -> str | None:
    if (await client.snapshot()).state in BUSY:
        say("A cluster is already running: opening the console on it.")
        return None
    await require_engine(user_paths())
    path = await _model_path(model, bundled=bundled)
    plan = await _plan(client, Ask(model=path, workers=WORKERS, **shares(split)))
    async with launched(client, plan, keep=True) as (serving, _, _):
        say(f"Serving {serving.api_url}; {measured_text(serving)}.")
    return path


async def _model_path(model: str | None, *, bundled: bool) -> str:
    """The model of the demo; it is downloaded if need be and if that can be done."""
    from backends.config import load_config
    from backends.demo import MODEL_PATH, is_bundled
    from backends.models.download import DEMO_SOURCE, models_folder

    if bundled and not is_bundled():
        raise UsageError(
            "Only a checkout of dllm-tui has the bundled model",
            "Leave --bundled out, or name a model: --model FILE.",
        )
    if model or bundled:
        return await require_model(model or str(MODEL_PATH))
    began = time.monotonic()
    try:
        found = await got(
            DEMO_SOURCE, models_folder(load_config(user_paths()).model_dirs)
        )
    except DllmError as error:
        if not is_bundled():
            hint = f"{error.hint} Or name a model that is here: --model FILE."
            raise DllmError(error.what, hint) from error
        say(f"{error} Serving the bundled model of 5 million parameters instead.")
        return str(MODEL_PATH)
    if found.verified_by != THERE:
        took = format_seconds(time.monotonic() - began)
        say(f"Got {found.path} in {took} ({found.verified_by}).")
    return found.path
