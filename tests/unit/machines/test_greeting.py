"""The one script for a machine without our helper, under every sh there is."""

from __future__ import annotations

import platform
import shutil
from typing import TYPE_CHECKING

import pytest

from backends.machines.provisioning import tools_of
from backends.machines.shell import Greeting, greet, greeting_of
from tests.kit.local_peer import LocalShell, write_program

if TYPE_CHECKING:
    from pathlib import Path

SHELLS = [("sh",), ("bash", "--posix"), ("busybox", "sh")]


@pytest.fixture(params=SHELLS, ids=lambda sh: sh[0])
def shell(request: pytest.FixtureRequest, home: Path) -> LocalShell:
    if shutil.which(request.param[0]) is None:
        pytest.skip(f"no {request.param[0]} here")
    return LocalShell(home, sh=request.param)


async def test_this_machine_and_its_helpers(shell: LocalShell) -> None:
    cache = shell.home / "elsewhere" / "dllm-tui"
    told = await greet(shell)
    assert (told.os, told.arch) == (platform.system(), platform.machine())
    assert told.libc == " ".join(platform.libc_ver())
    assert told.cores >= 1
    assert told.cache == str(shell.home / ".cache" / "dllm-tui")
    assert (told.helpers, told.newest) == ({}, "")
    assert list(shell.home.rglob("*")) == []
    shell.env["XDG_CACHE_HOME"] = str(cache.parent)
    older, newer = (
        str(write_program(cache / "relay" / version / "dllm-relay", ""))
        for version in ("0.9.0", "0.10.0")
    )
    (cache / "relay" / "0.10.0" / "made-from").write_text("abc")
    told = await greet(shell)
    assert told.helpers == {older: "", newer: "abc"}
    assert told.newest == newer


async def test_tools(shell: LocalShell) -> None:
    shell.env["DLLM_TOOL_PLACES"] = str(shell.home)
    shell.program("cmake", "cmake version 3.99.1")
    shell.program("g++", "none")
    shell.program("c++", "c++ (Debian) 12.2.0")
    tools = await tools_of(shell)
    assert tools["cmake"].version == "3.99.1"
    assert tools["cxx"].path == str(shell.home / "bin" / "c++")
    assert tools["cxx"].text == "c++ (Debian) 12.2.0"


@pytest.mark.parametrize("text", ["", "Welcome\n", "uname\ncores\tmany\nrelay\tx"])
def test_what_is_no_greeting_tells_nothing(text: str) -> None:
    assert greeting_of(text) == Greeting()
