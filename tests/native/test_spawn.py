"""What a started process finds, its directory, and who outlives whom.

Each start is a request to an agent of its own, which ends when it has answered.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.kit.processes import exists, family_of, kill_family_of
from tests.kit.waiting import wait_until

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@dataclass(frozen=True)
class Started:
    directory: Path
    record: dict[str, Any]

    @property
    def pid(self) -> int:
        return int(self.record["pid"])

    @property
    def alive(self) -> bool:
        return exists(self.pid)

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text()

    def wait_gone(self) -> None:
        wait_until(lambda: not self.alive, "its end")

    def ended(self) -> dict[str, Any]:
        path = self.directory / "exit.json"
        wait_until(path.exists, "exit.json")
        value: dict[str, Any] = json.loads(path.read_text())
        return value

    def output(self) -> Any:
        assert self.ended()["code"] == 0, self.log
        return json.loads(self.log)


class Spawner:
    """Starts processes with directories under one folder."""

    def __init__(self, relay: Path, folder: Path) -> None:
        self.folder = folder
        self._argv = [str(relay), "agent", "--run-dir", str(folder)]

    def agent(
        self, *argv: str, name: str = "p", options: Any = None, **settings: Any
    ) -> subprocess.Popen[bytes]:
        """An agent that has just been asked; ``settings`` are those it is run with."""
        agent = subprocess.Popen(
            self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **settings
        )
        asked = {"id": 1, "do": "start", "name": name, "argv": argv, **(options or {})}
        assert agent.stdin
        agent.stdin.write(json.dumps(asked).encode() + b"\n")
        agent.stdin.flush()
        return agent

    def ask(self, *argv: str, **settings: Any) -> dict[str, Any]:
        with self.agent(*argv, **settings) as agent:
            assert agent.stdin
            assert agent.stdout
            agent.stdout.readline()
            answer: dict[str, Any] = json.loads(agent.stdout.readline())
            agent.stdin.close()
        return answer

    def start(self, *argv: str, name: str = "p", **settings: Any) -> Started:
        answer = self.ask(*argv, name=name, **settings)
        assert "ok" in answer, answer
        directory = self.folder / name
        return Started(directory, json.loads((directory / "process.json").read_text()))

    def refusal(self, *argv: str, **settings: Any) -> str:
        text: str = self.ask(*argv, **settings)["error"]["message"]
        return text


@pytest.fixture
def spawner(relay: Path, tmp_path: Path) -> Iterator[Spawner]:
    yield Spawner(relay, tmp_path)
    kill_family_of(tmp_path)


def probe(spawner: Spawner, expression: str, **settings: Any) -> Any:
    code = f"import json, os, signal, stat, sys; print(json.dumps({expression}))"
    return spawner.start(sys.executable, "-c", code, **settings).output()


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


@linux_only
def test_standard_streams_are_null_and_the_log(spawner: Spawner) -> None:
    names = probe(
        spawner, "[os.path.realpath(f'/proc/self/fd/{fd}') for fd in range(3)]"
    )
    assert names == ["/dev/null", *[str(spawner.folder / "p/log")] * 2]


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


def test_environment(spawner: Spawner) -> None:
    new = {"NEW": "a=b c", "KEPT": "changed", "EMPTY": "", "BACK": "again"}
    options = {"env": new, "unset": ["GONE", "BACK"]}
    env = {**os.environ, "GONE": "1", "BACK": "1", "KEPT": "1", "OTHER": "stays"}
    found = probe(spawner, "dict(os.environ)", options=options, env=env)
    assert found.items() >= {**new, "OTHER": "stays"}.items()
    assert "GONE" not in found


def test_programs_are_found_on_the_path_given(spawner: Spawner, tmp_path: Path) -> None:
    program = tmp_path / "bin/dllm-test-program"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho found\n")
    program.chmod(0o755)
    path = {"PATH": f"{program.parent}:/bin:/usr/bin"}
    child = spawner.start("dllm-test-program", options={"env": path})
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


def test_long_command_lines(spawner: Spawner) -> None:
    args = [str(i) * 60_000 for i in range(10)]
    code = "import json, sys; print(json.dumps([len(a) for a in sys.argv[1:]]))"
    child = spawner.start(sys.executable, "-c", code, *args)
    assert child.output() == [60_000] * 10
    assert child.record["argv"][3:] == args


# --- A started process outlives its supervisor, and a killed agent ---


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
    wait_until(lambda: not exists(child.record["supervisor_pid"]))
    assert child.alive
    assert "still runs" in spawner.refusal("true")
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


def test_a_killed_agent_leaves_a_whole_record_or_none(spawner: Spawner) -> None:
    for attempt in range(40):
        with spawner.agent("sleep", "60", name=f"p{attempt}") as agent:
            time.sleep(attempt * 0.0004)
            agent.kill()

    def recorded() -> set[int]:
        found = spawner.folder.glob("*/process.json")
        return {json.loads(path.read_text())["pid"] for path in found}

    def running() -> set[int]:
        return {one.pid for one in family_of(spawner.folder)}

    time.sleep(1.0)
    # What an agent had begun goes on for as long as a busy machine lets it.
    wait_until(lambda: recorded() == running(), "a record of each")


def test_of_many_with_one_name_one_wins(spawner: Spawner) -> None:
    for name in "abc":
        with ThreadPoolExecutor(20) as pool:
            asked = [
                pool.submit(spawner.ask, "sleep", "60", name=name) for _ in "x" * 20
            ]
        (winner,) = [one.result()["ok"] for one in asked if "ok" in one.result()]
        record = json.loads((spawner.folder / name / "process.json").read_text())
        assert winner["record"]["pid"] == record["pid"]
    assert len([*family_of(spawner.folder)]) == 3


# --- The process directory: records, refusals, the log and its limit ---


def test_the_record_tells_everything(spawner: Spawner) -> None:
    given: dict[str, Any] = {"env": {"A": "1"}, "unset": ["B"]}
    given |= {"meta": '{"role":"worker"}'}
    given |= {"ignore_sigpipe": True, "log_limit": 1000, "cwd": "/usr"}
    before = time.time()
    child = spawner.start("sleep", "60", options=given)
    record = child.record
    assert record.items() >= {**given, "argv": ["sleep", "60"]}.items()
    assert record["start_id"]
    assert record["supervisor_start_id"]
    assert before - 1 < record["started_at"] < time.time() + 1
    assert not (child.directory / "exit.json").exists()


def test_only_the_user_can_look_inside(spawner: Spawner) -> None:
    child = spawner.start("true")
    child.ended()
    assert stat.S_IMODE(child.directory.stat().st_mode) == 0o700
    for path in child.directory.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_supervisor_ends_with_its_child(spawner: Spawner) -> None:
    child = spawner.start("sleep", "60")
    supervisor = child.record["supervisor_pid"]
    os.kill(child.pid, signal.SIGTERM)
    wait_until(lambda: not exists(supervisor), "the end of the supervisor")
    end = child.ended()
    assert (end["pid"], end["start_id"]) == (child.pid, child.record["start_id"])
    assert abs(end["at"] - time.time()) < 60


def test_a_missing_directory_leaves_nothing(spawner: Spawner, tmp_path: Path) -> None:
    refusal = spawner.refusal("true", options={"cwd": "/no/such/place"})
    assert "cannot enter /no/such/place: No such file" in refusal
    assert not (tmp_path / "p").exists()


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
    assert str(tmp_path / "p") in spawner.refusal("true")
    assert (tmp_path / "p").read_text() == "a file"


def test_no_room_to_write_starts_nothing(spawner: Spawner, tmp_path: Path) -> None:
    witness = tmp_path / "witness"

    def no_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))

    refusal = spawner.refusal("touch", str(witness), preexec_fn=no_room)
    assert f"cannot write {tmp_path}/p/process.json: File too large" in refusal
    assert not (tmp_path / "p").exists()
    assert not witness.exists()


WRITER = "import sys, time\nwhile True: print('x' * 99, flush=True); time.sleep({})"


def test_the_log_stays_within_its_limit(spawner: Spawner) -> None:
    options = {"log_limit": 20_000}
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
    child = spawner.start("sleep", "60", options={"log_limit": 10})
    supervisor = child.record["supervisor_pid"]
    for path in child.directory.iterdir():
        path.unlink()
    child.directory.rmdir()
    os.kill(child.pid, signal.SIGTERM)
    wait_until(lambda: not exists(supervisor), "the end of the supervisor")
    assert not child.directory.exists()
