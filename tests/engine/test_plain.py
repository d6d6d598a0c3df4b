"""``dllm-tui --plain`` on a real cluster: commands and a question, as lines."""

from __future__ import annotations

import subprocess

import pytest

from tests.engine.conftest import User

pytestmark = pytest.mark.engine


def test_a_session_in_lines(launched: User) -> None:
    process = launched.start("--plain", stdin=subprocess.PIPE)
    lines = ("What is a split?", "/again", "/chats list -o name", "/links list")
    out, err = process.communicate("\n".join(lines), timeout=60)
    assert process.returncode == 0
    opening, *said = out.splitlines()
    assert opening.startswith("dllm-tui, cluster default. Serving: ")
    assert len(said) > 4
    assert err.count("tok/s · first token") == 2
    assert not {"\x1b", "\r", "│", "█"} & set(out + err)
