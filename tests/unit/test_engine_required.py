"""The engine of the demo: the one that is there, else one that is got."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.errors import EngineError
from backends.paths import Paths
from tests.kit.local_peer import write_program
from tui.cli import engine
from tui.cli.engine import Made, require_engine


@pytest.fixture
def got(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Paths]:
    """Each time that an engine was got."""
    calls: list[Paths] = []

    async def get(paths: Paths) -> Made:
        calls.append(paths)
        return Made(None, ["llama.cpp 1, RPC 8.0.0 (got, 4.00 s)"])  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "_got", get)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.delenv("DLLM_ENGINE_DIR", raising=False)
    return calls


async def test_an_engine_that_is_there_is_named_and_used(
    got: list[Paths],
    paths: Paths,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("llama-server", "ggml-rpc-server"):
        write_program(tmp_path / "mine" / name, "")
    monkeypatch.setenv("DLLM_ENGINE_DIR", str(tmp_path / "mine"))
    await require_engine(paths)
    assert capsys.readouterr().err == f"The engine is there: {tmp_path}/mine (yours).\n"
    assert not got


async def test_without_one_it_is_got_and_said(
    got: list[Paths], paths: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    await require_engine(paths)
    assert got == [paths]
    assert capsys.readouterr().err == "llama.cpp 1, RPC 8.0.0 (got, 4.00 s)\n"


async def test_one_that_was_named_in_vain_is_not_replaced(
    got: list[Paths], paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLLM_ENGINE_DIR", "/nowhere")
    with pytest.raises(EngineError, match="is not a directory"):
        await require_engine(paths)
    assert not got
