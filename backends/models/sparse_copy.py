"""Making sparse files: what it would take, then ``dllm-relay sparse``, file by file."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import msgspec

from backends.errors import ModelError
from backends.models.header import Places, Tensor
from backends.models.identity import files_of, identity_of
from backends.models.layers import model_headers, model_of, places_in, printable_path
from backends.models.parts import part_name, part_of
from backends.models.search import SUFFIX
from backends.models.sparse import OUTPUT
from backends.paths import relay_binary
from backends.printable import printable
from backends.state import Value
from backends.units import format_bytes

_OUTPUT_TENSORS = "output."
_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")
_END_S = 10.0
_TRIED_BYTES = 1 << 20
_BLOCK_BYTES = 512
"""The unit of ``st_blocks``."""


class Keep(NamedTuple):
    layers: frozenset[int]
    output: bool


def parse_keep(text: str, n_layer: int) -> Keep:
    """Read ``output,0-9,12``."""
    layers: set[int] = set()
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if word == OUTPUT:
            continue
        match = _RANGE.fullmatch(word)
        last = int(match[2] or match[1]) if match else -1
        if match is None or int(match[1]) > last or last >= n_layer:
            raise ModelError(
                f"“{printable(word)}” is no part of the model, which has the layers 0 "
                f"to {n_layer - 1} and an output",
                "Name what to keep like this: --keep output,0-9.",
            )
        layers.update(range(int(match[1]), last + 1))
    return Keep(frozenset(layers), OUTPUT in words)


def left_out(places: Places, keep: Keep) -> list[Tensor]:
    """The tensors that become holes: all of layers, and of the output what weighs."""
    layers = [
        tensor
        for index, tensors in enumerate(places.layers)
        if index not in keep.layers
        for _, tensor in tensors
    ]
    ends = [t for t in places.output if t.name.startswith(_OUTPUT_TENSORS)]
    return [*layers, *([] if keep.output else ends)]


class SparsePlan(Value, frozen=True, kw_only=True):
    model: str
    files: tuple[str, ...]
    """Of the model, all parts in order."""
    file_bytes: tuple[int, ...]
    targets: tuple[str, ...]
    """Of the sparse one, likewise."""
    identity: str
    size_bytes: int
    """Of the model's files."""
    tensor_bytes: int
    kept_bytes: int
    """Of its tensors, those that would be there."""
    free_bytes: int
    """Of the disk it would be on."""
    holes: tuple[str, ...]
    """Tensors that would not."""


class SparseFile(Value, frozen=True, kw_only=True):
    path: str
    sha256: str
    """Of the whole file it was made from."""
    size_bytes: int
    """As it says; on the disk it takes ``kept_bytes`` and its header."""
    kept_bytes: int


def plan_sparse(model: Path, keep: str, out: Path | None = None) -> SparsePlan:
    """Plan a sparse file with some parts of a model; leaves nothing behind.

    ``out`` is a file or a directory; the parts of a split model are called after it.
    None: beside the model, with ``-sparse`` in the name.
    """
    files = files_of(model)
    headers = model_headers(files[0])
    info, places = model_of(headers), places_in(headers)
    if info.sparse:
        raise ModelError(
            f"{printable(model.name)} is sparse already",
            f"Make it from the model itself, {printable(info.sparse.source)}.",
        )
    holes = left_out(places, parse_keep(keep, info.n_layer))
    if unknown := [tensor.name for tensor in holes if not tensor.type_known]:
        raise ModelError(
            f"{printable(unknown[0])} has a type that this dllm-tui does not know",
            "Keep its layer, or use a newer dllm-tui.",
        )
    targets = _targets(files, out)
    folder = targets[0].absolute().parent
    size_bytes = info.size_bytes
    if not holds_holes(folder):
        raise ModelError(
            f"The file system of {printable(str(folder))} cannot hold holes: a sparse "
            f"file would take {format_bytes(size_bytes)} there, as much as the model",
            "Write it elsewhere (--out).",
        )
    return SparsePlan(
        model=info.path,
        files=info.files,
        file_bytes=tuple(header.file_bytes for header in headers),
        targets=tuple(printable_path(target) for target in targets),
        identity=identity_of(files[0]),
        size_bytes=info.size_bytes,
        tensor_bytes=info.tensor_bytes,
        kept_bytes=info.tensor_bytes - sum(tensor.n_bytes for tensor in holes),
        free_bytes=_free_bytes(targets),
        holes=tuple(tensor.name for tensor in holes),
    )


async def write_sparse(
    plan: SparsePlan, on_bytes: Callable[[int], None] = lambda _: None
) -> tuple[SparseFile, ...]:
    if plan.free_bytes < plan.kept_bytes:
        raise ModelError(
            f"It takes {format_bytes(plan.kept_bytes)}, and "
            f"{format_bytes(plan.free_bytes)} are free there",
            "Keep less, or write it elsewhere (--out).",
        )
    starts = accumulate((0, *plan.file_bytes))
    written: list[SparseFile] = []
    try:
        for source, target, start in zip(
            plan.files, plan.targets, starts, strict=False
        ):

            def further(done: int, start: int = start) -> None:
                on_bytes(start + done)

            written.append(await _written(plan, source, target, further))
    except BaseException:
        _delete(file.path for file in written)
        raise
    return tuple(written)


def _delete(paths: Iterable[str]) -> None:
    for path in paths:
        Path(path).unlink(missing_ok=True)


async def _written(
    plan: SparsePlan, source: str, target: str, on_bytes: Callable[[int], None]
) -> SparseFile:
    program = str(relay_binary())
    argv = (program, "sparse", "--model", source, "--out", target)
    try:
        child = await asyncio.create_subprocess_exec(
            *(*argv, "--identity", plan.identity),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise ModelError(f"{program} cannot be run ({error.strerror})") from error
    told = None
    try:
        told = await _followed(child, plan.holes, on_bytes)
        await child.wait()
    except BaseException:
        await _ended(child)
        # It was done before it was told to end: then the file is its own.
        if told or await _is_done(child):
            _delete([target])
        raise
    return told


async def _followed(
    child: asyncio.subprocess.Process,
    holes: Sequence[str],
    on_bytes: Callable[[int], None],
) -> SparseFile:
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    with contextlib.suppress(OSError):
        child.stdin.write("".join(f"{name}\n" for name in holes).encode())
        await child.stdin.drain()
    child.stdin.close()
    async for line in child.stdout:
        told = msgspec.json.decode(line)
        if "path" in told:
            return msgspec.convert(told, SparseFile)
        on_bytes(int(told["done_bytes"]))
    words = (await child.stderr.read()).decode("utf-8", "replace").strip()
    said = words.removeprefix("dllm-relay: ") or "dllm-relay ended without a word"
    raise ModelError(f"The sparse file cannot be written: {printable(said)}")


async def _is_done(child: asyncio.subprocess.Process) -> bool:
    assert child.stdout is not None
    return b'"path"' in await child.stdout.read()


async def _ended(child: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        # Not terminate(): that reaps one that has just ended, behind asyncio's back.
        if child.returncode is None:
            os.kill(child.pid, signal.SIGTERM)
    try:
        await asyncio.wait_for(asyncio.shield(child.wait()), _END_S)
    except TimeoutError:
        child.kill()
        await child.wait()


def _targets(files: Sequence[Path], out: Path | None) -> list[Path]:
    if out is not None and out.is_dir():
        targets = [out / file.name for file in files]
    else:
        targets = _named(files, out)
    for target in targets:
        if target.exists() or target.is_symlink():
            raise ModelError(
                f"{printable(str(target))} is there already",
                "Give another name (--out), or delete it.",
            )
    return targets


def _named(files: Sequence[Path], out: Path | None) -> list[Path]:
    first = files[0]
    if len(files) == 1 and out is not None and part_of(out.name):
        raise ModelError(
            f"{printable(out.name)} is what a part of a split model is called",
            "Give another name (--out).",
        )
    if len(files) == 1:
        return [out or first.with_name(f"{first.stem}-sparse{SUFFIX}")]
    prefix = first.name.rpartition("-00001-of-")[0] + "-sparse"
    if out is not None:
        prefix = out.name.removesuffix(SUFFIX)
    folder, count = (out or first).parent, len(files)
    return [folder / part_name(prefix, n, count) for n in range(1, count + 1)]


def _free_bytes(targets: Sequence[Path]) -> int:
    folder = targets[0].absolute().parent
    try:
        return shutil.disk_usage(folder).free
    except OSError as error:
        raise ModelError(
            f"{printable(str(folder))} cannot be written to ({error.strerror})",
            "Make it, or write elsewhere (--out).",
        ) from error


def holds_holes(folder: Path) -> bool:
    """True if a file there takes no room where nothing was written; tried with one."""
    try:
        with tempfile.TemporaryFile(dir=folder) as tried:
            tried.truncate(_TRIED_BYTES)
            return os.fstat(tried.fileno()).st_blocks * _BLOCK_BYTES < _TRIED_BYTES
    except OSError:
        return True
