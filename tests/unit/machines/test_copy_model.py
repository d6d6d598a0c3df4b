"""Copying a model: whole, verified, resumed; never over or from another file."""

from __future__ import annotations

import asyncio
import errno
import random
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from backends.errors import MachineError, ModelError, PeerUnreachable, UsageError
from backends.machines import peer_downloads
from backends.machines.peer_downloads import (
    SAMPLED,
    FromHere,
    Wanted,
    deliver_model,
    whole_files,
)
from backends.machines.shell import PeerBusy, PeerFull, transfer_error
from backends.models.identity import files_of
from backends.models.layer_file import Run

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine

    from backends.state import PeerWork
    from tests.kit.local_peer import LocalShell

    Copy = Callable[..., Coroutine[Any, Any, str]]

SIZE = 3 << 20
NAME = 'it\'s a "model" $x.gguf'


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CHUNK_BYTES", "CHUNK_BYTES_MAX"):
        monkeypatch.setattr(peer_downloads, name, 1 << 18)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "here" / NAME
    path.parent.mkdir()
    path.write_bytes(random.Random(1).randbytes(SIZE))
    return path


class Stuck(FromHere):
    """Sends one chunk, then nothing until it is cancelled."""

    async def read(
        self, index: int, at: int, length: int
    ) -> AsyncGenerator[bytes, None]:
        async with aclosing(super().read(index, at, length)) as chunks:
            yield await anext(chunks)
            await asyncio.Event().wait()


@pytest.fixture
def copy(shell: LocalShell, works: list[PeerWork]) -> Copy:
    async def call(source: Path, way: type[FromHere] = FromHere) -> str:
        files = files_of(source)
        ways, wanted = [way(files)], whole_files(files)
        got = await deliver_model(shell, wanted, ways, report=works.append)
        was_there = got.how == "there already"
        assert got.verified_by == (SAMPLED if was_there else "SHA-256")
        return got.path

    return call


@pytest.fixture
def there(home: Path) -> Path:
    return home / ".models" / NAME


def part_of(there: Path) -> Path:
    return there.with_name(f"{there.name}.part")


def content(path: Path) -> bytes:
    return path.read_bytes()


def put(path: Path, data: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def is_copy(there: Path, here: Path) -> bool:
    return there.read_bytes() == here.read_bytes()


async def test_the_same_bytes_under_the_same_name_are_sent_once(
    copy: Copy, model: Path, there: Path, works: list[PeerWork]
) -> None:
    assert await copy(model) == str(there)
    assert is_copy(there, model)
    assert names_in(there.parent) == [NAME]
    assert "3.0 MiB of 3.0 MiB" in works[-2].detail
    works.clear()
    await copy(model)
    assert not any(work.progress for work in works)


async def begun(copy: Copy, model: Path, works: list[PeerWork]) -> asyncio.Task[str]:
    running = asyncio.create_task(copy(model, way=Stuck))
    while not (running.done() or any(work.progress for work in works)):
        await asyncio.wait([running], timeout=0.001)
    return running


async def break_off(running: asyncio.Task[str]) -> None:
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_copy_under_way_is_not_begun_twice_and_broken_off_goes_on(
    copy: Copy, model: Path, there: Path, works: list[PeerWork]
) -> None:
    running = await begun(copy, model, works)
    with pytest.raises(PeerBusy, match="is under way on mini"):
        await copy(model)
    await break_off(running)
    assert content(part_of(there))
    assert NAME not in names_in(there.parent)
    await copy(model)
    assert is_copy(there, model)


async def test_a_half_copy_of_another_file_is_not_continued(
    copy: Copy, model: Path, there: Path, works: list[PeerWork]
) -> None:
    await break_off(await begun(copy, model, works))
    put(model, b"x" + content(model)[1:])
    await copy(model)
    assert is_copy(there, model)


async def test_a_half_copy_with_wrong_bytes_is_sent_anew(
    copy: Copy, model: Path, there: Path
) -> None:
    put(part_of(there), b"x" * SIZE)
    (wanted,) = whole_files([model])
    put(Path(f"{part_of(there)}.identity"), wanted.key.encode())
    await copy(model)
    assert is_copy(there, model)


async def test_all_parts_of_a_model_go(copy: Copy, tmp_path: Path, home: Path) -> None:
    parts = [tmp_path / f"m-0000{n}-of-00002.gguf" for n in (1, 2)]
    put(parts[0], b"one")
    with pytest.raises(ModelError, match="is missing"):
        await copy(parts[0])
    put(parts[1], b"two")
    assert await copy(parts[0]) == str(home / ".models" / parts[0].name)
    for part in parts:
        assert is_copy(home / ".models" / part.name, part)


async def test_a_full_disk_is_told_before_anything_is_sent(
    copy: Copy, model: Path, shell: LocalShell, there: Path
) -> None:
    shell.program("df", "Filesystem\nx 100 90 10 90% /")
    with pytest.raises(PeerFull, match=r"Only 10\.0 KiB are free"):
        await copy(model)
    assert not part_of(there).exists()


UNREADABLE = Path("/proc/self/mem")
"""Opens, and answers a read of its beginning with EIO."""


@pytest.mark.skipif(not UNREADABLE.exists(), reason="Linux has such a file")
async def test_a_broken_disk_here_is_no_broken_connection(
    shell: LocalShell, works: list[PeerWork]
) -> None:
    wanted = Wanted("m.gguf", b"", (Run(0, SIZE, 0),))
    ways, report = [FromHere([UNREADABLE])], works.append
    with pytest.raises(MachineError) as caught:
        await deliver_model(shell, [wanted], ways, report=report)
    assert not isinstance(caught.value, PeerUnreachable)
    assert str(caught.value).startswith(
        f"{UNREADABLE} on this machine cannot be read or written (Input/output error)"
    )


async def test_a_name_that_breaks_lines_is_refused(copy: Copy, model: Path) -> None:
    odd = model.with_name("m\n.gguf")
    put(odd, b"odd")
    with pytest.raises(UsageError, match="a tab or line end in its name"):
        await copy(odd)


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError(),
        BrokenPipeError(),
        TimeoutError(),
        OSError(errno.EHOSTUNREACH, "No route to host"),
    ],
)
def test_a_broken_connection_resumes(error: OSError) -> None:
    told: MachineError = transfer_error("mini", error)
    assert isinstance(told, PeerUnreachable)
    assert "The connection to mini broke" in str(told)
