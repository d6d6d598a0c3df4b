"""Verify a model's files: every byte is read, and compared if it can be."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from backends.models.identity import files_of, full_sha256, identity_of
from backends.models.layers import read_model
from backends.models.text import shown_path
from backends.state import Value

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# How Hugging Face's cache and Ollama's store name a file: by its own hash.
_NAMED_BY_HASH = re.compile(r"(?:sha256-)?([0-9a-f]{64})")


class VerifiedFile(Value, frozen=True, kw_only=True):
    """One file of a model, read to its end."""

    path: str
    size_bytes: int
    sha256: str
    """As ``sha256sum`` and Hugging Face's pages tell it; empty where not read."""
    expected_sha256: str = ""
    """By the name its store gave it; empty where that says nothing."""

    @property
    def damaged(self) -> bool:
        """True if its bytes are not those that its store names."""
        return bool(self.sha256 and self.expected_sha256 not in ("", self.sha256))


class VerifiedModel(Value, frozen=True, kw_only=True):
    """The result of verifying a model."""

    path: str
    name: str
    identity: str
    """Equal on every machine that holds these bytes."""
    files: tuple[VerifiedFile, ...]

    @property
    def damaged(self) -> bool:
        """True if any of its files is."""
        return any(file.damaged for file in self.files)


def verify_model(
    path: Path,
    *,
    quick: bool = False,
    on_bytes: Callable[[int, int], None] = lambda done, total: None,
    stopped: Callable[[], bool] = lambda: False,
) -> VerifiedModel:
    """Read headers and every byte of a model's files, the first part first.

    Args:
        path: any part of it.
        quick: headers and sizes alone: whether all parts and all tensors are there.
        on_bytes: told the bytes read, and all there are to read.
        stopped: asked after every MiB; once true, hashes stay empty.

    Raises:
        ModelError: a file is missing, cut short or no GGUF.
    """
    info = read_model(path)
    files = files_of(path)
    before = 0
    found = []
    for file in files:
        told = _further(on_bytes, before, info.size_bytes)
        sha256 = "" if quick else full_sha256(file, told, stopped)
        size_bytes = file.stat().st_size
        before += size_bytes
        found.append(
            VerifiedFile(
                path=shown_path(file),
                size_bytes=size_bytes,
                sha256=sha256,
                expected_sha256=_expected(file),
            )
        )
    return VerifiedModel(
        path=info.path,
        name=info.name,
        identity=identity_of(files[0]),
        files=tuple(found),
    )


def _further(
    on_bytes: Callable[[int, int], None], before: int, total: int
) -> Callable[[int], None]:
    return lambda done: on_bytes(before + done, total)


def _expected(file: Path) -> str:
    named = _NAMED_BY_HASH.fullmatch(file.resolve().name)
    return named[1] if named else ""
