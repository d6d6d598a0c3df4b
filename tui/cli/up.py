"""``dllm-tui up``: launch a plan without the console."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click
import msgspec

from backends.errors import PlanError
from backends.state import Ask, FlashAttention, PairMode, ServerSettings
from tui.cli.options import Inherited, cluster_option, completing, server_options
from tui.cli.output import emit_json, json_option, run, say, show
from tui.cli.preview import preview_json, preview_text
from tui.cli.session import (
    cluster_json,
    launched,
    measured_text,
    require_model,
    required_draft,
    until_ended,
)

if TYPE_CHECKING:
    from backends.client.client import ControllerClient
    from backends.state import Plan

EXAMPLES = """
\b
Examples:
  dllm-tui up --model m.gguf --workers 2 --detach
  dllm-tui up --model m.gguf --split 6,7 --ctx 8192
  dllm-tui up --model m.gguf --peer mini --split local/MTL0=38,mini/MTL0=10
  dllm-tui up --model m.gguf --peer mini --dry-run
  dllm-tui up --model m.gguf --workers 0
  dllm-tui up --model m.gguf --context 32768 --cache-type-k q8_0 --cache-type-v q8_0
  dllm-tui up --model m.gguf --slots 4 --threads 6 --worker-threads 2
  dllm-tui up --model m.gguf --peer mini --draft small.gguf --draft-max 8
  dllm-tui up --model m.gguf --workers 3 -- --temp 0.2
  dllm-tui up --model m.gguf --peer mini --peer nuc --detach
  dllm-tui up --model m.gguf --head studio --peer mini
"""


class UpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the user wants of ``up``."""

    ask: Ask
    detach: bool
    replace: bool
    as_json: bool


@click.command(epilog=EXAMPLES)
@click.option(
    "--model",
    cls=Inherited,
    required=True,
    metavar="PATH",
    shell_complete=completing("models"),
    help="GGUF file to serve, or the name of a model found here.",
)
@click.option(
    "--workers",
    type=click.IntRange(0, 16),
    help="CPU workers to start here, to try things; 0: the head alone.",
)
@click.option(
    "--peer",
    "peers",
    multiple=True,
    metavar="NAME",
    shell_complete=completing("peers"),
    help="Peer to work (repeatable).",
)
@click.option(
    "--head",
    metavar="NAME",
    shell_complete=completing("heads"),
    help="Peer to run llama-server; else here.",
)
@click.option(
    "--split",
    metavar="N,N…|DEVICE=N…",
    help="Whole layers per device, the output counted as one more: by name, such as "
    "mini/MTL0=6,local/CPU=7, or in the order that --dry-run prints, the head's CPU "
    "left out: 6,7 for 12 layers.",
)
@click.option(
    "--exclude",
    multiple=True,
    metavar="DEVICE",
    shell_complete=completing("devices"),
    help="Device to leave out (repeatable).",
)
@server_options
@click.option("--port", type=click.IntRange(1, 65535), help="Port of the API.")
@click.option("--detach", is_flag=True, help="Return once it serves; it keeps running.")
@click.option("--replace", is_flag=True, help="Replace what runs now; clients wait.")
@click.option(
    "--dry-run", is_flag=True, help="Show plan, memory, commands; start none."
)
@click.option("--force", is_flag=True, help="Launch what is predicted not to fit, too.")
@click.option("--no-relay", is_flag=True, help="No metering between head and workers.")
@click.option(
    "--pair",
    type=click.Choice([mode.value for mode in PairMode]),
    help="Relays in pairs: with workers on other machines (auto), with those here too "
    "(always), never. Else as configured.",
)
@cluster_option
@json_option
@click.argument("server_args", nargs=-1, metavar="[-- LLAMA_SERVER_ARGS]")
def up(
    model: str,
    workers: int | None,
    peers: tuple[str, ...],
    head: str | None,
    split: str | None,
    exclude: tuple[str, ...],
    ctx: int | None,
    cache_type_k: str,
    cache_type_v: str,
    slots: int,
    flash_attention: str,
    threads: int | None,
    draft: str,
    draft_max: int,
    worker_threads: int | None,
    port: int | None,
    detach: bool,
    replace: bool,
    dry_run: bool,
    force: bool,
    no_relay: bool,
    pair: str | None,
    cluster: str,
    as_json: bool,
    server_args: tuple[str, ...],
) -> None:
    """Start workers and llama-server, split as asked, and serve.

    Without --detach it stays in the foreground, and Ctrl-C stops the cluster.
    """
    from backends.client.client import ControllerClient
    from backends.split.flags import parse_split
    from tui.cli.ending import tidily

    shares = parse_split(split) if split is not None else None
    ask = Ask(
        model=require_model(model),
        workers=workers,
        peers=peers or None,
        head=head,
        counts=None if isinstance(shares, dict) else shares,
        split=shares if isinstance(shares, dict) else None,
        exclude=exclude,
        worker_threads=worker_threads,
        ctx_size=ctx,
        server=ServerSettings(
            cache_type_k=cache_type_k,
            cache_type_v=cache_type_v,
            slots=slots,
            flash_attention=FlashAttention(flash_attention),
            threads=threads,
            draft=required_draft(draft),
            draft_max=draft_max,
        ),
        api_port=port,
        relay=not no_relay,
        pair=PairMode(pair) if pair else None,
        force=force,
        extra_args=server_args,
        directory=os.getcwd(),
    )
    options = UpOptions(ask=ask, detach=detach, replace=replace, as_json=as_json)
    client = ControllerClient(cluster=cluster)
    run(_dry_run(client, options) if dry_run else tidily(client, _up(client, options)))


async def _dry_run(client: ControllerClient, options: UpOptions) -> None:
    """Show what a launch would do; a controller started for it does not stay."""
    try:
        preview = await client.preview(await _plan(client, options.ask))
    finally:
        if client.started_controller:
            await client.shutdown(only_if_idle=True)
    if options.as_json:
        emit_json(preview_json(preview))
    else:
        show(preview_text(preview))


async def _up(client: ControllerClient, options: UpOptions) -> None:
    plan = await _plan(client, options.ask)
    preview = await client.preview(plan)
    if preview.refusal is not None:
        raise PlanError(preview.refusal.what, preview.refusal.hint)
    for note in preview.notes:
        say(note)
    async with launched(client, plan, keep=options.detach, replace=options.replace) as (
        serving,
        snapshots,
    ):
        if options.as_json:
            emit_json(cluster_json(serving))
        say(f"Serving {serving.api_url}; {measured_text(serving)}.")
        if not options.detach:
            say("Ctrl-C stops the cluster.")
            await until_ended(serving, snapshots)


async def _plan(client: ControllerClient, ask: Ask) -> Plan:
    if ask.peers or ask.head:
        await client.settled_peers()
    return await client.propose(ask)
