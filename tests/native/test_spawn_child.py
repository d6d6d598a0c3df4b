"""What a spawned process finds: descriptors, signals, session, environment, argv."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.kit.waiting import wait_until
from tests.native.spawning import Spawner

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


def test_arguments_that_are_no_text_arrive_and_the_record_stays_json(
    spawner: Spawner,
) -> None:
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
