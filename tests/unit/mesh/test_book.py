"""What a worker remembers: consoles, invitations, a pause; one change at a time."""

from __future__ import annotations

import stat
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from backends.errors import HostError, UsageError
from backends.mesh.book import CONSOLES_MAX, Book, BookFile, PairedConsole, with_console

SECRET = bytes(16)


@pytest.fixture
def book(tmp_path: Path) -> BookFile:
    return BookFile(tmp_path / "data" / "consoles.json")


def console(name: str, key: str = "") -> PairedConsole:
    return PairedConsole(name=name, key=key or f"ssh-ed25519 {name}", added_at=1.0)


def test_nothing_is_remembered_at_first(book: BookFile) -> None:
    assert book.read() == Book()


def test_a_secret_is_good_once_and_never_kept(book: BookFile, tmp_path: Path) -> None:
    book.invite(SECRET, time.time() + 60)
    book.pair(SECRET, console("ada"))
    with pytest.raises(HostError, match="used already"):
        book.pair(SECRET, console("eve"))
    assert [one.name for one in book.read().consoles] == ["ada"]
    file = tmp_path / "data" / "consoles.json"
    assert SECRET.hex() not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_an_expired_or_unknown_secret_is_told_as_such(book: BookFile) -> None:
    book.invite(SECRET, time.time() - 1)
    with pytest.raises(HostError, match="expired"):
        book.pair(SECRET, console("ada"))
    with pytest.raises(HostError, match="not known"):
        book.pair(b"x" * 16, console("ada"))
    assert not book.read().consoles


def test_many_at_once_with_one_token_leave_one_paired(book: BookFile) -> None:
    book.invite(SECRET, time.time() + 60)

    def pair(number: int) -> bool:
        try:
            BookFile(book.path).pair(SECRET, console(f"c{number}"))
        except HostError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(pair, range(8))) == 1
    assert len(book.read().consoles) == 1


def test_another_process_sees_a_change(book: BookFile) -> None:
    other = BookFile(book.path)
    assert not other.read().paused
    book.pause(True)
    assert other.read().paused


def test_a_console_is_renamed_and_revoked(book: BookFile) -> None:
    for name in ("ada", "bob"):
        book.change(partial(_with, name=name))
    book.rename("ada", "studio")
    with pytest.raises(UsageError, match="already"):
        book.rename("bob", "studio")
    with pytest.raises(UsageError, match="Known: studio, bob"):
        book.revoke("ada")
    book.revoke("studio")
    assert [one.name for one in book.read().consoles] == ["bob"]


def _with(found: Book, name: str) -> Book:
    return with_console(found, console(name))


def test_the_same_key_is_one_console_and_a_name_is_one(book: BookFile) -> None:
    found = _with(_with(Book(), "ada"), "ada")
    assert [one.name for one in found.consoles] == ["ada"]
    found = with_console(found, console("ada", "ssh-ed25519 other"))
    assert [one.name for one in found.consoles] == ["ada", "ada-2"]


def test_there_is_room_for_some_consoles_only() -> None:
    found = Book()
    for number in range(CONSOLES_MAX):
        found = _with(found, f"c{number}")
    with pytest.raises(HostError, match="no more fit"):
        _with(found, "one-more")


def test_a_damaged_file_is_said_by_name(book: BookFile) -> None:
    book.path.parent.mkdir()
    book.path.write_text('{"consoles": 7}')
    with pytest.raises(HostError, match=r"consoles\.json cannot be read"):
        book.read()
