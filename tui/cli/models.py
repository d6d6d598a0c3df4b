"""``dllm-tui models``: the GGUF files found here and on peers, and what they hold."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import click
from msgspec.structs import asdict

from backends.units import format_bytes
from tui.cli.drafts import drafts
from tui.cli.inspect import inspect, resolve
from tui.cli.model_cache import cache, seed
from tui.cli.model_search import searched
from tui.cli.model_thin import thin
from tui.cli.options import completing
from tui.cli.output import emit_json, json_option, run, say, show

if TYPE_CHECKING:
    from pathlib import Path

    from backends.models.compare import Comparison
    from backends.models.verify import VerifiedFile, VerifiedModel
    from backends.state import ModelCatalogue, ModelFile

EXAMPLES = """
\b
Examples:
  dllm-tui models list
  dllm-tui models list --json | jq '.models[].path'
  dllm-tui models info glm-4.7-flash         layers, quants, KV per token
  dllm-tui models drafts glm-4.7-flash       what can draft for it
  dllm-tui models verify glm-4.7-flash       every byte, against what its store says
  dllm-tui models verify big.gguf --quick    are all parts and tensors there?
  dllm-tui models verify big.gguf --peer mini    does mini hold the same bytes?

models verify gives exit code 1 for a model that is damaged, not whole, or other bytes
on a peer.
"""

DIFFERENCES_SHOWN = 20


@click.group(epilog=EXAMPLES, invoke_without_command=True)
@json_option
@click.pass_context
def models(ctx: click.Context, as_json: bool) -> None:
    """List models, look into them, verify their bytes; without a command, list."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_models, as_json=as_json)


@models.command("list", epilog=EXAMPLES)
@json_option
def list_models(as_json: bool) -> None:
    """List the models found: name, size, quants, layers, who holds them."""
    catalogue = run(_searched())
    if as_json:
        emit_json(catalogue)
        return
    for model in catalogue.models:
        show(_line(model))
    if not catalogue.models:
        show(f"No models found in {', '.join(catalogue.folders)}.")


models.add_command(inspect, "info")
models.add_command(drafts)
models.add_command(seed)
models.add_command(thin)
models.add_command(cache)


@models.command("verify", epilog=EXAMPLES)
@click.argument("model", shell_complete=completing("models"))
@click.option("--quick", is_flag=True, help="Headers and sizes alone, not every byte.")
@click.option(
    "--peer",
    "peers",
    multiple=True,
    metavar="NAME",
    shell_complete=completing("peers"),
    help="Compare every tensor with the copy on this peer, or at NAME:/PATH.",
)
@json_option
def verify_model(
    model: str, quick: bool, peers: tuple[str, ...], as_json: bool
) -> None:
    """Read MODEL to its end: is it whole, and are its bytes what they should be?

    Files in the caches of Hugging Face and Ollama are named by their hash and compared
    with it; of others the hash is printed, to compare with what their page says. With
    --peer each tensor is hashed here and there instead, and what differs is told.
    """
    path = resolve(model).absolute()
    found, holders = run(_verified(path, quick=quick or bool(peers)))
    compared = run(_compared(path, peers)) if peers else []
    if as_json:
        emit_json(
            {
                "model": found,
                "damaged": found.damaged,
                "held_by": holders,
                "peers": [{"same": one.same, **asdict(one)} for one in compared],
            }
        )
    else:
        _show_verified(found, holders)
        _show_compared(compared)
    if found.damaged or not all(one.same for one in compared):
        raise click.exceptions.Exit(1)


async def _compared(path: Path, peers: tuple[str, ...]) -> list[Comparison]:
    from backends.client.client import ControllerClient
    from tui.cli.ending import tidily
    from tui.cli.model_places import compared

    client = ControllerClient()
    return await tidily(client, compared(client, path, peers))


def _show_compared(compared: list[Comparison]) -> None:
    for one in compared:
        show(f"{one.machine}: {one.verdict}  {one.path}")
        for tensor in one.differing[:DIFFERENCES_SHOWN]:
            show(f"  {tensor.name:40} {tensor.why}")
        if (more := len(one.differing) - DIFFERENCES_SHOWN) > 0:
            show(f"  and {more} more (--json has all)")


async def _verified(path: Path, *, quick: bool) -> tuple[VerifiedModel, list[str]]:
    """What reading it finds, and the other machines that hold the same bytes."""
    from backends.models.verify import verify_model
    from tui.cli.progress import ProgressLine, ticking

    line, stop = ProgressLine(), threading.Event()
    loop = asyncio.get_running_loop()

    def on_bytes(done: int, total: int) -> None:
        detail = f"{format_bytes(done)} of {format_bytes(total)}"
        fraction = done / total if total else None
        loop.call_soon_threadsafe(line.show, "reading", fraction, detail)

    try:
        async with ticking(line):
            found = await asyncio.to_thread(
                verify_model, path, quick=quick, on_bytes=on_bytes, stopped=stop.is_set
            )
    finally:
        stop.set()
    return found, await _holders(found.identity)


async def _holders(identity: str) -> list[str]:
    """Machines that hold the same bytes, by a controller that runs."""
    from backends.client.client import ControllerClient

    client = ControllerClient()
    if not await client.running():
        return []
    known = (await client.catalogue()).models
    return [name for m in known if m.identity == identity for name in m.held_by]


def _show_verified(found: VerifiedModel, holders: list[str]) -> None:
    for file in found.files:
        show(f"{_verdict(file):8} {format_bytes(file.size_bytes):>10}  {file.path}")
        if file.sha256:
            show(f"{'':8} {'sha256':>10}  {file.sha256}")
        if file.damaged:
            show(f"{'':8} {'should be':>10}  {file.expected_sha256}")
    if holders:
        show(f"held by  {', '.join(holders)}")
    if found.damaged:
        say("It was damaged or edited: download it again.")


def _verdict(file: VerifiedFile) -> str:
    if file.damaged:
        return "DAMAGED"
    return "verified" if file.sha256 and file.expected_sha256 else "whole"


async def _searched() -> ModelCatalogue:
    """What a search of now finds; what is found so far where it takes too long."""
    from backends.client.client import ControllerClient
    from tui.cli.ending import tidily

    client = ControllerClient()
    return await tidily(client, searched(client))


def _line(model: ModelFile) -> str:
    layers = f"{model.n_layer} layers" if model.n_layer else ""
    about = model.problem or model.thin or f"{model.arch} {model.file_type}"
    holders = ", ".join(model.held_by)
    figures = f"{format_bytes(model.size_bytes):>10}  {layers:>10}"
    return f"{model.name:40} {figures}  {about:20} {holders}".rstrip()
