"""Scripts on a peer: any login shell, any arguments, and ended in time."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from backends.errors import MachineError
from backends.machines.ssh import sessions
from tests.hosts.reaching import reached, until

if TYPE_CHECKING:
    from tests.hosts.network import Network

SHELLS = ("/bin/bash", "/bin/dash", "/usr/bin/fish", "/bin/csh")

AWKWARD = (
    "two words",
    "it's",
    '"quoted"',
    "line\nbreak\n",
    "$(touch ~/no) `touch ~/no` $HOME",
    "\\ \\n \t*?[a]{b,c}~!!;&|<>#%",
    "",
    "-n",
    "ünïcode ✓",
)
SHOW = r'for each in "$@"; do printf "<%s>" "$each"; done'


@pytest.mark.parametrize("shell", SHELLS)
async def test_login_shells(network: Network, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    network.write_ssh_config()
    peer = network.peer("ada")
    peer.set_login_shell(shell)
    async with reached("ada") as ada:
        result = await ada.run(SHOW, *AWKWARD)
        assert result.stdout == "".join(f"<{each}>" for each in AWKWARD)
        assert (result.code, result.stderr) == (0, "")
        assert not (peer.home / "no").exists()
        # The script's group is its own: what it leaves running dies with it.
        with pytest.raises(MachineError, match=r"longer than 0\.5 s"):
            await ada.run("sleep 601 & sleep 602", timeout_s=0.5)
        await until(lambda: peer.processes() == [], "their end")


async def test_what_a_script_sees(network: Network) -> None:
    network.write_ssh_config()
    async with reached("ada") as ada:
        result = await ada.run(
            'cat; echo "$LC_ALL $# $0"; set -- x; exit 3', check=False
        )
        assert (result.stdout, result.code) == ("C 0 /bin/sh\n", 3)
        heredoc = "cat <<'END'\n'quoted' $HOME\nEND"
        assert (await ada.run(heredoc)).stdout == "'quoted' $HOME\n"
        binary = await ada.run(r"printf '\377\000x'")
        assert binary.stdout == "\ufffd\0x"


async def test_failures_quote_the_last_line(network: Network) -> None:
    network.write_ssh_config()
    async with reached("ada") as ada:
        with pytest.raises(MachineError, match="on ada ended with status 7: no disk"):
            await ada.run("echo trying >&2; echo no disk >&2; exit 7")
        broken = await ada.run("if then", check=False)
        assert broken.code != 0
        assert "yntax" in broken.stderr
        killed = await ada.run("kill -KILL $$", check=False)
        assert killed.code == 137
        with pytest.raises(MachineError, match="NUL"):
            await ada.run("true", "a\0b")


async def test_lines_as_they_come(network: Network) -> None:
    network.write_ssh_config()
    peer = network.peer("ada")
    lines: list[str] = []
    async with reached("ada") as ada:
        follow = (
            "echo one; while [ ! -e ~/go ]; do sleep 0.05; done; printf 'two\nlast'"
        )
        task = asyncio.create_task(
            ada.run(follow, on_line=lines.append, timeout_s=None)
        )
        await until(lambda: lines == ["one"], "the first line")
        (peer.home / "go").touch()
        assert (await task).stdout == "one\ntwo\nlast"
    assert lines == ["one", "two", "last"]


async def test_cancelling_ends_the_script(network: Network) -> None:
    network.write_ssh_config()
    peer = network.peer("ada")
    async with reached("ada") as ada:
        task = asyncio.create_task(ada.run("sleep 600", timeout_s=None))
        await until(lambda: "sleep 600" in peer.processes(), "the sleep")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: peer.processes() == [], "its end")


async def test_closing_ends_the_script_and_spares_the_detached(
    network: Network,
) -> None:
    network.write_ssh_config()
    peer = network.peer("ada")
    async with reached("ada") as ada:
        detach = "setsid sleep 333 </dev/null >/dev/null 2>&1 & sleep 444"
        task = asyncio.create_task(ada.run(detach, timeout_s=None))
        await until(
            lambda: len([p for p in peer.processes() if "44" in p]) == 1, "both"
        )
    with pytest.raises(MachineError):
        await task
    await until(lambda: peer.processes() == ["sleep 333"], "its end")
    peer.kill_processes()


_RUN = """
import asyncio
from tests.hosts.reaching import reach
async def main():
    ada = reach("ada")
    await ada.connect()
    await ada.run("sleep 600", timeout_s=None)
asyncio.run(main())
"""


async def test_a_killed_console_leaves_no_script(network: Network) -> None:
    network.write_ssh_config()
    peer = network.peer("ada")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _RUN, env=network.env()
    )
    await until(lambda: "sleep 600" in peer.processes(), "the sleep")
    process.kill()
    await process.wait()
    await until(lambda: peer.processes() == [], "its end")


async def test_what_a_script_leaves_running_holds_nobody_up(network: Network) -> None:
    network.write_ssh_config()
    peer = network.peer("ada")
    async with reached("ada") as ada:
        left = "sleep 600 & trap '' TERM; sleep 601 & echo started; exit 4"
        result = await ada.run(left, check=False)
        assert (result.stdout, result.code) == ("started\n", 4)
        await until(lambda: peer.processes() == [], "their end")


async def test_output_is_bounded(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "STDOUT_LIMIT_BYTES", 1 << 20)
    network.write_ssh_config()
    count = 0

    def on_line(_line: str) -> None:
        nonlocal count
        count += 1

    async with reached("ada") as ada:
        with pytest.raises(MachineError, match="more than 1 MB"):
            await ada.run("yes")
        lines = f"yes {'y' * 19} | head -n 100000"
        much = f"{lines}; {lines} >&2; echo end >&2"
        result = await ada.run(much, on_line=on_line, timeout_s=60)
    assert count == 100_000
    assert len(result.stdout) <= (1 << 20) + (64 << 10)
    assert result.stderr.endswith("\nend\n")
    assert len(result.stderr) <= sessions.STDERR_LIMIT_BYTES + (64 << 10)


async def test_many_at_once(network: Network) -> None:
    network.write_ssh_config()
    async with reached("ada") as ada:
        numbers = [str(number) for number in range(30)]
        runs = (ada.run('sleep 0.05; echo "$1"', number) for number in numbers)
        results = await asyncio.gather(*runs)
        assert [result.stdout.strip() for result in results] == numbers


async def test_long_ones_leave_room_for_short_ones(network: Network) -> None:
    network.write_ssh_config()
    async with reached("ada") as ada:
        follow = [
            asyncio.create_task(ada.run("sleep 600", timeout_s=None)) for _ in range(4)
        ]
        await asyncio.gather(*(ada.run("true") for _ in range(10)))
        for task in follow:
            task.cancel()
        await asyncio.gather(*follow, return_exceptions=True)


async def test_large_scripts_and_arguments(network: Network) -> None:
    network.write_ssh_config()
    long = os.urandom(300_000).hex()
    async with reached("ada") as ada:
        padded = "# " + "x" * 200_000 + '\nprintf %s "$1"'
        assert (await ada.run(padded, long)).stdout == long
