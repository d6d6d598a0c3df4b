"""Names of machines."""

from __future__ import annotations

import pytest

from backends.places import suggested_name


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
