"""How a path that is being typed may go on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from backends.models.search import NAMES_MAX, names_after

if TYPE_CHECKING:
    from pathlib import Path


def test_folders_and_models_are_names_and_others_are_none(tmp_path: Path) -> None:
    for folder in ("models", "music", ".cache"):
        (tmp_path / folder).mkdir()
    for file in ("mini.gguf", "Mega.GGUF", "notes.txt", "m\x1b[2J.gguf"):
        (tmp_path / file).touch()
    os.mkdir(os.fsencode(tmp_path) + b"/m\xff")
    at = f"{tmp_path}/"
    assert names_after(at) == ("Mega.GGUF", "mini.gguf", "models/", "music/")
    assert names_after(f"{at}m") == ("mini.gguf", "models/", "music/")
    assert names_after(f"{at}mo") == ("models/",)
    assert names_after(f"{at}.") == (".cache/",)
    assert names_after(f"{at}models") == ("models/",)
    assert names_after(f"{at}models/") == ()


def test_what_is_no_folder_has_no_names(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for typed in (
        "",
        "x",
        "mini:/x",
        f"{tmp_path}/gone/",
        f"{tmp_path}/file/x",
        "/\0/",
    ):
        assert names_after(typed) == ()


def test_a_folder_of_many_is_answered_in_part(tmp_path: Path) -> None:
    for number in range(NAMES_MAX + 5):
        (tmp_path / f"1{number:04}.gguf").touch()
    names = names_after(f"{tmp_path}/")
    assert len(names) == NAMES_MAX
    assert (names[0], names[-1]) == ("10000.gguf", f"1{NAMES_MAX + 4:04}.gguf")
    (tmp_path / "2.gguf").touch()
    assert names_after(f"{tmp_path}/")[-1] == "2.gguf"


def test_a_link_that_leads_nowhere_hides_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "gone").symlink_to("nowhere")
    (tmp_path / "mini.gguf").touch()
    (tmp_path / "there").symlink_to(tmp_path)
    assert names_after(f"{tmp_path}/") == ("mini.gguf", "there/")
