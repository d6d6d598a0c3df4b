"""What a user may type for a machine, and the pick list."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.errors import UsageError
from backends.machines.ssh.config import Destination, configured_names

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "host", "user", "port"),
    [
        ("mini", "mini", "", None),
        (" mini ", "mini", "", None),
        ("ada@mini", "mini", "ada", None),
        ("ada@10.0.0.7:2222", "10.0.0.7", "ada", 2222),
        ("mini:22", "mini", "", 22),
        ("ssh://ada@mini:2222", "mini", "ada", 2222),
        ("SSH://mini/", "mini", "", None),
        ("[fd00::1]:22", "fd00::1", "", 22),
        ("[fd00::1]", "fd00::1", "", None),
        ("fd00::1", "fd00::1", "", None),
        ("ada@fe80::1%eth0", "fe80::1%eth0", "ada", None),
        ("ada@home@mini", "mini", "ada@home", None),
    ],
)
def test_parsed(text: str, host: str, user: str, port: int | None) -> None:
    assert Destination.parse(text) == Destination(host=host, user=user, port=port)


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "@mini", "ada@", ":22", "[fd00::1", "[fd00::1]22", "[]:22"),
        *("-oProxyCommand=x", "-v@mini", "ada@-mini", "ssh://-x"),
        *("two words", "mi\nni", "mi\x00ni", "mi;ni", "$(x)", "`x`", "a|b", "a/b"),
        *("mini:", "mini:0", "mini:65536", "mini:x", "mini:-1", "mini:٣"),
        *("*.lan", "ssh://mini/path", "'mini'"),
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(UsageError, match="cannot be a machine"):
        Destination.parse(text)


@given(
    host=st.from_regex(r"[a-z0-9][a-z0-9.-]{0,20}|fd00::[0-9a-f]{1,4}", fullmatch=True),
    user=st.from_regex(r"([a-z][a-z0-9_-]{0,9})?", fullmatch=True),
    port=st.none() | st.integers(1, 65535),
)
def test_text_and_back(host: str, user: str, port: int | None) -> None:
    destination = Destination(host=host, user=user, port=port)
    assert Destination.parse(str(destination)) == destination


def test_names_of_a_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    ssh = tmp_path / ".ssh"
    (ssh / "more").mkdir(parents=True)
    (ssh / "config").write_text(
        "Include more/*.conf missing\n"
        "# Host commented\n"
        "Host mini studio *.lan !secret\n"
        "    HostName 10.0.0.7\n"
        "    Hostname 10.0.0.8\n"
        'host="quoted" # why not\n'
        "HOST mini\n"
        "Host *\n"
        "Match host x\n"
        "Host 'unfinished\n"
        "    Include ~/.ssh/config\n"
    )
    (ssh / "more" / "a.conf").write_text("Host first\nHost -dash\n")
    expected = ["first", "mini", "studio", "quoted"]
    assert configured_names() == expected
    assert configured_names(ssh / "config") == expected


def test_no_config(tmp_path: Path) -> None:
    assert configured_names(tmp_path / "none") == []
