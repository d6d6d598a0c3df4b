"""What a worker remembers: consoles, invitations, a pause; one change at a time."""

from __future__ import annotations

import stat
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from backends.errors import MachineError, UsageError
from backends.mesh.pairings import (
    CONSOLES_MAX,
    PairedConsole,
    PairingFile,
    Pairings,
    with_console,
)
from backends.mesh.quic_place import QuicPlace

SECRET = bytes(16)


@pytest.fixture
def pairings(tmp_path: Path) -> PairingFile:
    return PairingFile(tmp_path / "data" / "consoles.json")


def console(name: str, key: str = "") -> PairedConsole:
    return PairedConsole(name=name, key=key or f"ssh-ed25519 {name}", added_at=1.0)


def test_nothing_is_remembered_at_first(pairings: PairingFile) -> None:
    assert pairings.read() == Pairings()


def test_a_secret_is_good_once_and_never_kept(
    pairings: PairingFile, tmp_path: Path
) -> None:
    pairings.invite(SECRET, time.time() + 60)
    pairings.pair(SECRET, console("ada"))
    with pytest.raises(MachineError, match="used already"):
        pairings.pair(SECRET, console("eve"))
    assert [one.name for one in pairings.read().consoles] == ["ada"]
    file = tmp_path / "data" / "consoles.json"
    assert SECRET.hex() not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_an_expired_or_unknown_secret_is_told_as_such(pairings: PairingFile) -> None:
    pairings.invite(SECRET, time.time() - 1)
    with pytest.raises(MachineError, match="expired"):
        pairings.pair(SECRET, console("ada"))
    with pytest.raises(MachineError, match="not known"):
        pairings.pair(b"x" * 16, console("ada"))
    assert not pairings.read().consoles


def test_many_at_once_with_one_token_leave_one_paired(pairings: PairingFile) -> None:
    pairings.invite(SECRET, time.time() + 60)

    def pair(number: int) -> bool:
        try:
            PairingFile(pairings.path).pair(SECRET, console(f"c{number}"))
        except MachineError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(pair, range(8))) == 1
    assert len(pairings.read().consoles) == 1


def test_another_process_sees_a_change(pairings: PairingFile) -> None:
    other = PairingFile(pairings.path)
    assert not other.read().paused
    pairings.pause(True)
    assert other.read().paused


def test_a_console_is_renamed_and_revoked(pairings: PairingFile) -> None:
    for name in ("ada", "bob"):
        pairings.change(partial(_with, name=name))
    pairings.rename("ada", "studio")
    with pytest.raises(UsageError, match="already"):
        pairings.rename("bob", "studio")
    with pytest.raises(UsageError, match="Known: studio, bob"):
        pairings.revoke("ada")
    pairings.revoke("studio")
    assert [one.name for one in pairings.read().consoles] == ["bob"]


def _with(found: Pairings, name: str) -> Pairings:
    return with_console(found, console(name))


def test_the_same_key_is_one_console_and_a_name_is_one(pairings: PairingFile) -> None:
    found = _with(_with(Pairings(), "ada"), "ada")
    assert [one.name for one in found.consoles] == ["ada"]
    found = with_console(found, console("ada", "ssh-ed25519 other"))
    assert [one.name for one in found.consoles] == ["ada", "ada-2"]


def test_a_console_that_is_paired_again_keeps_its_name_and_is_dialled() -> None:
    quic = QuicPlace(node=bytes(32))
    joined = replace(console("studio"), places=("10.0.0.2:50070",), quic=quic)
    found = with_console(Pairings(), joined)
    named = replace(joined, name="ada", seen_at=7.0)
    found = replace(found, consoles=(named, console("bob")))
    again = replace(console("vm", joined.key), added_at=2.0)
    found = with_console(found, again)
    assert found.consoles == (replace(named, added_at=2.0), console("bob"))
    moved = replace(again, places=("10.0.0.3:50070",))
    assert with_console(found, moved).console("ada").places == moved.places
    assert with_console(found, moved).console("ada").quic is None


def test_there_is_room_for_some_consoles_only() -> None:
    found = Pairings()
    for number in range(CONSOLES_MAX):
        found = _with(found, f"c{number}")
    with pytest.raises(MachineError, match="no more fit"):
        _with(found, "one-more")


def test_a_damaged_file_is_said_by_name(pairings: PairingFile) -> None:
    pairings.path.parent.mkdir()
    pairings.path.write_text('{"consoles": 7}')
    with pytest.raises(MachineError, match=r"consoles\.json cannot be read"):
        pairings.read()
