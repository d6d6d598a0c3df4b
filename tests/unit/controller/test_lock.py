"""One controller per state: who holds the lock says who and where it is."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from backends.controller.lock import hold_lock, lock_holder
from backends.errors import ControllerError
from backends.state import API_VERSION, ControllerInfo

INFO = ControllerInfo(api=API_VERSION, version="1.2", pid=4711, socket="/run/x.sock")


def test_one_lock_one_holder(tmp_path: Path) -> None:
    lock = hold_lock(tmp_path / "lock", INFO)
    with pytest.raises(ControllerError, match=r"Another controller.*4711"):
        hold_lock(tmp_path / "lock", INFO)
    assert lock_holder(tmp_path / "lock") == INFO
    os.close(lock)
    assert lock_holder(tmp_path / "lock") is None


def test_a_shorter_signature_leaves_nothing_of_the_one_before(tmp_path: Path) -> None:
    os.close(hold_lock(tmp_path / "lock", INFO))
    short = ControllerInfo(api=1, pid=2)
    lock = hold_lock(tmp_path / "lock", short)
    assert lock_holder(tmp_path / "lock") == short
    os.close(lock)


@pytest.mark.parametrize("content", [b"815", b"", b'{"pid":'])
def test_what_is_no_signature(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "lock"
    file.write_bytes(content)
    with file.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert lock_holder(file) is None


def test_nobody_holds_what_is_not_there(tmp_path: Path) -> None:
    assert lock_holder(tmp_path / "none") is None


def test_whoever_only_asks_does_not_stop_a_controller_from_starting(
    tmp_path: Path,
) -> None:
    """A shared lock held for a moment is waited for."""
    file = tmp_path / "lock"
    file.touch()
    with file.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        with pytest.raises(ControllerError):
            hold_lock(file, INFO)
        fcntl.flock(held, fcntl.LOCK_UN)
        os.close(hold_lock(file, INFO))
