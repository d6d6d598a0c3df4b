"""Starting processes on this machine, and what is known of them afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from backends.errors import DllmError, MachineError
from backends.machines import agent as agent_host
from backends.machines.agent import PRIVATE, AgentSession, ProcessSpec
from backends.state import ProcessRole, ProcessState
from tests.kit.processes import exists
from tests.unit.machines.processes import (
    IGNORES_TERM,
    LEAVES_A_STRAY,
    SAYS_GOODBYE,
    SLEEPER,
    first_line,
    known,
    python,
    shell,
    spec,
    stopped,
    stray_in_a_lost_session,
    wait_ended,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from backends.machines.agent import AgentSession

    OpenAgent = Callable[..., AgentSession]
    from collections.abc import Iterator


async def test_a_started_process_is_known(agent: AgentSession, run_dir: Path) -> None:
    before = time.time()
    record = await agent.start(
        ProcessSpec(name="w", role=ProcessRole.WORKER, argv=SLEEPER, port=50052)
    )
    assert (record.name, record.role, record.port) == ("w", ProcessRole.WORKER, 50052)
    assert (record.state, record.alive) == (ProcessState.RUNNING, True)
    assert record.argv == SLEEPER
    assert before - 1 < record.started_at < time.time() + 1
    assert (record.exit_code, record.exit_signal) == (None, None)
    assert record.log_path == str(run_dir / "w/log")
    assert record.rss_bytes is not None
    assert record.rss_bytes > 0
    assert exists(record.pid)
    assert os.stat(run_dir).st_mode & 0o777 == 0o700


async def test_nothing_is_known_of_nothing(agent: AgentSession, run_dir: Path) -> None:
    assert await agent.records() == []
    assert await agent.record("p") is None
    assert await agent.stop("p") is None
    await agent.remove("p")
    assert await agent.orphans() == []
    assert "run" not in os.listdir(run_dir.parent)


SEEN = 'echo "<$GGML_NO_BACKTRACE> $MINE $(pwd)"; grep SigIgn /proc/self/status'


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("role", "env", "ignored", "seen"),
    [
        (ProcessRole.WORKER, {"MINE": "a=b c"}, True, "<1> a=b c /"),
        # The user may want backtraces.
        (ProcessRole.SERVER, {"GGML_NO_BACKTRACE": "", "MINE": ""}, False, "<>  /"),
    ],
)
async def test_environment_working_directory_and_sigpipe(
    agent: AgentSession,
    role: ProcessRole,
    env: dict[str, str],
    ignored: bool,
    seen: str,
) -> None:
    argv = shell(SEEN)
    await agent.start(
        ProcessSpec(name="p", role=role, argv=argv, env=env, ignore_sigpipe=ignored)
    )
    await wait_ended(agent)
    told, mask = (await agent.read_log("p", 0, 4096)).text.splitlines()
    assert told == seen
    assert bool(int(mask.split()[1], 16) >> (signal.SIGPIPE - 1) & 1) == ignored


async def test_what_it_uses_of_the_machine_is_told(agent: AgentSession) -> None:
    """A name may hold what looks like fields of its own: here it does."""
    burning = "open('/proc/self/comm', 'w').write('a) 9 (b'); \nwhile True: pass"
    await agent.start(spec(argv=(sys.executable, "-c", burning)))

    async def used_ms() -> int:
        record = await known(agent)
        return record.cpu_ms or 0

    used = newer = await used_ms()
    for _ in range(400):
        newer = await used_ms()
        if newer >= used + 50:
            break
        await asyncio.sleep(0.05)
    assert used + 50 <= newer < 60_000


async def test_one_that_a_signal_holds_does_not_respond(agent: AgentSession) -> None:
    started = await agent.start(spec(argv=shell("while :; do sleep 1; done")))
    states = []
    for number in (signal.SIGSTOP, signal.SIGCONT):
        os.kill(started.pid, number)
        await asyncio.sleep(0.05)
        record = await known(agent)
        states.append(record.state)
    assert states == [ProcessState.NOT_RESPONDING, ProcessState.RUNNING]


async def test_right_after_a_kill_its_status_is_known_and_it_is_removed(
    agent: AgentSession, run_dir: Path
) -> None:
    """The first look that finds it ended already knows how."""
    for _ in range(20):
        started = await agent.start(spec())
        os.kill(started.pid, signal.SIGKILL)
        await wait_ended(agent)
        record = await known(agent)
        assert record.exit_signal == signal.SIGKILL
        await agent.remove("p")
        assert os.listdir(run_dir) == []


async def test_a_living_name_is_refused(agent: AgentSession) -> None:
    first = await agent.start(spec())
    with pytest.raises(MachineError, match=rf"still runs.*\(pid {first.pid}\)"):
        await agent.start(spec())
    record = await known(agent)
    assert (record.pid, record.alive) == (first.pid, True)


async def test_leftovers_of_an_earlier_process_are_refused(agent: AgentSession) -> None:
    await agent.start(spec(argv=shell("sleep 600 & echo $!")))
    stray = int(await first_line(agent))
    await wait_ended(agent)
    assert [(o.name, o.pid) for o in await agent.orphans()] == [("p", stray)]
    with pytest.raises(MachineError, match=f"pid {stray}"):
        await agent.start(spec())
    await agent.stop("p")
    await agent.start(spec())


IMPOSSIBLE: dict[tuple[str, ...], str] = {
    ("/no/such/program",): "cannot execute '/no/such/program': No such file",
    ("/usr",): "cannot execute '/usr': Permission denied",
    (): "the command is empty",
    ("a\0b",): "embedded null byte",
    ("true", "x" * 4_000_000): "Argument list too long",
}


async def test_what_cannot_start_leaves_nothing(
    agent: AgentSession, run_dir: Path
) -> None:
    for argv, part in IMPOSSIBLE.items():
        with pytest.raises(MachineError, match=part) as caught:
            await agent.start(spec(argv=argv))
        assert "p did not start on local" in str(caught.value)
        assert [names for _, *names in os.walk(run_dir)] in ([], [[[], []]])
        assert await agent.records() == []


async def test_a_missing_helper_is_an_error(
    run_dir: Path, open_agent: OpenAgent
) -> None:
    agent = open_agent(run_dir, relay=run_dir / "nothing")
    with pytest.raises(MachineError, match="nothing cannot be run"):
        await agent.start(spec())


async def test_an_impossible_run_directory(
    tmp_path: Path, open_agent: OpenAgent
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DllmError, match="Cannot use the directory"):
        await open_agent(tmp_path / "file/run").start(spec())


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory away")
async def test_somebody_elses_run_directory(
    run_dir: Path, open_agent: OpenAgent
) -> None:
    os.mkdir(run_dir)
    os.chown(run_dir, 12345, 12345)
    with pytest.raises(MachineError, match="not a directory owned by you"):
        await open_agent(run_dir).start(spec())


NAMES = ("", ".", "..", "../x", "a/../b", "a/b/c", "/a", "a/", ".hidden", "a" * 65)


async def test_names_cannot_lead_elsewhere(agent: AgentSession) -> None:
    for name in NAMES:
        with pytest.raises(MachineError, match="cannot be the name"):
            await agent.start(spec(name))
        with pytest.raises(MachineError, match="cannot be the name"):
            await agent.remove(name)


async def test_a_cancelled_start_is_whole_or_not_at_all(agent: AgentSession) -> None:
    for milliseconds in range(0, 20, 2):
        task = asyncio.create_task(agent.start(spec()))
        await asyncio.sleep(milliseconds / 1000)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        seen = [record.incarnation for record in agent.seen if record.alive]
        there = [r.incarnation for r in await agent.records() if r.alive]
        assert seen == there
        await agent.stop("p")
    assert await agent.orphans() == []


async def test_a_process_started_from_a_process_is_not_its_family(
    run_dir: Path, open_agent: OpenAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller itself may live in a process directory."""
    monkeypatch.setenv("DLLM_PROCESS_DIR", str(run_dir / "controller"))
    agent = open_agent(run_dir)
    record = await agent.start(spec())
    await agent.stop("controller")
    assert exists(record.pid)
    os.kill(record.pid, signal.SIGKILL)
    await wait_ended(agent)
    ended = await known(agent)
    assert ended.exit_signal == signal.SIGKILL


async def test_an_ended_directory_is_removed(
    agent: AgentSession, run_dir: Path
) -> None:
    await agent.start(spec())
    with pytest.raises(MachineError, match="still runs"):
        await agent.remove("p")
    await agent.stop("p")
    await agent.remove("p")
    await agent.remove("p")
    assert os.listdir(run_dir) == []


SECRET = "5a" * 32


def with_secret(argv: tuple[str, ...] = SLEEPER, private: str = SECRET) -> ProcessSpec:
    return ProcessSpec(name="p", role=ProcessRole.RELAY, argv=argv, private=private)


async def test_a_process_finds_its_secret_when_it_starts(agent: AgentSession) -> None:
    script = f'stat -c %a "$DLLM_PROCESS_DIR/{PRIVATE}"; cat "$DLLM_PROCESS_DIR"/p*e'
    await agent.start(with_secret(shell(script)))
    await wait_ended(agent, "p")
    log = (await agent.read_log("p", 0, 1000)).text
    assert log == f"600\n{SECRET}"


async def test_a_secret_is_in_no_other_file_and_gone_with_the_process(
    agent: AgentSession, run_dir: Path
) -> None:
    await agent.start(with_secret())
    files = {file.name: file.read_text() for file in (run_dir / "p").iterdir()}
    assert [name for name, text in files.items() if SECRET in text] == [PRIVATE]
    await agent.stop("p")
    assert not (run_dir / "p" / PRIVATE).exists()
    (run_dir / "p" / PRIVATE).write_text("left by one whose supervisor was killed")
    await agent.start(with_secret(private=""))
    assert not (run_dir / "p" / PRIVATE).exists()


def test_a_secret_changes_the_digest_and_is_not_shown() -> None:
    specs = [with_secret(private=text) for text in (SECRET, "5b" * 32, "")]
    assert len({each.digest for each in specs}) == 3
    assert SECRET not in repr(with_secret())


# --- Stopping: TERM, patience, KILL, and nothing left; never anybody else ---


def supervisor_of(run_dir: Path) -> int:
    record = json.loads((run_dir / "p/process.json").read_text())
    return int(record["supervisor_pid"])


def edit(run_dir: Path, **changes: object) -> None:
    path = run_dir / "p/process.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def next_tick() -> None:
    """Wait until what starts now has another start time than what ran before.

    A start time counts ticks of 10 ms, and a number does not come round in one.
    """
    time.sleep(2 / os.sysconf("SC_CLK_TCK"))


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is none of ours, leading a group of its own."""
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("grace_s", [5.0, 1e12])
async def test_a_process_may_end_in_its_own_way(
    agent: AgentSession, grace_s: float
) -> None:
    """A grace beyond all clocks is a long one, not one that is over at once."""
    await agent.start(spec(argv=python(SAYS_GOODBYE)))
    await first_line(agent)
    record = await stopped(agent, grace_s=grace_s)
    assert record.exit_code == 4
    assert (await agent.read_log("p", 0, 100)).text == "ready\nbye\n"


async def test_who_ignores_term_is_killed_after_the_grace_however_often_it_is_asked(
    agent: AgentSession,
) -> None:
    await agent.start(spec(argv=python(IGNORES_TERM)))
    await first_line(agent)
    began = time.monotonic()
    records = await asyncio.gather(*(agent.stop("p", grace_s=0.3) for _ in range(5)))
    assert time.monotonic() - began >= 0.3
    assert {r and r.exit_signal for r in records} == {signal.SIGKILL}


async def test_a_stopped_process_hears_term(agent: AgentSession) -> None:
    started = await agent.start(spec())
    os.kill(started.pid, signal.SIGSTOP)
    record = await stopped(agent)
    assert record.exit_signal == signal.SIGTERM


@pytest.mark.parametrize(
    "options", [(), ("session",), ("unmarked",), ("leave",), ("leave", "session")]
)
async def test_everything_it_started_goes_too(
    agent: AgentSession, options: tuple[str, ...]
) -> None:
    await agent.start(spec(argv=python(LEAVES_A_STRAY, *options)))
    stray = int(await first_line(agent))
    if "leave" in options:
        await wait_ended(agent)
    assert exists(stray)
    await agent.stop("p")
    assert not exists(stray)


async def test_stopping_what_has_ended_is_fine(agent: AgentSession) -> None:
    await agent.start(spec(argv=shell("exit 3")))
    await wait_ended(agent)
    for _ in range(2):
        record = await stopped(agent)
        assert (record.exit_code, record.rss_bytes) == (3, None)


@pytest.mark.parametrize("whose", ["pid", "supervisor_pid"])
async def test_another_process_with_its_number_is_left_alone(
    agent: AgentSession, run_dir: Path, stranger: subprocess.Popen[bytes], whose: str
) -> None:
    next_tick()
    await agent.start(spec(argv=("true",)))
    await wait_ended(agent)
    edit(run_dir, **{whose: stranger.pid})
    record = await stopped(agent, grace_s=0)
    assert record.state is ProcessState.EXITED
    assert stranger.poll() is None


async def test_a_session_without_its_leader_is_not_ours_by_its_number(
    agent: AgentSession, run_dir: Path
) -> None:
    """Daemons live in the session of a process long gone; numbers come round again."""
    stray, leader = stray_in_a_lost_session()
    assert os.getsid(stray) == leader
    await agent.start(spec(argv=("true",)))
    await wait_ended(agent)
    edit(run_dir, pid=leader)
    try:
        await agent.stop("p", grace_s=0)
        assert exists(stray)
    finally:
        os.kill(stray, signal.SIGKILL)


async def test_an_unmarked_relative_deaf_to_term_is_ended(agent: AgentSession) -> None:
    """The leader that told they are related is gone when its turn comes."""
    code = "import subprocess, sys; subprocess.run(sys.argv[1:], env={})"
    started = await agent.start(spec(argv=python(code, *python(IGNORES_TERM))))
    await first_line(agent)
    (relative,) = psutil.Process(started.pid).children()
    await agent.stop("p", grace_s=0.2)
    assert not exists(relative.pid)


async def test_a_supervisor_that_hangs_is_ended(
    agent: AgentSession, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_host, "SUPERVISOR_PATIENCE_S", 0.2)
    await agent.start(spec())
    supervisor = supervisor_of(run_dir)
    os.kill(supervisor, signal.SIGSTOP)
    record = await stopped(agent)
    assert not record.alive
    assert not exists(supervisor)
