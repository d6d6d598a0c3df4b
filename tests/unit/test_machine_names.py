"""Names of machines."""

from __future__ import annotations

import pytest

from backends.direct_address import DirectAddress, place_of, wanted_place
from backends.errors import UsageError
from backends.machine_names import is_place, suggested_name


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("mini", "mini"),
        ("ada@mini.lan:2222", "mini"),
        ("ssh://ada@mini.lan", "mini"),
        ("10.0.0.7:50052", "10.0.0.7"),
        ("ada@[fe80::1]:22", "fe80-1"),
        ("fe80::1", "fe80-1"),
        ("worker3", "my-worker3"),
        ("local", "my-local"),
        ("ada", "ada-2"),
        ("", ""),
        ("üb er", "b-er"),
        ("x" * 60, "x" * 29),
    ],
)
def test_a_peers_name_is_suggested(address: str, name: str) -> None:
    assert suggested_name(address, {"ada", "bob"}) == name


def test_the_command_and_the_console_suggest_one_name() -> None:
    assert suggested_name("ada@mini.lan") == "mini"


# --- Where a relay on another machine listens for the head's ---


@pytest.mark.parametrize(
    ("ssh_connection", "address"),
    [
        ("10.0.0.2 51234 10.0.0.7 22", "10.0.0.7"),
        ("fd00::2 51234 fd00::7 22\n", "fd00::7"),
        ("::ffff:10.0.0.2 51234 ::ffff:10.0.0.7 22", "10.0.0.7"),
    ],
)
def test_address_is_that_at_which_ssh_came(ssh_connection: str, address: str) -> None:
    for setting in (None, "auto"):
        assert place_of(setting, ssh_connection) == DirectAddress(address=address)


@pytest.mark.parametrize(
    ("ssh_connection", "why"),
    [
        ("", "does not say"),
        ("UNKNOWN 65535 UNKNOWN 65535", "does not say"),
        ("127.0.0.1 51234 127.0.0.1 2222", "at a loopback address"),
        ("::1 51234 ::1 22", "at a loopback address"),
        ("fe80::2%eth0 51234 fe80::7%eth0 22", "at a link-local address"),
        ("fd00::2%eth0 51234 fd00::7%eth0 22", "at a link-local address"),
        ("::ffff:127.0.0.1 1 ::ffff:127.0.0.1 22", "at a loopback address"),
        ("10.0.0.2 51234 0.0.0.0 22", "at every address"),
    ],
)
def test_no_address_has_a_reason(ssh_connection: str, why: str) -> None:
    found = place_of("auto", ssh_connection)
    assert found.endpoint(7) == ""
    assert why in found.why


@pytest.mark.parametrize(
    ("setting", "endpoint"),
    [
        ("10.0.0.7", "10.0.0.7:7"),
        ("169.254.3.7", "169.254.3.7:7"),
        ("10.0.0.7:50060", "10.0.0.7:50060"),
        ("fd00::7", "[fd00::7]:7"),
        ("[fd00::7]", "[fd00::7]:7"),
        ("[fd00::7]:50060", "[fd00::7]:50060"),
    ],
)
def test_an_address_may_be_told(setting: str, endpoint: str) -> None:
    assert place_of(setting, "10.0.0.2 51234 10.0.0.9 22").endpoint(7) == endpoint


def test_a_tunnel_may_be_told() -> None:
    found = place_of("tunnel", "10.0.0.2 51234 10.0.0.7 22")
    assert (found.endpoint(7), found.why) == ("", 'its settings say data = "tunnel"')


@pytest.mark.parametrize(
    "setting",
    [
        *("mini", "mini.local:4711", "10.0.0.7:", "10.0.0.7:0", "10.0.0.7:65536"),
        *("", "[fd00::7", "10.0.0.7:x", "0.0.0.0", "[::]:4711", "unix:/x"),
        *("::ffff:0.0.0.0", "127.0.0.1:4711", "::1", "fe80::7%eth0", "ff02::1"),
    ],
)
def test_what_is_no_address_is_refused(setting: str) -> None:
    with pytest.raises(UsageError, match="data cannot be"):
        wanted_place(setting)


def test_a_place_is_a_host_with_a_port() -> None:
    for place in ("10.0.0.7:50080", "nuc.lan:1", "[fd00::2]:80", "[fe80::1%eth0]:80"):
        assert is_place(place)
    for other in ("mini", "ada@mini:22", "fd00::2", "ssh://mini:22", "a b:1", "mini:x"):
        assert not is_place(other)
