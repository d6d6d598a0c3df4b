"""The keys of clients: made once, kept hashed, revoked at once, and limited."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from backends.errors import DllmError, UsageError
from backends.gateway.auth import Allowance
from backends.gateway.keys import Key, KeyFile, KeyRing
from backends.paths import user_paths
from tui.cli.main import cli

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "keys.json"


def test_a_key_is_kept_as_a_hash_for_this_user_alone(file: Path) -> None:
    secret = KeyFile(file).add("laptop")
    assert file.stat().st_mode & 0o777 == 0o600
    assert secret.partition("-")[2] not in file.read_text()
    assert len(secret) > 40
    assert KeyFile(file).add("nuc") != secret
    assert [key.name for key in KeyFile(file).read()] == ["laptop", "nuc"]


def test_a_ring_follows_what_is_added_and_removed(file: Path) -> None:
    ring, keys = KeyRing(file), KeyFile(file)
    assert ring.holder(["x"]) is None
    secret = keys.add("laptop")
    holder = ring.holder(["", "wrong", secret])
    assert holder is not None
    assert holder.name == "laptop"
    for almost in (secret[:-1], secret + " ", secret.upper(), holder.sha256, "\udcff"):
        assert ring.holder([almost]) is None
    keys.remove("laptop")
    assert ring.holder([secret]) is None


def test_a_file_that_others_can_write_or_nobody_reads_lets_nobody_in(
    file: Path,
) -> None:
    secret = KeyFile(file).add("laptop")
    ring = KeyRing(file)
    file.chmod(0o620)
    assert ring.holder([secret]) is None
    with pytest.raises(DllmError, match="chmod 600"):
        KeyFile(file).read()
    file.chmod(0o600)
    assert ring.holder([secret]) is not None
    file.write_text("{")
    assert ring.holder([secret]) is None
    with pytest.raises(DllmError, match="cannot be understood"):
        KeyFile(file).add("nuc")


@pytest.mark.parametrize(
    "told",
    [
        {"sha256": "é"},
        {"sha256": ""},
        {"sha256": "0" * 64, "requests_per_minute": -1},
        {"sha256": "0" * 64, "requests_at_once": -1},
    ],
)
def test_a_file_of_what_no_key_can_be_lets_nobody_in(
    file: Path, told: dict[str, object]
) -> None:
    file.parent.mkdir()
    file.write_text(json.dumps({"keys": [{"name": "odd", **told}]}))
    file.chmod(0o600)
    assert KeyRing(file).holder(["x"]) is None
    with pytest.raises(DllmError, match="cannot be understood"):
        KeyFile(file).read()


def test_keys_made_at_once_are_all_kept(file: Path) -> None:
    makers = [
        threading.Thread(target=KeyFile(file).add, args=(f"k{n}",)) for n in range(8)
    ]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert len(KeyFile(file).read()) == 8


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", "x" * 33, "a\x1b"])
def test_names_that_cannot_be_used(file: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be the name"):
        KeyFile(file).add(name)
    assert not file.exists()


def test_a_minutes_worth_may_come_at_once_and_grows_back() -> None:
    now = [0.0]
    key = Key(name="k", sha256="", requests_per_minute=3, requests_at_once=0)
    allowance = Allowance(lambda: now[0])
    for _ in range(3):
        assert allowance.wait_s(key) == 0
        allowance.begin()
        allowance.end()
    assert allowance.wait_s(key) == pytest.approx(20)
    now[0] = 20.001
    assert allowance.wait_s(key) == 0


def test_so_many_at_once_and_one_ends() -> None:
    key = Key(name="k", sha256="", requests_per_minute=0, requests_at_once=1)
    allowance = Allowance(lambda: 0.0)
    assert allowance.wait_s(key) == 0
    allowance.begin()
    assert allowance.wait_s(key) > 0
    allowance.end()
    assert allowance.wait_s(key) == 0


def test_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    runner = CliRunner()

    def run(*arguments: str) -> tuple[str, str]:
        result = runner.invoke(cli, ["keys", *arguments], catch_exceptions=False)
        return result.stdout.strip(), result.stderr

    secret, said = run("add", "laptop", "--at-once", "2")
    assert "shown this once" in said
    holder = KeyRing(user_paths().keys_file).holder([secret])
    assert holder is not None
    assert holder.requests_at_once == 2
    listed, said = run("list")
    assert [line.split() for line in listed.splitlines()] == [
        ["NAME", "AGE", "PER", "MINUTE", "AT", "ONCE"],
        ["laptop", "now", "240", "2"],
    ]
    told = run("list", "--json")[0]
    assert '"requests_per_minute": 240' in told
    assert "sha256" not in told
    with pytest.raises(UsageError, match="already"):
        run("add", "laptop")
    with pytest.raises(UsageError, match="Did you mean laptop"):
        run("remove", "lapptop")
    run("remove", "laptop")
    assert run("list")[0] == ""
