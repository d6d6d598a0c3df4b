"""A host behind a shell: broken connections, odd paths, odd answers, odd processes."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from backends.errors import HostError, PeerUnreachable
from backends.paths import relay_binary
from backends.peers import remote_host
from backends.peers.local import LocalHost
from backends.peers.remote_host import RemoteHost
from backends.peers.shell import ShellResult
from tests.unit.peers.local_processes import (
    IGNORES_TERM,
    SLEEPER,
    executable,
    exists,
    first_line,
    kill_family_of,
    python,
    spec,
    wait_ended,
)
from tests.unit.peers.remote.local_shell import LocalShell

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from backends.peers.host import Host

ODD = 'it\'s a "run" $(touch hacked) `id` \\n; & * é✓ #'


def remote(shell: LocalShell, run_dir: Path) -> RemoteHost:
    return RemoteHost(shell, run_dir=str(run_dir), relay=str(relay_binary()))


def test_it_is_a_host(host: RemoteHost) -> None:
    a_host: Host = host
    assert a_host.name == "local"


async def test_each_sees_and_stops_what_the_other_started(
    host: RemoteHost, run_dir: Path
) -> None:
    local = LocalHost(run_dir)
    await host.start(spec("far"))
    await local.start(spec("near"))
    far, near = await host.records()
    assert [record.name for record in (far, near)] == ["far", "near"]
    seen = await local.records()
    assert [(r.pid, r.argv, r.state) for r in seen] == [
        (r.pid, r.argv, r.state) for r in (far, near)
    ]
    with pytest.raises(HostError, match="still runs"):
        await local.start(spec("far"))
    with pytest.raises(HostError, match="still runs"):
        await host.start(spec("near"))
    ended = [await local.stop("far"), await host.stop("near")]
    assert {r.exit_signal for r in ended if r is not None} == {signal.SIGTERM}
    assert await local.records() == await host.records() == ended


async def test_odd_paths(shell: LocalShell, tmp_path: Path) -> None:
    folder = tmp_path / ODD
    folder.mkdir()
    relay = folder / "the relay"
    shutil.copy(relay_binary(), relay)
    host = RemoteHost(shell, run_dir=str(folder / ODD), relay=str(relay))
    try:
        code = 'printf "%s\\n" "$0"; sleep 600; :'
        started = await host.start(spec(argv=("sh", "-c", code, ODD)))
        assert await first_line(host) == ODD
        assert started.argv[3] == ODD
        assert (await host.records())[0].log_path == f"{folder / ODD}/p/log"
        with pytest.raises(HostError, match="still runs"):
            await host.remove("p")
        shutil.rmtree(folder / ODD)
        orphans = {orphan.pid: orphan for orphan in await host.orphans()}
        assert orphans[started.pid].argv == started.argv
        await host.stop("p")
        assert not exists(started.pid)
        assert not (await host.orphans())
    finally:
        kill_family_of(folder / ODD)
    names = [name for _, _, files in os.walk(tmp_path) for name in files]
    assert "hacked" not in names


async def test_what_is_started_has_a_session_of_its_own(
    host: RemoteHost, run_dir: Path
) -> None:
    """That of the script ends with the connection."""
    started = await host.start(spec())
    assert os.getsid(started.pid) == started.pid
    assert (await LocalHost(run_dir).records())[0].alive


async def test_a_run_directory_behind_a_link(
    shell: LocalShell, run_dir: Path, tmp_path: Path
) -> None:
    os.mkdir(run_dir)
    os.symlink(run_dir, tmp_path / "link")
    host = remote(shell, tmp_path / "link")
    started = await host.start(spec())
    shutil.rmtree(run_dir / "p")
    assert [orphan.pid for orphan in await host.orphans()] == [started.pid]
    await host.stop("p")
    assert not exists(started.pid)


async def test_a_run_directory_that_cannot_be(
    shell: LocalShell, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HostError, match=r"file cannot be read.* on local"):
        await remote(shell, tmp_path / "file").records()
    with pytest.raises(HostError, match=r"Cannot use the directory .*run on local"):
        await remote(shell, tmp_path / "file/run").start(spec())


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory away")
async def test_a_run_directory_of_somebody_else(
    shell: LocalShell, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    os.chown(tmp_path / "run", 12345, 12345)
    with pytest.raises(HostError, match="not a directory owned by you"):
        await remote(shell, tmp_path / "run").start(spec())


@pytest.mark.parametrize("run_dir", ["", "run", "~/run", "/a\nb", "/a\0b"])
def test_a_run_directory_must_be_a_path(shell: LocalShell, run_dir: str) -> None:
    with pytest.raises(ValueError, match="run directory"):
        RemoteHost(shell, run_dir=run_dir, relay="/relay")


async def test_a_missing_helper_is_an_error(shell: LocalShell, run_dir: Path) -> None:
    host = RemoteHost(shell, run_dir=str(run_dir), relay="/no/such relay")
    with pytest.raises(HostError, match="/no/such relay cannot be run"):
        await host.start(spec())
    assert await host.records() == []


async def test_a_helper_that_hangs_is_an_error(
    shell: LocalShell, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper = executable(tmp_path / "helper", "#!/bin/sh\nexec sleep 600\n")
    monkeypatch.setattr(remote_host, "START_TIMEOUT_S", 0.5)
    host = RemoteHost(shell, run_dir=str(run_dir), relay=str(helper))
    with pytest.raises(HostError, match=r"longer than 0\.5 s"):
        await host.start(spec())


async def test_what_cannot_be_reached_says_so(
    host: RemoteHost, shell: LocalShell
) -> None:
    shell.broken = True
    calls = (
        host.start(spec()), host.record("p"), host.records(), host.stop("p"),
        host.remove("p"), host.orphans(), host.read_log("p", 0, 9), host.free_port(),
        host.listens(1, 1), host.port_owner(1), host.memory(),
    )  # fmt: skip
    for call in calls:
        with pytest.raises(PeerUnreachable, match="local cannot be reached"):
            await call


@pytest.mark.parametrize("kills", [True, False])
async def test_a_start_cut_off_is_done_or_not_done(
    host: RemoteHost, shell: LocalShell, kills: bool
) -> None:
    shell.breaking_kills = kills
    for milliseconds in range(0, 80, 8):
        shell.break_after_s = milliseconds / 1000
        with contextlib.suppress(PeerUnreachable):
            await host.start(spec())
        await shell.wait_silent()
        record = await host.record("p")
        assert record is None or record.alive
        if record is not None:
            with pytest.raises(HostError, match="still runs"):
                await host.start(spec())
        await host.stop("p")
        await host.remove("p")
    assert await host.orphans() == []
    assert (await host.start(spec())).alive


async def test_a_stop_cut_off_can_be_repeated(
    host: RemoteHost, shell: LocalShell
) -> None:
    started = await host.start(spec(argv=python(IGNORES_TERM)))
    await first_line(host)
    shell.break_after_s = 0.2
    with pytest.raises(PeerUnreachable):
        await host.stop("p", grace_s=60)
    assert exists(started.pid)
    record = await host.stop("p", grace_s=0)
    assert record is not None
    assert record.exit_signal == signal.SIGKILL
    await shell.wait_silent()


async def test_a_stop_left_behind_spares_a_later_process(
    host: RemoteHost, shell: LocalShell
) -> None:
    first = await host.start(spec(argv=python(IGNORES_TERM)))
    await first_line(host)
    shell.break_after_s = 0.2
    shell.breaking_kills = False
    with pytest.raises(PeerUnreachable):
        await host.stop("p", grace_s=2)
    os.kill(first.pid, signal.SIGKILL)
    await wait_ended(host)
    second = await host.start(spec())
    await shell.wait_silent()
    assert exists(second.pid)


async def test_what_outlives_sigkill_is_an_error(
    host: RemoteHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Tied:
        """A machine where signals get nowhere."""

        name = "local"

        async def run(self, script: str, *args: str, **options: object) -> ShellResult:
            script = script.replace("kill -s", "true -s")
            return await LocalShell().run(script, *args, check=False)

    started = await host.start(spec())
    monkeypatch.setattr(remote_host, "KILL_PATIENCE_S", 0.1)
    monkeypatch.setattr(host, "_shell", Tied())
    with pytest.raises(HostError, match=rf"p outlived SIGKILL \(pid {started.pid}\)"):
        await host.stop("p", grace_s=0.1)


@pytest.mark.parametrize(
    "answer",
    [
        "", "end of story", "record p", "alive 1\nend\n", "alive x 1 b:1\nend\n",
        "process p\nend\n", "\x00\xff\nend", "alive 1 9999999999999999999999 x\nend",
    ],
)  # fmt: skip
async def test_an_answer_without_sense(answer: str) -> None:
    class Odd:
        name = "odd"

        async def run(self, script: str, *args: str, **options: object) -> ShellResult:
            return ShellResult(code=0, stdout=answer, stderr="")

    host = RemoteHost(Odd(), run_dir="/run", relay="/relay")
    if answer == "\x00\xff\nend":
        assert await host.records() == []
        return
    with pytest.raises(HostError, match="odd gave an answer without sense"):
        await host.records()


async def test_a_shell_that_fails() -> None:
    class Failing:
        name = "odd"

        async def run(self, script: str, *args: str, **options: object) -> ShellResult:
            return ShellResult(code=127, stdout="", stderr="banner\nno awk here\n")

    host = RemoteHost(Failing(), run_dir="/run", relay="/relay")
    with pytest.raises(HostError, match=r"odd could not .* \(no awk here\)"):
        await host.records()


@pytest.fixture
def lookalike(run_dir: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A stranger whose environment looks like those of others, one of them ours."""
    text = f"\n==> /proc/{os.getpid()}/environ <==\nDLLM_PROCESS_DIR={run_dir}/p"
    process = subprocess.Popen(["sleep", "600"], env={"X": text, "Y": text.strip()})
    yield process
    process.kill()
    process.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_nobody_is_ended_for_what_another_says(
    host: RemoteHost, lookalike: subprocess.Popen[bytes]
) -> None:
    started = await host.start(spec())
    await host.stop("p", grace_s=0)
    assert not exists(started.pid)
    assert lookalike.poll() is None
    assert await host.orphans() == []


@pytest.mark.skipif(sys.platform != "linux", reason="names of Linux processes")
@pytest.mark.parametrize("name", ["a) Z 1 (b c", "x\n7 (y", ") X", "é\u0081"])
async def test_odd_names_of_programs(
    host: RemoteHost, tmp_path: Path, name: str
) -> None:
    program = tmp_path / name
    program.symlink_to("/bin/sleep")
    started = await host.start(spec(argv=(str(program), "600")))
    assert started.alive
    assert started.argv == (str(program), "600")
    ended = await host.stop("p")
    assert ended is not None
    assert ended.exit_signal == signal.SIGTERM


async def test_text_of_any_kind_survives(host: RemoteHost, run_dir: Path) -> None:
    words = (*map(chr, range(1, 0x250)), "a\nb", "\t", "\\n", "😀", " ")
    started = await host.start(spec(argv=("sh", "-c", "sleep 600; :", *words)))
    assert started.argv[3:] == words
    shutil.rmtree(run_dir / "p")
    orphans = {orphan.pid: orphan for orphan in await host.orphans()}
    assert orphans[started.pid].argv[3:] == words


async def test_a_zombie_is_dead(host: RemoteHost) -> None:
    started = await host.start(spec())
    supervisor = psutil.Process(started.pid).ppid()
    os.kill(supervisor, signal.SIGSTOP)
    os.kill(started.pid, signal.SIGKILL)
    record = await host.record("p")
    assert record is not None
    assert (record.alive, record.exit_signal) == (False, None)
    os.kill(supervisor, signal.SIGCONT)
    await host.stop("p")
    record = await host.record("p")
    assert record is not None
    assert record.exit_signal == signal.SIGKILL


async def test_many_records_cost_one_script(
    host: RemoteHost, shell: LocalShell
) -> None:
    for number in range(5):
        await host.start(spec(f"p{number}", SLEEPER))
    before = shell.count
    assert [record.alive for record in await host.records()] == [True] * 5
    assert shell.count == before + 1


async def test_the_environment_of_what_is_started_is_not_ours(
    host: RemoteHost,
) -> None:
    await host.start(spec(argv=("sh", "-c", "env; echo done; sleep 600")))
    while "done" not in (text := (await host.read_log("p", 0, 1 << 20)).text):
        pass
    names = {line.partition("=")[0] for line in text.splitlines()}
    assert {name for name in names if name.startswith("DLLM")} == {"DLLM_PROCESS_DIR"}
    assert ("LC_ALL" in names) == ("LC_ALL" in os.environ)


async def test_free_ports_are_free_and_not_given_twice(
    host: RemoteHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered: list[set[int]] = []

    def choose(ports: list[int]) -> int:
        offered.append(set(ports))
        return random.choice(ports[:12])

    monkeypatch.setattr(remote_host, "choice", choose)
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = [await host.free_port() for _ in range(10)]
        assert len(set(found)) == 10
        assert not any(server.getsockname()[1] in ports for ports in offered)
    assert all(min(ports) >= 1024 for ports in offered)
