"""What systemd and launchd are told, and what is said where there is neither."""

from __future__ import annotations

import asyncio
import configparser
import contextlib
import os
import plistlib
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from backends.controller.lock import lock_holder
from backends.errors import DllmError
from backends.paths import user_paths
from backends.service import manager as manager_module
from backends.service.manager import ServiceState, Systemd, hand_over
from backends.service.unit import (
    Service,
    controller_service,
    launchd_agent,
    systemd_unit,
)
from tests.kit.waiting import until

ODD = Service(
    argv=(sys.executable, "a b", 'quo"te', "back\\slash", "50%", "$HOME", "'"),
    environment={"PATH": '/a b:/c%d:/"q"', "XDG_STATE_HOME": "/s\\t"},
    log="/tmp/x.err",
)


def words(unit: str, name: str) -> list[str]:
    values = [
        line.partition("=")[2]
        for line in unit.splitlines()
        if line.startswith(f"{name}=")
    ]
    return [word.replace("%%", "%") for value in values for word in shlex.split(value)]


def test_systemd_reads_every_word_as_it_is_meant() -> None:
    unit = systemd_unit(ODD)
    command = [word.replace("$$", "$") for word in words(unit, "ExecStart")]
    assert tuple(command) == ODD.argv
    told = [f"{name}={value}" for name, value in ODD.environment.items()]
    assert words(unit, "Environment") == told


def verified(*units: Path) -> tuple[int, str]:
    done = subprocess.run(
        ["systemd-analyze", "--user", "verify", *map(str, units)],
        env={**os.environ, "XDG_RUNTIME_DIR": str(units[0].parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    names = [unit.name for unit in units]
    lines = [x for x in done.stderr.splitlines() if any(name in x for name in names)]
    return done.returncode, "\n".join(lines)


def test_it_is_a_unit_file(tmp_path: Path) -> None:
    file = tmp_path / "dllm-tui.service"
    file.write_text(systemd_unit(ODD))
    parsed = configparser.ConfigParser(interpolation=None, strict=False)
    parsed.read(file)
    assert parsed.sections() == ["Unit", "Service", "Install"]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd")
def test_systemd_has_no_objection_and_finds_programs_in_odd_folders(
    tmp_path: Path,
) -> None:
    units = [tmp_path / "odd-0.service"]
    units[0].write_text(systemd_unit(ODD))
    # Beside files that are right one that is not: it must be told of.
    wrong = tmp_path / "wrong.service"
    wrong.write_text(units[0].read_text().replace("=process", "=nonsense"))
    assert "nonsense" in verified(wrong)[1]
    for folder in ("a b", "50%h", "$HOME", "a$b", 'q"', "o'b", "x\\"):
        program = tmp_path / folder / "python"
        program.parent.mkdir()
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        text = systemd_unit(Service(argv=(str(program), "--stay")))
        units.append(tmp_path / f"odd-{len(units)}.service")
        units[-1].write_text(text)
        (line,) = [one for one in text.splitlines() if "ExecStart" in one]
        command = [word.replace("$$", "$") for word in words(line, "ExecStart")]
        assert command[-2:] == [str(program), "--stay"]
        assert command[:-2] in ([], ["/usr/bin/env"])
        assert "$$" not in shlex.split(line.partition("=")[2])[0]
    assert verified(*units) == (0, "")


SHUT_IN = replace(ODD, argv=("/bin/sh",), log="/s/x.err", shut_in=True)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd")
def test_systemd_has_no_objection_to_one_that_is_shut_in(tmp_path: Path) -> None:
    unit = tmp_path / "shut-in.service"
    unit.write_text(systemd_unit(SHUT_IN).replace("yes", "maybe"))
    assert verified(unit)[1].count("maybe") == 2
    unit.write_text(systemd_unit(SHUT_IN))
    assert verified(unit) == (0, "")


def test_one_that_is_shut_in_writes_and_leaves_nothing() -> None:
    unit = systemd_unit(SHUT_IN)
    assert "ReadWritePaths" not in unit
    for line in ("NoNewPrivileges=yes", "ProtectSystem=strict", "PrivateTmp=yes"):
        assert f"\n{line}\n" in unit
    assert "KillMode" not in unit
    assert "OOMPolicy" not in unit
    for hidden in (
        {"argv": ("/tmp/venv/bin/python", "-P")},
        {"log": "/var/tmp/state/relay.err"},
        {"environment": {"PYTHONPATH": "/x:/tmp/y"}},
    ):
        assert "PrivateTmp" not in systemd_unit(replace(SHUT_IN, **hidden))


def test_what_it_starts_outlives_it() -> None:
    unit = systemd_unit(ODD)
    for line in ("KillMode=process", "OOMPolicy=continue", "Restart=always"):
        assert f"\n{line}\n" in unit
    agent = plistlib.loads(launchd_agent(ODD).encode())
    assert agent["AbandonProcessGroup"] is agent["KeepAlive"] is True
    assert tuple(agent["ProgramArguments"]) == ODD.argv
    assert agent["EnvironmentVariables"] == ODD.environment


def test_it_finds_the_same_files_and_learns_no_secret(tmp_path: Path) -> None:
    environment = {
        "PATH": "/bin",
        "XDG_STATE_HOME": str(tmp_path),
        "PYTHONPATH": f".{os.pathsep}",
        "OPENAI_API_KEY": "sk-secret",
        "HF_TOKEN": "hf-secret",
    }
    service = controller_service(user_paths(), environment)
    assert service.environment == {
        "PATH": "/bin",
        "PYTHONPATH": os.getcwd(),
        "XDG_STATE_HOME": str(tmp_path),
    }
    assert "secret" not in systemd_unit(service) + launchd_agent(service)


@pytest.mark.parametrize("value", ["/bin:/\udcff", "/bin:/a\x07"])
def test_what_no_file_of_text_can_hold_is_refused(value: str) -> None:
    with pytest.raises(DllmError, match="PATH is '/bin:/"):
        controller_service(user_paths(), {"PATH": value})


@pytest.mark.usefixtures("forking")
async def test_a_service_that_begins_and_ends_does_not_pass_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is given the place of the controller that runs, and does not take it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(manager_module, "RUNS_WITHIN_S", 0.1)
    paths = user_paths()
    paths.state_dir.mkdir()
    program = (
        "import os, sys, time; from pathlib import Path;"
        "from backends.controller.lock import hold_lock;"
        "from backends.state import ControllerInfo;"
        "hold_lock(Path(sys.argv[1]), ControllerInfo(api=1, pid=os.getpid()));"
        "time.sleep(60)"
    )
    before = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(paths.lock)
    )
    try:
        await until(lambda: lock_holder(paths.lock))
        with pytest.raises(DllmError, match="it does not run"):
            await hand_over(paths, Begun())
        assert await before.wait() == -signal.SIGTERM
    finally:
        with contextlib.suppress(ProcessLookupError):
            before.kill()


class Begun(Systemd):
    """A manager that has begun the service, as far as it knows."""

    def state(self) -> ServiceState:
        return ServiceState(
            manager=self.name, file="", installed=True, running=True, pid=1
        )


@pytest.mark.usefixtures("forking")
@pytest.mark.skipif(sys.platform == "darwin", reason="launchd is always there")
def test_where_there_is_no_session_it_is_said_in_a_sentence(tmp_path: Path) -> None:
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_RUNTIME_DIR": str(tmp_path / "run"),
    }

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = "from tui.cli.main import main; main()"
        program = [sys.executable, "-c", command, "service", *arguments]
        return subprocess.run(
            program, env=env, capture_output=True, text=True, check=False
        )

    refused = run("install")
    assert refused.returncode == 1
    assert refused.stderr.startswith("dllm-tui: There is no systemd user session here")
    assert refused.stderr.count("\n") == 1
    shown = run("status", "--json")
    assert shown.returncode == 0
    assert '"installed": false' in shown.stdout
    assert run("remove").returncode == 0
    assert not (tmp_path / "config").exists()
