"""Where models lie: the folders other programs keep them in, and walking them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from backends.demo import MODEL_PATH

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

DEPTH_MAX = 8
"""Folders below a configured one; the Hugging Face cache needs five."""
ENTRIES_MAX = 200_000
"""Directory entries looked at per folder: a home directory given by mistake ends."""


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
        # Where `llama-server -hf` stores downloads: Linux, then macOS.
        Folder("llama.cpp", place("LLAMA_CACHE", cache / "llama.cpp")),
        Folder("llama.cpp", home / "Library" / "Caches" / "llama.cpp"),
    )


def user_folders(model_dirs: Iterable[str]) -> tuple[Folder, ...]:
    """Where this user's models are: the bundled one, the configured, the usual."""
    bundled = Folder("bundled", MODEL_PATH.parent)
    return (bundled, *configured_folders(model_dirs, Path.home(), os.environ))


def configured_folders(
    model_dirs: Iterable[str], home: Path, env: Mapping[str, str]
) -> tuple[Folder, ...]:
    """The folders of the ``model_dirs`` setting, then the default ones."""
    own = (_expanded(text, home) for text in model_dirs)
    chosen = (Folder("models", path) for path in own if path.is_absolute())
    return (*chosen, *default_folders(home, env))


def _expanded(text: str, home: Path) -> Path:
    return home / text[2:] if text == "~" or text.startswith("~/") else Path(text)


def walk(root: Path, depth_max: int = DEPTH_MAX) -> Iterator[tuple[Path, list[str]]]:
    """Every directory from `root` down with the sorted names of its files.

    Symbolic links are followed, each directory is entered once, whatever loops there
    are; what cannot be read is passed over. Names are as the system gives them.
    """
    entered: set[tuple[int, int]] = set()
    waiting = [(root, 0)]
    seen = 0
    while waiting and seen < ENTRIES_MAX:
        directory, depth = waiting.pop()
        folders, files = _entries(directory, entered, ENTRIES_MAX - seen)
        seen += len(folders) + len(files)
        if files:
            yield directory, sorted(files)
        if depth < depth_max:
            names = sorted(folders, reverse=True)
            waiting += [(directory / name, depth + 1) for name in names]


def _entries(
    directory: Path, entered: set[tuple[int, int]], limit: int
) -> tuple[list[str], list[str]]:
    """Names of the folders and files of a directory not entered before."""
    folders: list[str] = []
    files: list[str] = []
    try:
        status = directory.stat()
        identity = (status.st_dev, status.st_ino)
        if identity in entered:
            return [], []
        entered.add(identity)
        with os.scandir(directory) as entries:
            for entry in entries:
                (folders if _is_folder(entry) else files).append(entry.name)
                if len(folders) + len(files) >= limit:
                    break
    except OSError:
        pass
    return folders, files


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False
