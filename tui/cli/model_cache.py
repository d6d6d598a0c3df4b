"""``dllm-tui models seed`` and ``cache``: the cache of workers that others start."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from backends.units import format_bytes
from tui.cli.options import completing
from tui.cli.output import emit_json, json_option, run, say, show

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from backends.state.holdings import CachedFile, Seeding, WorkerCache

EXAMPLES = """
\b
Examples:
  dllm-tui models seed glm-4.7-flash --peer mini --dry-run    how much it would be
  dllm-tui models seed glm-4.7-flash --peer mini
  dllm-tui models cache show --peer mini
  dllm-tui models cache prune --peer mini --keep glm-4.7-flash
  dllm-tui models cache prune --peer mini --delete

A worker that is started with -c then has every tensor over 10 MiB and is not sent it.
"""
DAY_S = 86_400

_peer_option = click.option(
    "--peer",
    required=True,
    metavar="NAME",
    shell_complete=completing("peers"),
    help="The machine; local is this one.",
)
_directory_option = click.option(
    "--cache-dir",
    "directory",
    default="",
    metavar="DIR",
    help="The cache's directory there, if the worker has another one.",
)


@click.command("seed", epilog=EXAMPLES)
@click.argument("model", shell_complete=completing("models"))
@_peer_option
@_directory_option
@click.option("--dry-run", is_flag=True, help="Only tell how much it would be.")
@json_option
def seed(model: str, peer: str, directory: str, dry_run: bool, as_json: bool) -> None:
    """Fill the cache of a stock rpc-server on a machine from its own copy of MODEL.

    For workers that dllm-tui did not start and that run with -c (--cache). Ctrl-C
    stops it; the next time it goes on where it was.
    """
    told = run(_seeded(model, peer, directory, dry=dry_run))
    if as_json:
        emit_json(told)
    elif not dry_run:
        show(f"{peer} has {_tensors(told)} in {told.directory}.")


async def _seeded(model: str, peer: str, directory: str, *, dry: bool) -> Seeding:
    from backends.client.client import ControllerClient
    from tui.cli.ending import tidily
    from tui.cli.model_places import model_file, place_at, seeded

    client, file = ControllerClient(), model_file(model)

    async def work() -> Seeding:
        place = await place_at(client, file, peer)
        planned = await seeded(client, place, directory, dry=True)
        say(
            f"{_tensors(planned)}, {format_bytes(planned.seeded_bytes)} of it there "
            f"already; {format_bytes(planned.free_bytes)} are free in "
            f"{planned.directory} on {place[0]}."
        )
        if dry:
            return planned
        return await seeded(client, place, directory, dry=False)

    return await tidily(client, work())


def _tensors(told: Seeding) -> str:
    return f"{len(told.names)} tensors, {format_bytes(told.size_bytes)}"


@click.group("cache", epilog=EXAMPLES)
def cache() -> None:
    """Look into the cache of stock workers, and prune it."""


def _cache_options(command: Callable[..., Any]) -> Callable[..., Any]:
    return _peer_option(_directory_option(json_option(command)))


@cache.command("show", epilog=EXAMPLES)
@_cache_options
def show_cache(peer: str, directory: str, as_json: bool) -> None:
    """Show what the cache of stock workers on a machine holds."""
    from backends.client.client import ControllerClient
    from tui.cli.ending import tidily

    client = ControllerClient()
    work = client.models.cache(machine=peer, directory=directory)
    found = run(tidily(client, work))
    if as_json:
        emit_json(found)
        return
    for file in found.files:
        show(_line(file))
    show(_sum(found))


@cache.command("prune", epilog=EXAMPLES)
@click.option(
    "--keep",
    multiple=True,
    metavar="MODEL",
    shell_complete=completing("models"),
    help="Keep the tensors of this model; may be repeated.",
)
@click.option(
    "--older-than",
    "days",
    type=click.IntRange(1),
    metavar="DAYS",
    help="Only what has not been written for so many days.",
)
@click.option("--delete", is_flag=True, help="Delete it; otherwise only tell.")
@_cache_options
def prune_cache(
    peer: str,
    directory: str,
    keep: tuple[str, ...],
    days: int | None,
    delete: bool,
    as_json: bool,
) -> None:
    """Delete tensors from the cache of stock workers on a machine.

    Without --delete it only tells what would be deleted. A worker that finds a tensor
    gone is sent it again.
    """
    pruned = run(_pruned(peer, directory, keep, days=days, delete=delete))
    if as_json:
        emit_json({"deleted": delete, "files": pruned, "size_bytes": _size(pruned)})
        return
    for file in pruned:
        show(_line(file))
    what = f"{len(pruned)} files, {format_bytes(_size(pruned))}"
    show(f"{what} deleted." if delete else f"{what} would be deleted (--delete).")


async def _pruned(
    peer: str, directory: str, keep: tuple[str, ...], *, days: int | None, delete: bool
) -> list[CachedFile]:
    from backends.client.client import ControllerClient
    from tui.cli.ending import tidily
    from tui.cli.model_places import model_file, place_at, seeded

    client, files = ControllerClient(), [model_file(model) for model in keep]

    async def work() -> list[CachedFile]:
        kept: set[str] = set()
        for file in files:
            place = await place_at(client, file, peer)
            kept |= {*(await seeded(client, place, directory, dry=True)).names}
        found = await client.models.cache(machine=peer, directory=directory)
        before_s = time.time() - (days or 0) * DAY_S
        chosen = [
            file
            for file in found.files
            # A seeding that broke off goes on from its ``.part``.
            if file.name.removesuffix(".part") not in kept and file.mtime_s <= before_s
        ]
        if delete and chosen:
            names = [file.name for file in chosen]
            await client.models.prune(names, machine=peer, directory=directory)
        return chosen

    return await tidily(client, work())


def _size(files: list[CachedFile]) -> int:
    return sum(file.size_bytes for file in files)


def _line(file: CachedFile) -> str:
    written = time.strftime("%Y-%m-%d %H:%M", time.localtime(file.mtime_s))
    return f"{format_bytes(file.size_bytes):>10}  {written}  {file.name}"


def _sum(found: WorkerCache) -> str:
    size, free = format_bytes(found.size_bytes), format_bytes(found.free_bytes)
    return f"{len(found.files)} files, {size} in {found.directory}; {free} free."
