"""Trusted keys: found as OpenSSH finds them, appended as it reads them."""

from __future__ import annotations

import stat
import subprocess
from typing import TYPE_CHECKING

import asyncssh
import msgspec
import pytest

from backends.errors import HostError
from backends.machines.ssh.config import resolve
from backends.machines.ssh.login import (
    fingerprint,
    known_lines,
    matcher,
    remember,
)
from tests.unit.machines.ssh.test_errors import WHERE

if TYPE_CHECKING:
    from pathlib import Path

    from backends.machines.ssh.config import Settings


@pytest.fixture(scope="module")
def key() -> asyncssh.SSHKey:
    return asyncssh.generate_private_key("ssh-ed25519").convert_to_public()


@pytest.fixture(scope="module")
def other() -> asyncssh.SSHKey:
    return asyncssh.generate_private_key("ssh-ed25519").convert_to_public()


@pytest.fixture
def where(tmp_path: Path) -> Settings:
    return msgspec.structs.replace(WHERE, known_hosts=(tmp_path / "ssh" / "known",))


def text_of(key: asyncssh.SSHKey) -> str:
    return " ".join(key.export_public_key("openssh").decode().split()[:2])


def test_remembered_and_found(where: Settings, key: asyncssh.SSHKey) -> None:
    assert known_lines(where) == []
    remember(where, key)
    path = where.known_hosts[0]
    assert path.read_text() == f"[10.0.0.7]:2222 {text_of(key)}\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [line.number for line in known_lines(where)] == [1]
    assert matcher(where)("10.0.0.7", "10.0.0.7", 2222)[0] == [key]
    assert matcher(where)("10.0.0.7", "10.0.0.7", None)[0] == []
    argv = ["ssh-keygen", "-F", "[10.0.0.7]:2222", "-f", str(path)]
    assert subprocess.run(argv, check=False, capture_output=True).returncode == 0


def test_appended_behind_what_is_there(where: Settings, key: asyncssh.SSHKey) -> None:
    path = where.known_hosts[0]
    path.parent.mkdir()
    path.write_text("# mine\nbroken line\nx ssh-ed25519 AAAA")
    remember(where, key)
    assert path.read_text().splitlines()[:3] == [
        "# mine",
        "broken line",
        "x ssh-ed25519 AAAA",
    ]
    assert [line.number for line in known_lines(where)] == [4]


def test_only_the_name_counts(
    where: Settings, key: asyncssh.SSHKey, other: asyncssh.SSHKey
) -> None:
    path = where.known_hosts[0]
    path.parent.mkdir()
    path.write_text(f"mini {text_of(key)}\n10.0.0.9 {text_of(other)}\n")
    assert matcher(where)("MINI", "10.0.0.9", None)[0] == [key]


def test_hashed_revoked_and_certifying(
    where: Settings, key: asyncssh.SSHKey, other: asyncssh.SSHKey
) -> None:
    path = where.known_hosts[0]
    path.parent.mkdir()
    path.write_text(f"mini {text_of(key)}\n")
    argv = ["ssh-keygen", "-H", "-f", str(path)]
    subprocess.run(argv, check=True, capture_output=True)
    with path.open("a") as file:
        file.write(f"@revoked * {text_of(other)}\n@cert-authority * {text_of(other)}\n")
    assert matcher(where)("mini", "", None) == ([key], [other], [other])


@pytest.mark.parametrize(
    "line", ["x", "@odd * y z", "|1|x|y ssh-rsa AAAA", "* ssh-rsa ////", "\xff \0 \t"]
)
def test_broken_lines_lock_nobody_out(
    where: Settings, key: asyncssh.SSHKey, line: str
) -> None:
    path = where.known_hosts[0]
    path.parent.mkdir()
    path.write_text(f"{line}\nmini {text_of(key)}\n", encoding="latin-1")
    assert matcher(where)("mini", "", None)[0] == [key]
    assert known_lines(where) == []


def test_an_alias_stands_without_port(where: Settings, key: asyncssh.SSHKey) -> None:
    aliased = msgspec.structs.replace(where, alias="the-mini")
    remember(aliased, key)
    assert where.known_hosts[0].read_text().startswith("the-mini ssh-ed25519 ")
    assert matcher(aliased)("the-mini", "", 2222)[0] == [key]


def test_a_file_that_cannot_be_written(where: Settings, key: asyncssh.SSHKey) -> None:
    where.known_hosts[0].mkdir(parents=True)
    with pytest.raises(HostError, match="cannot be remembered"):
        remember(where, key)


def test_no_file_to_remember_in(where: Settings, key: asyncssh.SSHKey) -> None:
    remember(msgspec.structs.replace(where, known_hosts=()), key)


def test_fingerprint_is_what_openssh_prints(
    tmp_path: Path, key: asyncssh.SSHKey
) -> None:
    path = tmp_path / "key.pub"
    path.write_text(text_of(key))
    argv = ["ssh-keygen", "-l", "-f", str(path)]
    assert subprocess.check_output(argv, text=True).split()[1] == fingerprint(key)


def test_settings_of_a_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    config = tmp_path / "config"
    config.write_text(
        "Host mini\n  HostName 10.0.0.7\n  User ada\n  Port 2222\n"
        "  ProxyJump gate,eve@far:22\n  IdentityFile ~/.ssh/special\n"
        "  HostKeyAlias the-mini\n  UserKnownHostsFile ~/.ssh/a ~/.ssh/b\n"
    )
    found = resolve(WHERE.destination, config)
    assert (found.host, found.user, found.port) == ("10.0.0.7", "ada", 2222)
    assert [str(jump) for jump in found.jumps] == ["gate", "eve@far:22"]
    assert found.identities == (tmp_path / ".ssh" / "special",)
    assert found.known_name == "the-mini"
    assert found.known_hosts[:2] == (tmp_path / ".ssh" / "a", tmp_path / ".ssh" / "b")
    assert found.label == "mini (10.0.0.7 port 2222)"


def test_settings_without_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    found = resolve(WHERE.destination)
    assert (found.host, found.port, found.jumps) == ("mini", 22, ())
    assert found.known_hosts[0] == tmp_path / ".ssh" / "known_hosts"
    assert tmp_path / ".ssh" / "id_ed25519" in found.identities
    assert found.label == "mini"
