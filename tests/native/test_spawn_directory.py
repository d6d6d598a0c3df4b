"""The process directory: records, exit status, refusals, the log and its limit."""

from __future__ import annotations

import os
import resource
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.kit.waiting import wait_until
from tests.native.identity import start_id
from tests.native.spawning import Spawned, Spawner


def test_the_record_tells_everything(spawner: Spawner) -> None:
    options = ["--env", "A=1", "--unset", "B", "--meta", '{"role":"worker"}']
    options += ["--ignore-sigpipe", "--log-limit", "1000", "--cwd", "/usr"]
    before = time.time()
    child = spawner.start("sleep", "60", options=options)
    record = child.record
    assert record["pid"] == child.pid
    assert record["start_id"] == child.start_id == start_id(child.pid)
    assert start_id(record["supervisor_pid"]) == record["supervisor_start_id"]
    assert before - 1 < record["started_at"] < time.time() + 1
    assert record["argv"] == ["sleep", "60"]
    assert (record["env"], record["unset"]) == ({"A": "1"}, ["B"])
    assert record["meta"] == '{"role":"worker"}'
    assert (record["ignore_sigpipe"], record["log_limit"]) == (True, 1000)
    assert record["cwd"] == "/usr"
    assert not (child.directory / "exit.json").exists()


def test_only_the_user_can_look_inside(spawner: Spawner) -> None:
    child = spawner.start("true")
    child.ended()
    assert stat.S_IMODE(child.directory.stat().st_mode) == 0o700
    for path in child.directory.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_secrets_do_not_stay_in_the_process_table(spawner: Spawner) -> None:
    options = ["--env", "TOKEN=hush1", "--meta", "hush2"]
    child = spawner.start("sh", "-c", ": hush3; sleep 60", options=options)
    shown = " ".join(psutil.Process(child.record["supervisor_pid"]).cmdline())
    assert "spawn" in shown
    assert str(child.directory) in shown
    assert "hush" not in shown


@pytest.mark.parametrize("code", [0, 1, 3, 255])
def test_exit_codes_are_recorded(spawner: Spawner, code: int) -> None:
    child = spawner.start("sh", "-c", f"exit {code}")
    end = child.ended()
    assert (end["code"], end["signal"]) == (code, None)
    assert (end["pid"], end["start_id"]) == (child.pid, child.start_id)
    assert abs(end["at"] - time.time()) < 60


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_signals_are_recorded(spawner: Spawner, number: signal.Signals) -> None:
    child = spawner.start("sleep", "60")
    os.kill(child.pid, number)
    end = child.ended()
    assert (end["code"], end["signal"]) == (None, number)


def test_the_supervisor_ends_with_its_child(spawner: Spawner) -> None:
    child = spawner.start("sleep", "60")
    supervisor = child.record["supervisor_pid"]
    os.kill(child.pid, signal.SIGTERM)
    wait_until(lambda: start_id(supervisor) is None, "the end of the supervisor")
    assert (child.directory / "exit.json").exists()


def not_executable(folder: Path) -> str:
    path = folder / "data"
    path.write_text("no program")
    path.chmod(0o600)
    return str(path)


def bad_interpreter(folder: Path) -> str:
    path = folder / "script"
    path.write_text("#!/no/such/interpreter\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (lambda folder: "dllm-no-such-program", "No such file"),
        (lambda folder: "/no/such/program", "No such file"),
        (lambda folder: "/usr", "Permission denied"),
        (not_executable, "Permission denied"),
        (bad_interpreter, "No such file"),
    ],
)
def test_what_cannot_be_executed_leaves_nothing(
    spawner: Spawner, tmp_path: Path, program: object, reason: str
) -> None:
    assert callable(program)
    command = program(tmp_path)
    done = spawner.run(command)
    assert (done.returncode, done.stdout) == (127, "")
    assert f"cannot execute '{command}'" in done.stderr
    assert reason in done.stderr
    assert not (tmp_path / "p").exists()


def test_a_missing_working_directory_leaves_nothing(
    spawner: Spawner, tmp_path: Path
) -> None:
    done = spawner.run("true", options=["--cwd", "/no/such/place"])
    assert done.returncode == 127
    assert "cannot enter /no/such/place: No such file" in done.stderr
    assert not (tmp_path / "p").exists()


def test_parents_are_made_and_relative_paths_resolved(
    spawner: Spawner, tmp_path: Path
) -> None:
    argv = [str(spawner.relay), "spawn", "--dir", "deep/er/p", "--", "sleep", "60"]
    subprocess.run(argv, cwd=tmp_path, check=True, timeout=20, capture_output=True)
    assert (tmp_path / "deep/er/p/process.json").exists()
    assert stat.S_IMODE((tmp_path / "deep").stat().st_mode) == 0o700


def test_a_living_process_keeps_its_directory(spawner: Spawner) -> None:
    child = spawner.start("sleep", "60")
    before = sorted(path.name for path in child.directory.iterdir())
    done = spawner.run("true")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"already runs in {child.directory} (pid {child.pid})" in done.stderr
    assert child.alive
    assert child.record["pid"] == child.pid
    assert sorted(path.name for path in child.directory.iterdir()) == before


def test_an_ended_process_is_replaced_and_its_log_kept_once(spawner: Spawner) -> None:
    for text in ("first", "second", "third"):
        child = spawner.start("echo", text)
        child.ended()
        assert child.log == f"{text}\n"
    assert (child.directory / "log.old").read_text() == "second\n"


def test_replacing_at_once_after_a_kill_succeeds(spawner: Spawner) -> None:
    """The supervisor of the killed one may still be writing."""
    for _ in range(20):
        child = spawner.start("sleep", "60")
        os.kill(child.pid, signal.SIGKILL)
        child.wait_gone()
    last = spawner.start("sh", "-c", "exit 7")
    assert last.ended()["code"] == 7


def test_a_file_in_the_way_is_named(spawner: Spawner, tmp_path: Path) -> None:
    (tmp_path / "p").write_text("a file")
    done = spawner.run("true")
    assert done.returncode == 1
    assert str(tmp_path / "p") in done.stderr
    assert (tmp_path / "p").read_text() == "a file"


def test_no_room_to_write_starts_nothing(spawner: Spawner, tmp_path: Path) -> None:
    witness = tmp_path / "witness"

    def no_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))

    done = spawner.run("touch", str(witness), preexec_fn=no_room)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"cannot write {tmp_path}/p/process.json: File too large" in done.stderr
    assert not (tmp_path / "p").exists()
    assert not witness.exists()


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if sys.platform != "linux" or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs root to mount a small disk")
    with (disk / "filler").open("wb", buffering=0) as filler:
        try:
            while filler.write(b"x" * 4096):
                pass
        except OSError:
            pass
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_starts_nothing(spawner: Spawner, full_disk: Path) -> None:
    witness = full_disk.parent / "witness"
    done = spawner.run("touch", str(witness), name="disk/p")
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert os.listdir(full_disk) == ["filler"]
    assert not witness.exists()


WRITER = "import sys, time\nwhile True: print('x' * 99, flush=True); time.sleep({})"


def logs(child: Spawned) -> int:
    return sum(path.stat().st_size for path in child.directory.glob("log*"))


def test_the_log_stays_within_its_limit(spawner: Spawner) -> None:
    options = ["--log-limit", "20000"]
    child = spawner.start(sys.executable, "-c", WRITER.format(0.001), options=options)
    rotated = child.directory / "log.1"
    wait_until(rotated.exists, "log.1")
    assert 20_000 <= rotated.stat().st_size <= 40_000
    first = rotated.stat().st_mtime_ns
    wait_until(lambda: rotated.stat().st_mtime_ns != first, "a second rotation")
    assert child.alive
    assert set(rotated.read_text().splitlines()) <= {"x" * n for n in range(100)}


def test_supervising_costs_nothing(spawner: Spawner) -> None:
    child = spawner.start("sleep", "60")
    supervisor = psutil.Process(child.record["supervisor_pid"])
    began = supervisor.num_ctx_switches().voluntary
    wait_until(
        lambda: supervisor.num_ctx_switches().voluntary >= began + 2, "two checks"
    )
    times = supervisor.cpu_times()
    assert times.user + times.system < 0.05
    assert supervisor.memory_info().rss < 64 << 20


def test_the_directory_may_vanish(spawner: Spawner) -> None:
    child = spawner.start("sleep", "60", options=["--log-limit", "10"])
    supervisor = child.record["supervisor_pid"]
    for path in child.directory.iterdir():
        path.unlink()
    child.directory.rmdir()
    os.kill(child.pid, signal.SIGTERM)
    wait_until(lambda: start_id(supervisor) is None, "the end of the supervisor")
    assert not child.directory.exists()
