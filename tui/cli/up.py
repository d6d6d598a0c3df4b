"""``dllm-tui up``: launch a plan without the console."""

from __future__ import annotations

import click
import msgspec

from tui.cli.output import emit_json, json_option, run, say
from tui.cli.session import cluster_json, launched, require_model, until_ended, verdict

EXAMPLES = """
\b
Examples:
  dllm-tui up --model m.gguf --workers 2 --detach
  dllm-tui up --model m.gguf --split 6,7 --ctx 8192
  dllm-tui up --model m.gguf --workers 3 -- --temp 0.2
  dllm-tui up --model m.gguf --peer mini --peer nuc --detach
  dllm-tui up --model m.gguf --head studio --peer mini
"""


class UpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked of ``up``."""

    model: str
    workers: int | None
    peers: tuple[str, ...]
    head: str | None
    counts: tuple[int, ...] | None
    ctx_size: int | None
    port: int | None
    detach: bool
    replace: bool
    relay: bool
    as_json: bool
    server_args: tuple[str, ...]


@click.command(epilog=EXAMPLES)
@click.option("--model", required=True, metavar="PATH", help="GGUF file to serve.")
@click.option("--workers", type=click.IntRange(1, 16), help="Workers to start here.")
@click.option(
    "--peer", "peers", multiple=True, metavar="NAME", help="Peer to work (repeatable)."
)
@click.option("--head", metavar="NAME", help="Peer to run llama-server; else here.")
@click.option(
    "--split",
    metavar="N,N…",
    help="Whole layers per worker, the output counted as one more: 6,7 for 12 layers.",
)
@click.option("--ctx", type=click.IntRange(16), help="Context length in tokens.")
@click.option("--port", type=click.IntRange(1, 65535), help="Port of the API.")
@click.option("--detach", is_flag=True, help="Return once it serves; it keeps running.")
@click.option("--replace", is_flag=True, help="Stop what runs now first.")
@click.option("--no-relay", is_flag=True, help="No metering between head and workers.")
@json_option
@click.argument("server_args", nargs=-1, metavar="[-- LLAMA_SERVER_ARGS]")
def up(
    model: str,
    workers: int | None,
    peers: tuple[str, ...],
    head: str | None,
    split: str | None,
    ctx: int | None,
    port: int | None,
    detach: bool,
    replace: bool,
    no_relay: bool,
    as_json: bool,
    server_args: tuple[str, ...],
) -> None:
    """Start workers and llama-server, split as asked, and serve.

    Without --detach it stays in the foreground, and Ctrl-C stops the cluster.
    """
    from backends.split.flags import parse_counts

    options = UpOptions(
        model=require_model(model),
        workers=workers,
        peers=peers,
        head=head,
        counts=parse_counts(split) if split else None,
        ctx_size=ctx,
        port=port,
        detach=detach,
        replace=replace,
        relay=not no_relay,
        as_json=as_json,
        server_args=server_args,
    )
    run(_up(options))


async def _up(options: UpOptions) -> None:
    from backends.controller.client import ControllerClient

    client = ControllerClient()
    if options.peers or options.head:
        await client.settled_peers()
    plan = await client.propose(
        options.model,
        workers=options.workers,
        peers=options.peers or None,
        head=options.head,
        counts=options.counts,
        ctx_size=options.ctx_size,
        api_port=options.port,
        relay=options.relay,
        extra_args=options.server_args,
    )
    async with launched(client, plan, keep=options.detach, replace=options.replace) as (
        serving,
        snapshots,
    ):
        if options.as_json:
            emit_json(cluster_json(serving))
        say(f"Serving {serving.api_url}; {verdict(serving)}.")
        if not options.detach:
            say("Ctrl-C stops the cluster.")
            await until_ended(snapshots)
