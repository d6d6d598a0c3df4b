"""Building an engine: pip, CMake, Ninja and the compiler are the real ones.

llama.cpp is programs of one line each, in an sdist that pip finds in a folder.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backends.engine import build, install, versions
from backends.errors import EngineError, MachineError
from backends.paths import Paths, user_paths
from backends.state import EngineProgress
from tests.engine.conftest import User, wait_for
from tests.kit.releases import tar_of

pytestmark = pytest.mark.engine
CMAKELISTS = """
cmake_minimum_required(VERSION 3.14)
project(llama CXX)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
add_executable(llama-server server.cpp)
add_executable(ggml-rpc-server worker.cpp)
add_executable(llama-fit-params fit.cpp)
"""
PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
BACKEND = """
import os
def prepare_metadata_for_build_wheel(folder, settings=None):
    name = "llama_cpp_python-0.3.36.dist-info"
    os.mkdir(f"{folder}/{name}")
    with open(f"{folder}/{name}/METADATA", "w") as file:
        file.write("Metadata-Version: 2.1\\n")
        file.write("Name: llama-cpp-python\\nVersion: 0.3.36\\n")
    return name
"""
GOOD = "int main() { return 0; }\n"


def write_sdist(folder: Path, **programs: str) -> str:
    """A small llama_cpp_python sdist; its hash."""
    files = {
        "pyproject.toml": PYPROJECT,
        "backend.py": BACKEND,
        "PKG-INFO": "Metadata-Version: 2.1\nName: llama-cpp-python\nVersion: 0.3.36\n",
        "vendor/llama.cpp/CMakeLists.txt": CMAKELISTS,
        "vendor/llama.cpp/server.cpp": programs.get("server", GOOD),
        "vendor/llama.cpp/worker.cpp": programs.get("worker", GOOD),
        "vendor/llama.cpp/fit.cpp": programs.get("fit", GOOD),
    }
    folder.mkdir(exist_ok=True)
    archive = folder / "llama_cpp_python-0.3.36.tar.gz"
    contents = {name: text.encode() for name, text in files.items()}
    archive.write_bytes(tar_of(contents, top="llama_cpp_python-0.3.36/"))
    return hashlib.sha256(archive.read_bytes()).hexdigest()


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make pip find a small llama.cpp made of these programs, and pin it."""
    folder = tmp_path / "index"
    for name, value in offline(folder).items():
        monkeypatch.setenv(name, value)

    def make(*, pinned: bool = True, **programs: str) -> None:
        digest = write_sdist(folder, **programs)
        source = msgspec.structs.replace(versions.DEFAULT, sha256=digest)
        if pinned:
            monkeypatch.setattr(versions, "DEFAULT", source)

    return make


def offline(folder: Path) -> dict[str, str]:
    return {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
    }


async def test_the_whole_way_by_one_of_two_and_then_at_once(
    paths: Paths, offer: Callable[..., None]
) -> None:
    offer()
    seen: list[list[EngineProgress]] = [[], []]
    location, second = await asyncio.gather(
        *(build.build_engine(None, paths, progress=s.append) for s in seen)
    )
    assert location == second
    waiting, working = sorted(seen, key=lambda told: len({p.stage for p in told}))
    assert {p.stage.value for p in waiting} == {"wait", "done"}
    told = [p.text for p in (*waiting, *working) if p.stage == "wait"]
    assert sum("another dllm-tui" in text for text in told) == 1
    stages = list(dict.fromkeys(p.stage.value for p in working if p.stage != "wait"))
    assert stages == ["fetch", "unpack", "configure", "compile", "install", "done"]
    assert [p.fraction for p in working if p.stage == "compile"][-1] == 1.0
    assert install.find_engine(None, paths) == location
    manifest = install.read_manifest(Path(location.directory))
    assert manifest is not None
    assert manifest.rpc_protocol == "7.0.0"
    assert "-DGGML_RPC=ON" in manifest.flags
    left = sorted(p.name for p in (paths.cache_dir / "build").iterdir())
    assert left == [f"{Path(location.directory).name}.lock"]
    again: list[EngineProgress] = []
    assert await build.build_engine(None, paths, progress=again.append) == location
    assert [p.stage for p in again] == ["done"]
    # One without the memory tool gets it beside the rest.
    before = os.stat(location.server_path)
    os.unlink(location.fit_path)
    found = install.find_engine(None, paths)
    assert found.fit_path == ""
    again.clear()
    assert await build.build_engine(None, paths, progress=again.append) == location
    compiled = [p.text for p in again if p.stage == "compile"]
    assert compiled[-1].endswith("llama-fit-params")
    assert install.find_engine(None, paths) == location
    after = os.stat(location.server_path)
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


async def test_a_compile_error_keeps_the_log(
    paths: Paths, offer: Callable[..., None]
) -> None:
    offer(worker="int main() { return nonsense; }\n")
    with pytest.raises(EngineError, match="nonsense") as caught:
        await build.build_engine(None, paths)
    (log,) = (paths.cache_dir / "build").glob("*/build.log")
    assert str(log) in caught.value.hint
    assert "nonsense" in log.read_text()
    assert any("nonsense" in line for line in caught.value.failure().log_tail)
    assert install.installed(paths) == []


async def test_another_sdist_of_the_same_name_is_not_used(
    paths: Paths, offer: Callable[..., None]
) -> None:
    offer(pinned=False)
    with pytest.raises(EngineError, match="hash differs"):
        await build.build_engine(None, paths)
    assert not list((paths.cache_dir / "build").rglob("CMakeLists.txt"))


async def test_an_index_without_it(
    paths: Paths, offer: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    offer()
    monkeypatch.setenv("PIP_FIND_LINKS", str(paths.cache_dir))
    with pytest.raises(EngineError, match="offers no source"):
        await build.build_engine(None, paths)


async def test_no_network(
    paths: Paths, offer: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    offer()
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(EngineError, match="No network"):
        await build.build_engine(None, paths)


@pytest.mark.parametrize(("present", "missing"), [((), "C"), (("cc",), r"C\+\+")])
async def test_no_compiler(
    paths: Paths,
    tmp_path: Path,
    offer: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    present: tuple[str, ...],
    missing: str,
) -> None:
    offer()
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in present:
        (folder / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(EngineError, match=f"No working {missing} compiler"):
        await build.build_engine(None, paths)


# --- disks ----------------------------------------------------------------------


def on_disk(paths: Paths, disk: Path) -> Paths:
    return msgspec.structs.replace(paths, cache_dir=disk / "cache")


async def test_a_disk_too_small_is_refused_at_once(
    paths: Paths, offer: Callable[..., None], small_disk: Callable[[int], Path]
) -> None:
    offer()
    cache = on_disk(paths, small_disk(4 << 20))
    with pytest.raises(MachineError, match=r"has 4\.0 MiB free, and a b") as caught:
        await build.build_engine(None, cache)
    assert "XDG_CACHE_HOME" in caught.value.hint


@pytest.mark.parametrize(
    ("kib", "stage"),
    [
        (60, "fetch"),
        (330, "(configure|compile|install)"),
        *(
            pytest.param(kib, "(configure|compile|install)", marks=pytest.mark.trial)
            for kib in (300, 360, 390, 420, 450)
        ),
    ],
)
async def test_a_disk_that_becomes_full(
    paths: Paths,
    offer: Callable[..., None],
    small_disk: Callable[[int], Path],
    monkeypatch: pytest.MonkeyPatch,
    kib: int,
    stage: str,
) -> None:
    ballast = ",".join(str(i) for i in range(30_000))
    offer(server=f"int a[] = {{{ballast}}};\n{GOOD}")
    monkeypatch.setattr(build, "NEED_BYTES", 0)
    cache = on_disk(paths, small_disk(kib << 10))
    with pytest.raises(MachineError, match=f"full while .*{stage}"):
        await build.build_engine(None, cache, accelerator="none")
    assert install.installed(cache) == []


async def test_a_cache_that_cannot_be_written(
    paths: Paths, offer: Callable[..., None]
) -> None:
    offer()
    paths.cache_dir.write_text("a file")
    with pytest.raises(MachineError, match="Cannot write to"):
        await build.build_engine(None, paths)


# --- llama.cpp itself -------------------------------------------------------------


@pytest.fixture
def builder(user: User) -> User:
    """A user whose engines are built anew."""
    user.env["XDG_CACHE_HOME"] = str(user.home / "cache")
    # Or what is compiled is only fetched.
    user.env["CCACHE_DISABLE"] = "1"
    return user


def build_of(user: User) -> subprocess.Popen[str]:
    return user.start("engine", "build", "--jobs", "2")


def steps(user: User) -> list[tuple[int, int]]:
    logs = list(user.home.glob("cache/dllm-tui/build/*/build.log"))
    text = logs[0].read_text(errors="replace") if logs else ""
    found = re.findall(r"^\[(\d+)/(\d+)\]", text, re.M)
    return [(int(done), int(total)) for done, total in found]


def wait_for_steps(user: User, n: int) -> None:
    """Wait until so many files were compiled."""
    wait_for(lambda: len(steps(user)) >= n, f"{n} steps of the build", 240)


def wait_until_said(process: subprocess.Popen[str], text: str) -> None:
    assert process.stderr is not None
    assert any(text in line for line in process.stderr), f"it never said: {text}"


def end(process: subprocess.Popen[str], number: signal.Signals) -> str:
    """Send a signal; what the command said on stderr."""
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert out == ""
    assert "Traceback" not in err
    return err


@pytest.mark.trial
@pytest.mark.timeout(600)
def test_interrupted_builds_leave_nothing_running_and_go_on(builder: User) -> None:
    first = build_of(builder)
    wait_for_steps(builder, 3)
    second = build_of(builder)
    wait_until_said(second, "another dllm-tui gets or builds this engine")
    end(second, signal.SIGINT)
    err = end(first, signal.SIGINT)
    assert "Fetching the source" in err
    assert "Interrupted." in err
    assert builder.processes() == []
    done = steps(builder)
    total = done[0][1]

    again = build_of(builder)
    wait_for_steps(builder, len(done) + 2)
    err = end(again, signal.SIGTERM)
    assert "Compiling" in err
    for word in ("Fetching", "Unpacking", "Configuring"):
        assert word not in err
    assert builder.processes() == []
    resumed = steps(builder)[len(done)][1]
    # The files that were being compiled are compiled anew, the others are not.
    assert total - len(done) <= resumed <= total - len(done) + 2


@pytest.mark.timeout(2400)
async def test_the_users_engine_is_built_once() -> None:
    location = await build.build_engine(None, user_paths())
    again: list[EngineProgress] = []
    found = await build.build_engine(None, user_paths(), progress=again.append)
    assert found == location
    assert [p.stage for p in again] == ["done"]
    raw: dict[str, Any] = json.loads(
        (Path(location.directory) / install.MANIFEST).read_text()
    )
    assert raw["sha256"] == versions.DEFAULT.sha256
