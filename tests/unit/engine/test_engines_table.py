"""The table of releases is written from what the API lists, over HTTP."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from backends.engine.releases import Release, releases
from tools.engines_table import TABLE

pytestmark = pytest.mark.usefixtures("forking")
ROOT = Path(__file__).parents[3]
COMMIT = "9f70b2ce" * 5
SHA = "ab" * 32


def asset(name: str, digest: str | None = f"sha256:{SHA}") -> dict[str, object]:
    return {
        "id": 1,
        "name": name,
        "content_type": "application/gzip",
        "state": "uploaded",
        "size": 17014362,
        "digest": digest,
        "download_count": 3,
        "browser_download_url": f"https://example.org/b9/{name}",
    }


class Api:
    """The part of the API that is asked."""

    def __init__(self) -> None:
        self.assets = [
            asset("llama-b9-bin-ubuntu-x64.tar.gz"),
            asset("llama-b9-bin-ubuntu-cuda-13.4-x64.tar.gz"),
            asset("cudart-llama-b9-bin-ubuntu-cuda-13.4-x64.tar.gz"),
            asset("llama-b9-bin-macos-arm64.tar.gz"),
            asset("llama-b9-bin-win-cpu-x64.zip", None),
            asset("llama-b9-xcframework.zip"),
        ]
        self.commitish = "master"
        self.url = ""

    async def release(self, request: web.Request) -> web.Response:
        if request.match_info.get("tag", "b9") != "b9":
            return web.json_response({"message": "Not Found"}, status=404)
        return web.json_response(
            {
                "tag_name": "b9",
                "name": "b9",
                "target_commitish": self.commitish,
                "draft": False,
                "prerelease": False,
                "assets": self.assets,
            }
        )

    async def commit(self, request: web.Request) -> web.Response:
        return web.json_response({"sha": COMMIT, "commit": {"message": "x"}})


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    one = Api()
    app = web.Application()
    app.router.add_get("/releases/latest", one.release)
    app.router.add_get("/releases/tags/{tag}", one.release)
    app.router.add_get("/commits/b9", one.commit)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    one.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield one
    await runner.cleanup()


@pytest.fixture
def table(tmp_path: Path) -> Path:
    file = tmp_path / "releases.json"
    file.write_bytes(TABLE.read_bytes())
    return file


async def written(api: Api, table: Path, *args: str) -> tuple[int, str]:
    options = ["--api", api.url, "--table", str(table), *args]
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tools.engines_table", *options),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    said, _ = await child.communicate()
    assert child.returncode is not None
    return child.returncode, said.decode()


def read(table: Path) -> list[Release]:
    return msgspec.json.decode(table.read_bytes(), type=list[Release])


@pytest.mark.parametrize("args", [(), ("b9",)])
async def test_a_release_is_pinned_before_the_one_there_was(
    api: Api, table: Path, args: tuple[str, ...]
) -> None:
    before = read(table)[0]
    code, said = await written(api, table, *args)
    assert (code, said) == (0, f"b9: 4 archives in {table}\n")
    new, other = read(table)
    assert other == before
    assert (new.tag, new.commit) == ("b9", COMMIT)
    names = [archive.name for archive in new.archives]
    assert "llama-b9-bin-ubuntu-x64.tar.gz" in names
    assert not any("win" in name or "xcframework" in name for name in names)
    assert {archive.sha256 for archive in new.archives} == {SHA}
    api.commitish = "c" * 40
    await written(api, table)
    assert [release.tag for release in read(table)] == ["b9", before.tag]
    assert read(table)[0].commit == "c" * 40


async def test_what_has_no_hash_or_is_not_there_pins_nothing(
    api: Api, table: Path
) -> None:
    before = read(table)
    code, said = await written(api, table, "b10")
    assert code == 1
    assert "404" in said
    api.assets[0]["digest"] = None
    code, said = await written(api, table)
    assert code == 1
    assert "without its SHA-256" in said
    assert read(table) == before


def test_the_table_is_as_the_tool_writes_it() -> None:
    text = msgspec.json.format(msgspec.json.encode(releases()), indent=2)
    assert TABLE.read_bytes() == text + b"\n"
