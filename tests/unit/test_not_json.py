"""Bytes that are no JSON: every reader says so, or does without."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.engine.install import MANIFEST, read_manifest
from backends.engine.sse import AnswerReader
from backends.errors import DllmError
from backends.link.wire import parse
from tui.model.files import recall

WITHIN = b'{"error": "\x80", "theme": "\x80", "failure": {"what": "\x80", "hint": ""}}'
pytestmark = pytest.mark.parametrize(
    "raw",
    [b"", b'{"version": 1', WITHIN, b'"\x80"', b"[" * 100_000],
    ids=["nothing", "torn", "no Unicode within", "no Unicode", "deep"],
)


def test_the_consoles_memory_says_so(raw: bytes, tmp_path: Path) -> None:
    file = tmp_path / "console.json"
    file.write_bytes(raw)
    with pytest.raises(DllmError, match="cannot be read"):
        recall(file)


def test_a_manifest_is_none(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_bytes(raw)
    assert read_manifest(tmp_path) is None


def test_a_line_of_the_relay_is_none(raw: bytes) -> None:
    assert parse(raw) is None


def test_an_event_of_an_answer_is_none(raw: bytes) -> None:
    assert not list(AnswerReader(lambda: 0.0).take(raw))
