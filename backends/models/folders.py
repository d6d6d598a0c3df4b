"""The folders of models, also those of other programs, and walking them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from backends.demo import MODEL_PATH

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

DEPTH_MAX = 8
"""Folders below a configured one; the Hugging Face cache needs five."""
NAMED_MAX = 4


class Folder(NamedTuple):
    """A folder to search, and what kind of folder it is."""

    source: str
    """``bundled``, ``models``, ``huggingface``, ``lmstudio``, ``ollama``…: how the
    files in it are named, and what a listing shows."""
    path: Path


def default_folders(home: Path, env: Mapping[str, str]) -> tuple[Folder, ...]:
    """Every folder searched unasked; most of them will not exist.

    Args:
        home: the user's home directory.
        env: the environment: ``HF_HUB_CACHE``, ``HF_HOME``, ``OLLAMA_MODELS``,
            ``LLAMA_CACHE`` and ``XDG_CACHE_HOME`` move folders.
    """

    def place(variable: str, default: Path) -> Path:
        value = _expanded(env.get(variable, ""), home)
        return value if value.is_absolute() else default

    cache = place("XDG_CACHE_HOME", home / ".cache")
    hugging_face = place("HF_HOME", cache / "huggingface")
    hub = place("HUGGINGFACE_HUB_CACHE", hugging_face / "hub")
    return (
        Folder("models", home / ".models"),
        Folder("huggingface", place("HF_HUB_CACHE", hub)),
        Folder("lmstudio", home / ".lmstudio" / "models"),
        Folder("lmstudio", home / ".cache" / "lm-studio" / "models"),
        Folder("ollama", place("OLLAMA_MODELS", home / ".ollama" / "models")),
        # The downloads of `llama-server -hf`: Linux, then macOS.
        Folder("llama.cpp", place("LLAMA_CACHE", cache / "llama.cpp")),
        Folder("llama.cpp", home / "Library" / "Caches" / "llama.cpp"),
    )


def user_folders(model_dirs: Iterable[str]) -> tuple[Folder, ...]:
    """The folders of this user's models: bundled, configured, usual."""
    bundled = Folder("bundled", MODEL_PATH.parent)
    return (bundled, *configured_folders(model_dirs, Path.home(), os.environ))


def configured_folders(
    model_dirs: Iterable[str], home: Path, env: Mapping[str, str]
) -> tuple[Folder, ...]:
    """The folders of the ``model_dirs`` setting, then the default ones."""
    own = (_expanded(text, home) for text in model_dirs)
    chosen = (Folder("models", path) for path in own if path.is_absolute())
    return (*chosen, *default_folders(home, env))


def named_folders(folders: Sequence[str]) -> str:
    """`` in ~/.models, /data or 3 more folders``; empty if none was searched."""
    shown = list(folders)
    if len(shown) > NAMED_MAX:
        shown[NAMED_MAX - 1 :] = [f"{len(shown) - NAMED_MAX + 1} more folders"]
    firsts = ", ".join(shown[:-1])
    return f" in {' or '.join(filter(None, [firsts, *shown[-1:]]))}" if shown else ""


def _expanded(text: str, home: Path) -> Path:
    return home / text[2:] if text == "~" or text.startswith("~/") else Path(text)


NAMES_MAX = 500


def names_after(typed: str) -> tuple[str, ...]:
    """Completions of the last part of a whole path; folders end in ``/``.

    Names that begin with a dot only where one was typed. A folder that is not there,
    or may not be read, has none. Of very many some in the middle are left out: what all
    begin with is what the first and the last begin with.
    """
    folder, _, part = typed.rpartition("/")
    if not typed.startswith("/"):
        return ()
    try:
        with os.scandir(f"{folder}/") as entries:
            names = sorted(_fitting(entries, part))
    except (OSError, ValueError):
        return ()
    del names[NAMES_MAX - 1 : -1]
    return tuple(names)


def _fitting(entries: Iterator[os.DirEntry[str]], part: str) -> Iterator[str]:
    for entry in entries:
        name = entry.name
        hidden = name.startswith(".") and not part.startswith(".")
        if hidden or not name.startswith(part) or not name.isprintable():
            continue
        if _is_folder(entry):
            yield f"{name}/"
        elif name.lower().endswith(".gguf"):
            yield name


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False
