"""Getting models from servers that fail, lie or stall: nothing lost, one sentence."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from backends import http_download
from backends.download_process import DownloadProgress
from backends.errors import DllmError
from backends.models import download
from backends.state.models import Download
from tests.kit.waiting import until
from tests.unit.models.getting import HUB, NAME, URL, Getting, bytes_of
from tests.unit.models.ggufs import F32, LLAMA, llama_tensors

both = pytest.mark.parametrize("source", [HUB, URL])
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that downloads waits a moment where it would wait long."""
    monkeypatch.setattr(download, "FETCH", "tests.unit.models.impatient_fetch")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


# --- breaks --------------------------------------------------------------------------


@pytest.mark.parametrize(("source", "tenth"), [(HUB, 1), (URL, 9)])
async def test_a_download_resumes_where_it_was_cut(
    getting: Getting, content: bytes, source: str, tenth: int
) -> None:
    getting.hub.cut_after = cut = len(content) * tenth // 10
    assert bytes_of(await getting.get(source)) == content
    assert getting.hub.ranges == [f"bytes={cut}-"]
    assert getting.hub.served_bytes == len(content)


@both
async def test_a_download_that_is_ended_resumes(
    getting: Getting, content: bytes, source: str
) -> None:
    await getting.is_ended_midway(source)
    assert NAME not in getting.files()
    half = getting.half_bytes()
    assert bytes_of(await getting.get(source)) == content
    assert getting.hub.ranges
    assert [f for f in getting.files() if f.endswith((".part", ".resume"))] == []
    # What was there before makes no rate.
    assert next(one for one in getting.told if one.size_bytes).done_bytes == half


async def test_more_breaks_than_tries_end_nothing_while_bytes_come(
    getting: Getting, content: bytes
) -> None:
    hub, step = getting.hub, len(content) // (3 * http_download.TRIES)

    def again() -> None:
        hub.cut_after = step

    hub.cut_after, hub.when_cut = step, again
    assert bytes_of(await getting.get(URL)) == content
    assert len(hub.ranges) >= 3 * http_download.TRIES
    assert hub.served_bytes == len(content)


async def test_a_server_that_stalls_is_left_and_nothing_comes_twice(
    getting: Getting, content: bytes
) -> None:
    """What has come before a silence stays, however little it is."""
    getting.env["PATIENCE_S"] = "0.5"
    getting.hub.hold_after = len(content) // 4
    assert bytes_of(await getting.get(URL)) == content
    assert len(getting.hub.ranges) >= 3
    assert getting.hub.served_bytes == len(content)


@pytest.mark.parametrize("path", ["/api/models/owner/name", f"/cdn/{NAME}"])
async def test_a_server_that_never_answers_is_told(getting: Getting, path: str) -> None:
    getting.env["PATIENCE_S"] = "0.5"
    getting.hub.silent = path
    told = await getting.fails(HUB if "api" in path else URL)
    host = re.escape(getting.hub.url.removeprefix("http://"))
    assert re.match(f"{host} sent nothing for 1 s", told)


async def test_the_progress_of_a_slow_server_is_told_as_it_comes(
    getting: Getting, content: bytes
) -> None:
    getting.hub.files[NAME] = content[: http_download.CHUNK_BYTES]
    getting.hub.pace_s = 0.03
    assert "truncated" in await getting.fails(URL)
    assert len({one.done_bytes for one in getting.told}) > 3


async def test_a_server_that_recovers_is_asked_again(
    getting: Getting, content: bytes
) -> None:
    hub = getting.hub

    def ill() -> None:
        hub.status, hub.refusals = 503, 3

    hub.cut_after, hub.when_cut = len(content) // 2, ill
    assert bytes_of(await getting.get(HUB)) == content
    assert hub.served_bytes == len(content)


# --- refusals ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "status", "code", "says"),
    [
        (HUB, 401, "", "does not let you"),
        (HUB, 403, "GatedRepo", "accept terms. Accept them at"),
        (HUB, 404, "RepoNotFound", "has no repository"),
        (HUB, 503, "", "HTTP 503. Try again in 1 s"),
        (URL, 404, "", "does not have it"),
    ],
)
async def test_a_refusal_is_one_sentence(
    getting: Getting, source: str, status: int, code: str, says: str
) -> None:
    getting.hub.status, getting.hub.error_code = status, code
    assert says in await getting.fails(source)


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (401, "does not let you"),
        (404, "does not have it"),
        (416, "HTTP 416. Try again in 7 s"),
        (429, "limits how often you may ask. Try again in 7 s"),
        (503, "HTTP 503. Try again in 7 s"),
    ],
)
def test_a_status_in_words(status: int, says: str) -> None:
    headers = {"Retry-After": "7"}
    told = http_download.refused_by_status("http://host/x", status, headers)
    assert says in str(told)


def test_a_file_that_is_not_there_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mirror may be a folder: nothing comes into it by itself."""
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    url = (tmp_path / "x.tar.gz").as_uri()
    with pytest.raises(DllmError) as caught:
        http_download.get_file(
            lambda: http_download.Address(url),
            tmp_path / "got",
            http_download.Partial(url=url),
            DownloadProgress(),
        )
    assert str(caught.value).startswith(f"{url} cannot be read (No such file")
    assert waits == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("source", "status"), [(HUB, 404), (HUB, 416), (HUB, 503), (URL, 429)]
)
async def test_a_refusal_midway_costs_nothing_of_what_came(
    getting: Getting, content: bytes, source: str, status: int
) -> None:
    hub = getting.hub
    hub.cut_after = cut = len(content) // 2
    hub.when_cut = lambda: setattr(hub, "status", status)
    await getting.fails(source)
    hub.status = 0
    assert getting.half_bytes() == cut
    assert bytes_of(await getting.get(source)) == content
    assert hub.served_bytes == len(content)


async def test_a_whole_file_that_was_not_checked_yet_needs_no_byte(
    getting: Getting, content: bytes
) -> None:
    """It ended while it was hashed: 416 is all that a server can say then."""
    await getting.is_ended_midway(URL)
    (part,) = getting.folder.rglob("*.part")
    part.write_bytes(content)
    served = getting.hub.served_bytes
    assert bytes_of(await getting.get(URL)) == content
    assert getting.hub.ranges[-1] == f"bytes={len(content)}-"
    assert getting.hub.served_bytes == served


@both
async def test_the_page_of_a_gate_takes_no_files_place(
    getting: Getting, content: bytes, source: str
) -> None:
    await getting.is_ended_midway(source)
    half = getting.half_bytes()
    getting.hub.page = True
    host = getting.hub.url.removeprefix("http://")
    assert f"{host} sent a web page" in await getting.fails(source)
    assert getting.half_bytes() == half
    getting.hub.page = False
    assert bytes_of(await getting.get(source)) == content
    assert getting.hub.ranges == [f"bytes={half}-"]


# --- lies ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "lie", "says"),
    [
        (URL, 0.5, "truncated"),
        (HUB, 2, "The connection to"),
        # One that has all bytes may well be taken, whatever was said of it.
        (URL, 2, ""),
    ],
)
async def test_a_length_that_is_a_lie_leaves_no_damaged_file(
    getting: Getting, content: bytes, source: str, lie: float, says: str
) -> None:
    getting.hub.length = int(lie * len(content))
    if says:
        assert says in await getting.fails(source)
        assert NAME not in getting.files()
        getting.hub.length = 0
    assert bytes_of(await getting.get(source)) == content


async def test_a_length_that_is_a_lie_costs_nothing_of_what_came(
    getting: Getting, content: bytes
) -> None:
    hub = getting.hub
    hub.cut_after = cut = len(content) // 2
    step = len(content) // 4
    hub.when_cut = lambda: setattr(hub, "length", step)
    # Little by little, at each try as much as it admits.
    assert bytes_of(await getting.get(URL)) == content
    assert hub.ranges[:2] == [f"bytes={cut}-", f"bytes={cut + step}-"]


async def test_what_follows_the_file_is_not_taken(
    getting: Getting, content: bytes
) -> None:
    getting.hub.endless = True
    assert bytes_of(await getting.get(HUB)) == content


@both
async def test_a_file_that_changes_midway_comes_whole(
    getting: Getting, content: bytes, other_content: bytes, source: str
) -> None:
    hub = getting.hub
    hub.cut_after = len(content) // 2
    hub.when_cut = lambda: hub.files.update({NAME: other_content})
    if source == HUB:
        # A commit never changes: such a hub lies.
        assert "bytes" in await getting.fails(source)
    assert bytes_of(await getting.get(source)) == other_content


@both
async def test_a_file_that_changes_between_two_calls_comes_whole(
    getting: Getting, other_content: bytes, source: str
) -> None:
    await getting.is_ended_midway(source)
    getting.hub.files[NAME] = other_content
    assert bytes_of(await getting.get(source)) == other_content


async def test_a_server_that_ignores_if_range_mixes_no_files(
    getting: Getting, other_content: bytes
) -> None:
    await getting.is_ended_midway(URL)
    getting.hub.deaf, getting.hub.files[NAME] = True, other_content
    assert bytes_of(await getting.get(URL)) == other_content


async def test_damaged_bytes_are_removed_and_told(getting: Getting) -> None:
    getting.hub.announced[NAME] = hashlib.sha256(b"other").hexdigest()
    assert (await getting.fails(HUB)).startswith(f"{NAME} arrived damaged")
    assert NAME not in getting.files()
    assert not list(getting.folder.rglob("blobs/*"))


async def test_what_is_no_model_is_not_kept_and_a_url_gets_no_token(
    getting: Getting,
) -> None:
    getting.env["HF_TOKEN"] = "hf_secret"
    getting.hub.files[NAME] = b"<html>Sign in</html>"
    assert f"{NAME} is not a GGUF file" in await getting.fails(URL)
    assert getting.files() == []
    assert {token for _, token in getting.hub.tokens} == {""}


# --- tokens and other hosts ----------------------------------------------------------


@pytest.mark.parametrize("what", ["files", "all"])
async def test_another_host_gets_no_token(
    getting: Getting, content: bytes, what: str
) -> None:
    """The same server under another name is another host."""
    hub = getting.hub
    getting.env["HF_TOKEN"] = "hf_secret"
    other = hub.url.replace("127.0.0.1", "localhost")
    if what == "files":
        hub.cdn, hub.signs = other, True
    else:
        hub.elsewhere = other.removeprefix("http://")
    hub.cut_after = len(content) // 2
    assert bytes_of(await getting.get(HUB)) == content
    assert {token for host, token in hub.tokens if "localhost" in host} == {""}
    own = {token for host, token in hub.tokens if "127.0.0.1" in host}
    assert own == {"Bearer hf_secret"}
    assert not any("hf_secret" in str(one) for one in getting.told)


async def test_a_proxy_is_asked_for_everything(
    getting: Getting, content: bytes
) -> None:
    hub = getting.hub
    getting.env |= {"http_proxy": hub.url, "HF_ENDPOINT": "http://hub.invalid"}
    assert bytes_of(await getting.get(HUB)) == content
    assert {host for host, _ in hub.tokens} == {"hub.invalid"}


# --- large files ---------------------------------------------------------------------


class LargeFile:
    """A sparse file on the disk, in place of its bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return self.path.stat().st_size

    def __getitem__(self, part: slice) -> bytes | LargeFile:
        begin, end, _ = part.indices(len(self))
        if end - begin > len(self) // 2:
            return self
        with self.path.open("rb") as file:
            file.seek(begin)
            return file.read(end - begin)


def write_large(path: Path) -> Path:
    """A model of 5 GB, of which hardly anything is on the disk."""
    writer = GGUFWriter(path, "llama")
    for key, value in LLAMA.items():
        writer.add_uint32(f"llama.{key}", value)
    tensors = llama_tensors()
    tensors["token_embd.weight"] = ((64, 20_000_000), F32)
    for name, (shape, _) in tensors.items():
        size = 4 * int(np.prod(shape))
        writer.add_tensor_info(name, shape[::-1], np.dtype(np.float32), size)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    size_bytes = path.stat().st_size + sum(
        4 * int(np.prod(shape)) for shape, _ in tensors.values()
    )
    with path.open("r+b") as file:
        file.truncate(size_bytes + 4096)
        file.seek(size_bytes + 4092)
        file.write(b"last")
    return path


async def test_a_file_of_5_gb_resumes_at_the_byte(
    getting: Getting, tmp_path: Path
) -> None:
    large = LargeFile(write_large(tmp_path / "large.gguf"))
    assert len(large) > 5_000_000_000
    getting.hub.files[NAME] = large  # type: ignore[assignment]
    getting.hub.announced[NAME] = "0" * 64
    getting.hub.hold_after = 1 << 20
    task = asyncio.create_task(getting.get(getting.url))
    part = getting.folder / f".{NAME}.part"
    await until(lambda: part.exists() and part.stat().st_size >= 1 << 19)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    getting.hub.hold_after = None
    getting.hub.go.set()
    # As if all but its end had come: zeros, as in the file.
    have = len(large) - (1 << 16)
    os.truncate(part, have)
    got = await getting.get(getting.url)
    assert getting.hub.ranges[-1] == f"bytes={have}-"
    assert got.size_bytes == len(large)
    end = LargeFile(Path(got.path))[len(large) - 4 : len(large)]
    assert end == b"last"


# --- two at once, links, full disks --------------------------------------------------


async def test_a_file_is_got_by_one_at_a_time(getting: Getting, content: bytes) -> None:
    first = await getting.begins(URL)
    told = await getting.fails(URL)
    assert f"Another dllm-tui is getting {NAME}" in told
    getting.hub.go.set()
    assert bytes_of(await first) == content


async def test_of_processes_that_begin_together_one_downloads(
    getting: Getting, content: bytes
) -> None:
    """The others find it there, or say that it is on its way."""
    works = (getting.get(HUB) for _ in range(4))
    ended = await asyncio.gather(*works, return_exceptions=True)
    got = [one for one in ended if isinstance(one, Download)]
    assert {bytes_of(one) for one in got} == {content}
    for one in ended:
        if not isinstance(one, Download):
            assert isinstance(one, DllmError)
            assert "Another dllm-tui is getting" in str(one)
    assert getting.hub.served_bytes == len(content)


async def test_no_link_is_followed(getting: Getting, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (getting.folder / f".{NAME}.part").symlink_to(precious)
    assert await getting.fails(URL)
    assert precious.read_text() == "precious"


@both
async def test_room_is_looked_for_first(
    getting: Getting, content: bytes, small_disk: Callable[[int], Path], source: str
) -> None:
    getting.folder = small_disk(len(content) // 2)
    getting.env["HF_HOME"] = str(getting.folder / "hf")
    told = await getting.fails(source)
    assert "still needed" in told
    assert getting.files() == []


async def test_a_disk_that_fills_up_midway_costs_nothing_of_what_came(
    getting: Getting, content: bytes, small_disk: Callable[[int], Path]
) -> None:
    size_bytes = http_download.SPARE_BYTES + 2 * len(content)
    getting.folder = disk = small_disk(size_bytes)
    getting.env["HF_HOME"] = str(disk / "hf")
    task = await getting.begins(URL)
    half = getting.half_bytes()
    others = disk / "others"
    with others.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    getting.hub.go.set()
    with pytest.raises(DllmError, match=r"^The disk of .* is full\. Make room\."):
        await task
    assert getting.half_bytes() >= half
    others.unlink()
    getting.hub.hold_after = None
    assert bytes_of(await getting.get(URL)) == content
    assert getting.hub.ranges
