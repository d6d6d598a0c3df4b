"""A copy reaches the desktop where there is one, and a file in any case."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from backends import clipboard
from backends.errors import DllmError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def desktop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A desktop whose clipboard is a file."""
    for name in ("SSH_CONNECTION", "WAYLAND_DISPLAY", "DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    board = tmp_path / "board"
    for name in ("wl-copy", "xclip"):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\necho {name} $* > {board}\ncat >> {board}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return board


@pytest.mark.parametrize(
    ("variable", "first"),
    [("WAYLAND_DISPLAY", "wl-copy"), ("DISPLAY", "xclip -selection clipboard")],
)
def test_it_goes_to_the_desktop_and_a_file(
    desktop: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    first: str,
) -> None:
    monkeypatch.setenv(variable, "0")
    clipboard.keep("a\nb", tmp_path / "state/copied.txt")
    assert desktop.read_text().splitlines() == [first, "a", "b"]
    kept = tmp_path / "state/copied.txt"
    assert kept.read_text() == "a\nb"
    assert kept.stat().st_mode & 0o077 == 0


def test_over_ssh_the_desktop_is_elsewhere(
    desktop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPLAY", "localhost:10.0")
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 1 10.0.0.2 22")
    clipboard.keep("text", tmp_path / "copied.txt")
    assert not desktop.exists()
    assert (tmp_path / "copied.txt").read_text() == "text"


def test_a_desktop_that_refuses_loses_nothing(
    desktop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAYLAND_DISPLAY", "0")
    (tmp_path / "wl-copy").write_text("#!/bin/sh\nexit 1\n")
    clipboard.keep("text", tmp_path / "copied.txt")
    assert (tmp_path / "copied.txt").read_text() == "text"


def test_a_disk_that_refuses_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DllmError, match="cannot be kept"):
        clipboard.keep("text", tmp_path / "file/copied.txt")
