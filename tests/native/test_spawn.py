"""What a spawned process finds: descriptors, signals, session, environment, argv."""

from __future__ import annotations

import json
import os
import pty
import resource
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.kit.waiting import wait_until
from tests.native.identity import start_id
from tests.native.spawning import Spawned, Spawner, marked

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def probe(
    spawner: Spawner,
    expression: str,
    *args: str,
    options: Sequence[str] = (),
    **settings: Any,
) -> Any:
    code = f"import json, os, signal, stat, sys; print(json.dumps({expression}))"
    return spawner.start(
        sys.executable, "-c", code, *args, options=options, **settings
    ).output()


def test_no_descriptor_is_inherited(spawner: Spawner) -> None:
    extra = [os.open("/dev/null", os.O_RDONLY) for _ in range(5)]
    high = os.dup2(extra[0], 200)
    try:
        found = probe(spawner, "os.listdir('/dev/fd')", pass_fds=[*extra, high])
    finally:
        for fd in (*extra, high):
            os.close(fd)
    # One more is that of the listing itself.
    assert sorted(map(int, found)) == [0, 1, 2, 3]


def test_standard_streams_are_null_and_the_log(spawner: Spawner) -> None:
    names = probe(
        spawner,
        "[os.path.realpath(f'/proc/self/fd/{fd}') for fd in range(3)]"
        if sys.platform == "linux"
        else "['/dev/null', '', '']",
    )
    assert names[0] == "/dev/null"
    if sys.platform == "linux":
        assert names[1:] == [str(spawner.folder / "p/log")] * 2


def test_output_is_appended_in_order(spawner: Spawner) -> None:
    script = "for i in 1 2 3; do echo out $i; echo err $i >&2; done"
    child = spawner.start("sh", "-c", script)
    child.ended()
    assert child.log == "".join(f"out {i}\nerr {i}\n" for i in (1, 2, 3))


def numbers(mask: str) -> set[int]:
    """The signals of a mask in /proc, without the two glibc keeps for itself.

    glibc's posix_spawn, which make uses, leaves those ignored in whatever it starts.
    """
    return {n for n in signal.valid_signals() if int(mask, 16) >> (n - 1) & 1}


@linux_only
@pytest.mark.parametrize("ignored", [True, False])
def test_sigpipe_is_ignored_only_when_asked(spawner: Spawner, ignored: bool) -> None:
    options = ["--ignore-sigpipe"] if ignored else []
    child = spawner.start("cat", "/proc/self/status", options=options)
    child.ended()
    mask = next(x for x in child.log.splitlines() if x.startswith("SigIgn")).split()[1]
    assert numbers(mask) == ({signal.SIGPIPE} if ignored else set())


@linux_only
def test_what_the_caller_blocks_and_ignores_is_forgotten(spawner: Spawner) -> None:
    def harden() -> None:
        for number in (signal.SIGHUP, signal.SIGCHLD, signal.SIGTERM, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())

    child = spawner.start("cat", "/proc/self/status", preexec_fn=harden)
    assert child.ended()["code"] == 0
    fields = dict(line.split(":\t") for line in child.log.splitlines() if ":\t" in line)
    assert numbers(fields["SigIgn"]) == set()
    assert numbers(fields["SigBlk"]) == set()


def test_it_leads_a_session_and_a_group_of_its_own(spawner: Spawner) -> None:
    pid, sid, group = probe(spawner, "[os.getpid(), os.getsid(0), os.getpgrp()]")
    assert pid == sid == group


def test_it_has_no_terminal(spawner: Spawner) -> None:
    child = spawner.start("sh", "-c", "exec 3</dev/tty && echo has one")
    assert child.ended()["code"] != 0


def test_files_it_makes_are_private(spawner: Spawner) -> None:
    assert probe(spawner, "os.umask(0)") == 0o077


def test_working_directory(spawner: Spawner, tmp_path: Path) -> None:
    assert probe(spawner, "os.getcwd()") == "/"
    assert probe(spawner, "os.getcwd()", options=["--cwd", str(tmp_path)]) == str(
        tmp_path
    )


def test_environment(spawner: Spawner) -> None:
    options = ["--env", "NEW=a=b c", "--env", "KEPT=changed", "--env", "EMPTY="]
    options += ["--unset", "GONE", "--unset", "BACK", "--env", "BACK=again"]
    env = {**os.environ, "GONE": "1", "BACK": "1", "KEPT": "1", "OTHER": "stays"}
    found = probe(spawner, "dict(os.environ)", options=options, env=env)
    assert found["NEW"] == "a=b c"
    assert found["KEPT"] == "changed"
    assert found["EMPTY"] == ""
    assert found["BACK"] == "again"
    assert found["OTHER"] == "stays"
    assert "GONE" not in found


def test_it_is_marked_with_its_directory(spawner: Spawner) -> None:
    env = {**os.environ, "DLLM_PROCESS_DIR": "/of/somebody/else"}
    found = probe(spawner, "os.environ['DLLM_PROCESS_DIR']", env=env)
    assert found == str(spawner.folder / "p")


def test_programs_are_found_on_the_path_given(spawner: Spawner, tmp_path: Path) -> None:
    program = tmp_path / "bin/dllm-test-program"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho found\n")
    program.chmod(0o755)
    child = spawner.start(
        "dllm-test-program", options=["--env", f"PATH={program.parent}:/bin:/usr/bin"]
    )
    child.ended()
    assert child.log == "found\n"


STRANGE_ARGS = [
    "two words", "it's", '"quoted"', "back\\slash", "new\nline", "tab\t", "$HOME",
    "*", "", "--dir", "--", "é€😀", "{}", "a=b", "\x01\x7f",
]  # fmt: skip


def test_arguments_arrive_unchanged_and_are_recorded(spawner: Spawner) -> None:
    code = "import json, sys; print(json.dumps(sys.argv[1:]))"
    child = spawner.start(sys.executable, "-c", code, *STRANGE_ARGS)
    assert child.output() == STRANGE_ARGS
    assert child.record["argv"] == [sys.executable, "-c", code, *STRANGE_ARGS]


def test_arguments_of_no_text_arrive_and_records_stay_json(spawner: Spawner) -> None:
    child = spawner.start("printf", "%s", os.fsdecode(b"a\xff\xc3b"))
    child.ended()
    assert (child.directory / "log").read_bytes() == b"a\xff\xc3b"
    assert child.record["argv"][2] == "a��b"


def test_long_command_lines(spawner: Spawner) -> None:
    args = [str(i) * 60_000 for i in range(10)]
    code = "import json, sys; print(json.dumps([len(a) for a in sys.argv[1:]]))"
    child = spawner.start(sys.executable, "-c", code, *args)
    assert child.output() == [60_000] * 10
    assert child.record["argv"][3:] == args


def test_children_of_it_share_its_group(spawner: Spawner) -> None:
    child = spawner.start("sh", "-c", "sleep 60 & echo $!; wait")
    wait_until(lambda: child.log.endswith("\n"))
    assert os.getpgid(int(child.log)) == child.pid
    os.killpg(child.pid, signal.SIGKILL)
    assert child.ended()["signal"] == signal.SIGKILL


# --- A spawned process outlives terminals, callers and its supervisor; many at once ---


def test_it_returns_while_the_child_runs(spawner: Spawner) -> None:
    assert spawner.start("sleep", "600").alive


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
        time.sleep(attempt * 0.0004)
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
def test_supervisors_stay_to_the_end(spawner: Spawner, number: signal.Signals) -> None:
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


def test_a_killed_caller_leaves_a_whole_record_or_none(spawner: Spawner) -> None:
    for attempt in range(40):
        name = f"p{attempt}"
        caller = subprocess.Popen(
            spawner.argv(["sleep", "60"], name, []), stdout=subprocess.DEVNULL
        )
        time.sleep(attempt * 0.0004)
        caller.kill()
        caller.wait()
    settled = time.monotonic() + 1.0
    wait_until(lambda: time.monotonic() > settled)
    recorded = {
        json.loads(path.read_text())["pid"]
        for path in spawner.folder.glob("*/process.json")
    }
    assert recorded == marked(spawner.folder)


def test_eighty_at_once(spawner: Spawner) -> None:
    def start(number: int) -> Spawned:
        return spawner.start("sleep", "60", name=f"p{number}")

    with ThreadPoolExecutor(40) as pool:
        children = list(pool.map(start, range(80)))
    assert len({child.pid for child in children}) == 80
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


# --- The process directory: records, exit status, refusals, the log and its limit ---


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


def test_a_missing_directory_leaves_nothing(spawner: Spawner, tmp_path: Path) -> None:
    done = spawner.run("true", options=["--cwd", "/no/such/place"])
    assert done.returncode == 127
    assert "cannot enter /no/such/place: No such file" in done.stderr
    assert not (tmp_path / "p").exists()


def test_parents_are_made_and_paths_resolved(spawner: Spawner, tmp_path: Path) -> None:
    argv = [str(spawner.relay), "spawn", "--dir", "deep/er/p", "--", "sleep", "60"]
    subprocess.run(argv, cwd=tmp_path, check=True, timeout=20, capture_output=True)
    assert (tmp_path / "deep/er/p/process.json").exists()
    assert stat.S_IMODE((tmp_path / "deep").stat().st_mode) == 0o700


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
