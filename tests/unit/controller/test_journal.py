"""What a controller leaves for the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from backends.controller.journal import Journal, Record
from backends.controller.lock import hold_lock
from backends.errors import ControllerError
from backends.split.layout import make_split
from backends.state import Plan

if TYPE_CHECKING:
    from pathlib import Path

PLAN = Plan(model="/m.gguf", split=make_split(1, ["local/CPU"], [2]))


def test_a_record_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "journal.json"
    Journal(file).save(Record(plan=PLAN, server_pid=42))
    assert Journal(file).load() == Record(plan=PLAN, server_pid=42)
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"", b"{", b'{"plan": 7}', b"\xff\xfe"])
def test_a_damaged_journal_is_an_empty_one(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "journal.json"
    file.write_bytes(content)
    assert Journal(file).load() == Record()


def test_a_journal_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    journal = Journal(tmp_path / "file" / "journal.json")
    journal.save(Record(plan=PLAN))
    assert journal.record.plan == PLAN


def test_one_lock_one_holder(tmp_path: Path) -> None:
    lock = hold_lock(tmp_path / "lock")
    with pytest.raises(ControllerError, match="Another controller"):
        hold_lock(tmp_path / "lock")
    assert lock >= 0
