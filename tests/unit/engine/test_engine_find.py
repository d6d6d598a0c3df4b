"""Finding an engine: order of places, and plain words when there is none."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from backends.engine.install import (
    MANIFEST,
    PROGRAMS,
    Manifest,
    all_engines,
    engine_key,
    find_engine,
    host_cpu,
    install,
    installed,
    read_manifest,
)
from backends.engine.versions import DEFAULT, SOURCES, find_source
from backends.errors import EngineError, UsageError
from backends.paths import ENGINE_DIR_VARIABLE, Paths
from backends.state import EngineSource


@pytest.fixture
def paths(paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    monkeypatch.delenv(ENGINE_DIR_VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    return paths


def put(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return folder


def put_cached(paths: Paths, tmp_path: Path, index: int, **changes: object) -> Path:
    """An installed engine of a pinned version."""
    built = put(tmp_path / "built", *PROGRAMS)
    source = SOURCES[index]
    manifest = Manifest(
        key=source.key,
        version=source.version,
        package=source.package,
        sha256=source.sha256,
        rpc_protocol=source.rpc_protocol,
        accelerator="none",
        backends=("cpu", "rpc"),
        flags=(),
        host_cpu=host_cpu(),
        built_at=1.0,
    )
    target = paths.engines_dir / f"{source.key}-{len(installed(paths))}"
    install(built, target, msgspec.structs.replace(manifest, **changes))
    return target


def test_the_order_is_config_env_cache_path(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = ("llama-server", "ggml-rpc-server")
    on_path = put(tmp_path / "nothing", *both)
    assert find_engine(None, paths).directory == str(on_path)
    cached = put_cached(paths, tmp_path, 0)
    assert find_engine(None, paths).directory == str(cached)
    named = put(tmp_path / "env", *both)
    monkeypatch.setenv(ENGINE_DIR_VARIABLE, str(named))
    assert find_engine(None, paths).source is EngineSource.ENV
    mine = put(tmp_path / "mine", *both)
    assert find_engine(str(mine), paths).directory == str(mine)
    sources = [e.source for e in all_engines(str(mine), paths)]
    assert sources == ["config", "env", "cache", "path"]


def test_a_bin_folder_and_the_old_worker_name_will_do(
    paths: Paths, tmp_path: Path
) -> None:
    put(tmp_path / "build" / "bin", "llama-server", "rpc-server")
    found = find_engine(str(tmp_path / "build"), paths)
    assert found.worker_path.endswith("/build/bin/rpc-server")


def test_a_relative_path_and_a_home_are_made_absolute(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "e", "llama-server", "ggml-rpc-server")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_engine("~/e", paths).directory == str(tmp_path / "e")
    monkeypatch.chdir(tmp_path)
    assert find_engine("e", paths).directory == str(tmp_path / "e")


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ((), "holds no llama-server"),
        (("llama-server",), "has llama-server but no ggml-rpc-server"),
        (("ggml-rpc-server",), "holds no llama-server"),
    ],
)
def test_a_named_folder_without_engine_is_not_skipped(
    paths: Paths,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    names: tuple[str, ...],
    problem: str,
) -> None:
    put(tmp_path / "nothing", "llama-server", "ggml-rpc-server")
    folder = put(tmp_path / "half", *names)
    with pytest.raises(EngineError, match=problem):
        find_engine(str(folder), paths)
    monkeypatch.setenv(ENGINE_DIR_VARIABLE, str(folder))
    with pytest.raises(EngineError, match=r"\$DLLM_ENGINE_DIR"):
        find_engine(None, paths)


def test_a_named_folder_that_does_not_exist(paths: Paths, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="is not a directory"):
        find_engine(str(tmp_path / "gone"), paths)


def test_nothing_anywhere_names_the_way_out(paths: Paths) -> None:
    with pytest.raises(EngineError) as caught:
        find_engine(None, paths)
    assert "dllm-tui engine get" in str(caught.value)


def test_what_cannot_be_executed_is_no_engine(paths: Paths, tmp_path: Path) -> None:
    folder = put(tmp_path / "e", "llama-server", "ggml-rpc-server")
    (folder / "llama-server").chmod(0o644)
    if os.access(folder / "llama-server", os.X_OK):
        pytest.skip("everything is executable for this user")
    with pytest.raises(EngineError):
        find_engine(str(folder), paths)


def test_the_default_version_of_this_cpu_is_preferred(
    paths: Paths, tmp_path: Path
) -> None:
    put_cached(paths, tmp_path, 1, built_at=9.0)
    wanted = put_cached(paths, tmp_path, 0, built_at=2.0)
    put_cached(paths, tmp_path, 0, built_at=8.0, host_cpu="another")
    assert find_engine(None, paths).directory == str(wanted)


def test_a_manifest_without_sense_is_none(tmp_path: Path) -> None:
    for raw in (b"", b'{"version": 1', b'{"version": "\x80"}', b"[" * 100_000):
        (tmp_path / MANIFEST).write_bytes(raw)
        assert read_manifest(tmp_path) is None, raw[:9]


def test_half_an_engine_in_the_cache_is_none(paths: Paths, tmp_path: Path) -> None:
    target = put_cached(paths, tmp_path, 0)
    (target / "llama-server").unlink()
    assert installed(paths) == []
    install_again = put_cached(paths, tmp_path, 0)
    assert install_again == target
    assert len(installed(paths)) == 1
    assert [p.name for p in paths.engines_dir.iterdir()] == [target.name]


def test_versions_are_found_by_protocol_and_package() -> None:
    assert find_source(None) is DEFAULT
    assert find_source("7.0.0").package == "llama-cpp-python"
    assert find_source("v8.0.0").package == "xllamacpp"
    assert find_source("2026.10.11549").key == "8.0.0"
    assert find_source("llama-cpp-python==0.3.36").key == "7.0.0"
    with pytest.raises(UsageError, match=r"Known: 7\.0\.0"):
        find_source("6.0.0")


def test_the_key_depends_on_source_and_flags() -> None:
    keys = {
        engine_key(source, flags)
        for source in SOURCES
        for flags in ((), ("-DGGML_CUDA=ON",))
    }
    assert len(keys) == 4
    assert engine_key(SOURCES[0], ()) == engine_key(SOURCES[0], ())


def test_a_folder_that_cannot_be_looked_into_holds_none(
    paths: Paths, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As of another user's home; a name that is too long is refused alike."""
    folder = str(tmp_path / ("x" * 300))
    monkeypatch.setenv(ENGINE_DIR_VARIABLE, folder)
    with pytest.raises(EngineError, match="is not a directory"):
        find_engine(None, paths)
    monkeypatch.delenv(ENGINE_DIR_VARIABLE)
    monkeypatch.setenv("PATH", folder)
    with pytest.raises(EngineError):
        find_engine(None, paths)
