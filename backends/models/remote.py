"""The process that reads what could be got: ``python -m backends.models.remote …``.

It prints the models of a repository or URL as lines of JSON: first their sizes, then
each again with its headers. A header is the beginning of a file: it is read into a
sparse file of the same size, and kept.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path
from threading import Lock
from typing import BinaryIO, NamedTuple, NoReturn
from urllib.parse import unquote, urlsplit

from msgspec.structs import replace

from backends.download_process import print_line, run
from backends.errors import DllmError, ModelError, UsageError
from backends.http_download import Address, opened, retried
from backends.models.download import HUB, URL, parse_source
from backends.models.header import has_whole_header, read_header
from backends.models.hugging_face import (
    HubFile,
    hub_address,
    hub_files,
    models_of_repository,
    pick,
    quant_of,
)
from backends.models.layers import read_model
from backends.printable import printable
from backends.state.models import RemoteFile, RemoteModel
from backends.units import format_bytes
from backends.writing import forget_unused, is_kept, set_aside

AT_A_TIME = 4
"""Headers that are read at the same time."""
CHUNK_BYTES = 1 << 16
FIRST_BYTES = 2 << 20
"""Read before the header is looked for; then twice as much."""
HEADER_BYTES_MAX = 256 << 20


class Downloadable(NamedTuple):
    """A model that could be got, and how to ask for its files."""

    model: RemoteModel
    places: tuple[Callable[[], Address], ...]
    """For each file: its address now."""
    key: str
    """Changes with the bytes of its first file."""


def main(source: str, cache: str, most_bytes: str) -> int:
    """Print the models of a source; headers of those that are not larger."""
    return run(lambda: list_models(source, Path(cache), int(most_bytes)), source, cache)


def list_models(source: str, cache: Path, most_bytes: int) -> None:
    found = list(_found(source))
    for one in found:
        print_line(one.model)
    # A thread that waits for a server would keep us.
    signal.signal(signal.SIGTERM, _leave)
    small = [one for one in found if one.model.size_bytes <= most_bytes]
    with ThreadPoolExecutor(AT_A_TIME) as readers:
        for model in readers.map(lambda one: _with_header(one, cache), small):
            print_line(model)
    forget_unused(cache, "*")


def addresses(source: str, cache: str) -> int:
    """Print a model with the present addresses of its files."""

    def look() -> None:
        name = parse_source(source).name
        found = list(_found(source))
        if len(found) != 1:
            listed = ", ".join(one.model.quant for one in found)
            raise UsageError(
                f"{name} has several models: {listed}",
                f"Name one, for example {found[0].model.source}.",
            )
        for one in found:
            told = [place() for place in one.places]
            files = tuple(
                replace(file, url=at.url, token=at.token)
                for file, at in zip(one.model.files, told, strict=True)
            )
            print_line(replace(_with_header(one, Path(cache)), files=files))

    return run(look, source, cache)


def _found(source: str) -> Iterator[Downloadable]:
    kind, name, wanted = parse_source(source)
    if kind == HUB:
        yield from _in_repository(name, wanted)
    elif kind == URL:
        yield _at_url(name)
    else:
        raise UsageError(
            f"{source} is a package: it tells nothing before it is got",
            "Name a repository of Hugging Face, or a URL.",
        )


def _in_repository(repository: str, wanted: str) -> Iterator[Downloadable]:
    commit, files = hub_files(repository)
    models = models_of_repository(repository, files)
    if wanted:
        chosen = pick(repository, files, wanted)
        models = {chosen[0].name: chosen}
    quants = [quant_of(name) for name in models]

    def place(file: HubFile) -> Callable[[], Address]:
        return lambda: hub_address(repository, commit, file)

    for first, parts in sorted(models.items(), key=lambda model: _bytes_of(model[1])):
        quant = quant_of(first)
        name = quant if quants.count(quant) == 1 else first
        model = RemoteModel(
            source=f"{repository}:{name}",
            quant=quant,
            size_bytes=_bytes_of(parts),
            files=tuple(
                RemoteFile(
                    name=part.name, size_bytes=part.size_bytes, sha256=part.sha256
                )
                for part in parts
            ),
        )
        yield Downloadable(model, tuple(map(place, parts)), parts[0].sha256)


def _bytes_of(files: list[HubFile]) -> int:
    return sum(file.size_bytes for file in files)


def _at_url(url: str) -> Downloadable:
    size_bytes, key, last = 0, "", Address(url)

    def ask(at: Address) -> None:
        nonlocal size_bytes, key, last
        with opened(at, {"Range": "bytes=0-0"}) as answer:
            told = str(answer.headers["Content-Range"] or "").rpartition("/")[2]
            length = told or str(answer.headers["Content-Length"] or "")
            size_bytes = int(length) if length.isdigit() else 0
            key = f"{answer.headers['ETag']} {answer.headers['Last-Modified']}"
            last = Address(answer.url)

    retried(lambda: Address(url), ask)
    if not size_bytes:
        raise ModelError(f"{url} does not tell its size", "Get it without looking.")
    name = printable(Path(unquote(urlsplit(url).path)).name)
    model = RemoteModel(
        source=url,
        quant=quant_of(name),
        size_bytes=size_bytes,
        files=(RemoteFile(name=name, size_bytes=size_bytes),),
    )
    return Downloadable(model, (lambda: last,), f"{url} {size_bytes} {key}")


# --- headers -------------------------------------------------------------------------


def _with_header(found: Downloadable, cache: Path) -> RemoteModel:
    folder = cache / hashlib.sha256(found.key.encode()).hexdigest()[:32]
    model = found.model
    copies = [folder / Path(file.name).name for file in model.files]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, place, copy in zip(model.files, found.places, copies, strict=True):
            if not is_kept(copy, file.size_bytes):
                retried(place, lambda at, f=file, c=copy: _read(at, f, c))  # type: ignore[misc]
        read_model(copies[0])
        return replace(model, header=str(copies[0]))
    except DllmError as error:
        return replace(model, problem=str(error))


_unfinished: set[Path] = set()
_beginning = Lock()
"""Held while a file is there that is not among these yet."""


def _leave(*_: object) -> NoReturn:
    _beginning.acquire()
    for file in _unfinished:
        file.unlink(missing_ok=True)
    os._exit(1)


def _read(address: Address, file: RemoteFile, copy: Path) -> None:
    limit = min(file.size_bytes, HEADER_BYTES_MAX)
    have, want = 0, min(FIRST_BYTES, limit)
    with ExitStack() as stack:
        with _beginning:
            aside, target = stack.enter_context(set_aside(copy.parent))
            _unfinished.add(aside)
        target.truncate(file.size_bytes)
        while not has_whole_header(aside, have):
            if have == limit:
                _refuse(aside, file)
            have = _read_until(want, have, address, target)
            want = min(2 * want, limit)
        aside.replace(copy)


def _read_until(want: int, have: int, address: Address, target: BinaryIO) -> int:
    with opened(address, {"Range": f"bytes={have}-{want - 1}"}) as answer:
        if answer.status != HTTPStatus.PARTIAL_CONTENT:
            have = 0
        target.seek(have)
        while have < want and (chunk := answer.read(min(CHUNK_BYTES, want - have))):
            target.write(chunk)
            have += len(chunk)
        target.flush()
    if have < want:
        raise ConnectionError(f"it ended after {have} of {want} bytes")
    return have


def _refuse(aside: Path, file: RemoteFile) -> NoReturn:
    try:
        read_header(aside)
    except ModelError as error:
        name = printable(Path(file.name).name)
        told = error.what.replace(aside.name, name)
        raise ModelError(told, "It is no model that llama.cpp can read.") from error
    limit = format_bytes(HEADER_BYTES_MAX)
    raise ModelError(f"{printable(file.name)} has no header within {limit}")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    sys.exit(main(*arguments) if len(arguments) == 3 else addresses(*arguments))
