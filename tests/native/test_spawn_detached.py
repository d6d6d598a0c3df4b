"""A spawned process outlives terminals, callers and its supervisor; many at once."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from tests.kit.waiting import wait_until
from tests.native.identity import start_id
from tests.native.spawning import Spawned, Spawner, marked


def test_it_returns_while_the_child_runs(spawner: Spawner) -> None:
    began = time.monotonic()
    child = spawner.start("sleep", "60")
    assert time.monotonic() - began < 10
    assert child.alive


def test_a_hang_up_of_the_terminal_ends_neither(spawner: Spawner) -> None:
    shell, terminal = pty.fork()
    if shell == 0:
        # A test run under nohup ignores it.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        argv = spawner.argv(["sleep", "60"], "p", [])
        # The shell stays, as the session leader whose terminal goes away.
        os.execvp("sh", ["sh", "-c", '"$@"; exec sleep 60', "sh", *argv])
    record = spawner.folder / "p/process.json"
    wait_until(record.exists, "the record")
    os.close(terminal)
    os.waitpid(shell, 0)
    process = json.loads(record.read_text())
    child = Spawned(record.parent, process["pid"], process["start_id"])
    # The record is there a moment before the program is.
    end = record.parent / "exit.json"
    wait_until(
        lambda: marked(spawner.folder) == {child.pid} or end.exists(), "the program"
    )
    assert child.alive, end.read_text()
    assert start_id(process["supervisor_pid"]) == process["supervisor_start_id"]


def test_a_hang_up_at_any_moment_starts_it_or_nothing(spawner: Spawner) -> None:
    """The directory is claimed only where a hang-up ends nothing any more."""
    for attempt in range(60):
        caller = subprocess.Popen(
            spawner.argv(["sleep", "60"], f"p{attempt}", []),
            stdout=subprocess.DEVNULL,
        )
        time.sleep(attempt * 0.0001)
        caller.send_signal(signal.SIGHUP)
        caller.wait()
    settled = time.monotonic() + 1.0
    wait_until(lambda: time.monotonic() > settled)
    claimed = set(spawner.folder.iterdir())
    assert claimed
    assert {path.parent for path in spawner.folder.glob("*/process.json")} == claimed
    assert len(marked(spawner.folder)) == len(claimed)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT]
)
def test_the_supervisor_stays_with_its_child(
    spawner: Spawner, number: signal.Signals
) -> None:
    child = spawner.start("sleep", "60")
    os.kill(child.record["supervisor_pid"], number)
    os.kill(child.pid, signal.SIGKILL)
    assert child.ended()["signal"] == signal.SIGKILL


def test_a_killed_supervisor_leaves_the_child_and_its_record(spawner: Spawner) -> None:
    child = spawner.start("sleep", "60")
    os.kill(child.record["supervisor_pid"], signal.SIGKILL)
    wait_until(lambda: start_id(child.record["supervisor_pid"]) is None)
    assert child.alive
    assert spawner.run("true").returncode == 1
    os.kill(child.pid, signal.SIGKILL)
    child.wait_gone()
    assert not (child.directory / "exit.json").exists()
    assert spawner.start("sh", "-c", "exit 5").ended()["code"] == 5


def test_the_supervisor_holds_nothing_of_its_caller(spawner: Spawner) -> None:
    extra = os.open("/dev/null", os.O_RDONLY)
    child = spawner.start(
        "sleep", "60", pass_fds=[extra], cwd=spawner.folder, start_new_session=True
    )
    os.close(extra)
    supervisor = psutil.Process(child.record["supervisor_pid"])
    assert supervisor.cwd() == "/"
    inside = {"lock", ""}
    held = {path.path for path in supervisor.open_files()} - {"/dev/null"}
    assert {os.path.basename(path) for path in held} <= inside
    assert os.getsid(supervisor.pid) not in (os.getsid(0), supervisor.pid)
    assert supervisor.terminal() is None


def test_nobody_needs_to_read_the_answer(spawner: Spawner) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = spawner.run("sleep", "60", capture_output=False, stdout=writer)
    os.close(writer)
    assert done.returncode == 0
    assert (spawner.folder / "p/process.json").exists()


def test_a_caller_killed_at_any_moment_leaves_a_whole_record_or_none(
    spawner: Spawner,
) -> None:
    for attempt in range(40):
        name = f"p{attempt}"
        caller = subprocess.Popen(
            spawner.argv(["sleep", "60"], name, []), stdout=subprocess.DEVNULL
        )
        time.sleep(attempt * 0.0001)
        caller.kill()
        caller.wait()
    settled = time.monotonic() + 1.0
    wait_until(lambda: time.monotonic() > settled)
    recorded = {
        json.loads(path.read_text())["pid"]
        for path in spawner.folder.glob("*/process.json")
    }
    assert recorded == marked(spawner.folder)


def test_two_hundred_at_once(spawner: Spawner) -> None:
    def start(number: int) -> Spawned:
        return spawner.start("sleep", "60", name=f"p{number}")

    with ThreadPoolExecutor(50) as pool:
        children = list(pool.map(start, range(200)))
    assert len({child.pid for child in children}) == 200
    assert all(child.alive for child in children)
    supervisors = [child.record["supervisor_pid"] for child in children]
    for child in children:
        os.killpg(child.pid, signal.SIGTERM)
    assert {child.ended()["signal"] for child in children} == {signal.SIGTERM}
    wait_until(lambda: all(start_id(pid) is None for pid in supervisors))


def test_of_many_with_one_name_one_wins(spawner: Spawner) -> None:
    for name in "abc":
        with ThreadPoolExecutor(20) as pool:
            done = list(
                pool.map(
                    lambda _, name=name: spawner.run("sleep", "60", name=name),
                    range(20),
                )
            )
        winners = [run for run in done if run.returncode == 0]
        assert len(winners) == 1
        record = json.loads((spawner.folder / name / "process.json").read_text())
        assert json.loads(winners[0].stdout)["pid"] == record["pid"]
    assert len(marked(spawner.folder)) == 3


def test_failing_and_succeeding_starts_of_one_name_do_not_mix(spawner: Spawner) -> None:
    commands = [["sleep", "60"], ["dllm-no-such-program"]] * 10
    with ThreadPoolExecutor(20) as pool:
        codes = list(pool.map(lambda c: spawner.run(*c).returncode, commands))
    assert codes.count(0) == 1
    record = json.loads((spawner.folder / "p/process.json").read_text())
    assert marked(spawner.folder) == {record["pid"]}
