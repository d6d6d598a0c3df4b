"""``keep_awake``: a process of the cluster that holds its machine awake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.engine.conftest import User, wait_for

NAME = "keep-awake-local"
_INHIBIT = """\
#!/bin/sh
echo "$*" >>{told}
while [ "${{1#--}}" != "$1" ]; do shift; done
"$@"
"""


@pytest.fixture
def told(user: User) -> Path:
    """The lines with which a stand-in for ``systemd-inhibit`` was called."""
    programs = user.home / "programs"
    programs.mkdir()
    file = user.home / "told"
    program = programs / "systemd-inhibit"
    program.write_text(_INHIBIT.format(told=file))
    program.chmod(0o755)
    user.env["PATH"] = f"{programs}:{user.env['PATH']}"
    user.run("config", "set", "keep_awake", "true")
    return file


def keeper(user: User) -> Any:
    found = [p for p in user.status()["processes"] if p["name"] == NAME]
    return found[0] if found and found[0]["state"] == "running" else None


def test_it_lasts_as_long_as_the_cluster(
    user: User, told: Path, demo_model: str
) -> None:
    user.up(demo_model, "--workers", "1")
    pid = wait_for(lambda: keeper(user), "the machine is held awake")["pid"]
    wait_for(told.exists, "it was called")
    assert "--what=sleep:idle" in told.read_text()
    checks = {c["name"]: c for c in user.json("doctor", "--quick")}
    assert "held awake now: local" in checks["sleep"]["detail"]
    psutil.Process(user.status()["controller_pid"]).kill()
    assert user.wait_serving()["generation"]
    assert keeper(user)["pid"] == pid, "the next controller adopts it"
    user.up(demo_model, "--workers", "2", "--replace")
    assert keeper(user)["pid"] == pid, "another split keeps it"
    user.run("config", "set", "keep_awake", "false")
    user.up(demo_model, "--workers", "1", "--replace")
    assert keeper(user) is None
    user.stop()


@pytest.mark.trial
def test_its_end_ends_nothing(user: User, told: Path, demo_model: str) -> None:
    user.up(demo_model, "--workers", "1")
    wait_for(lambda: keeper(user), "the machine is held awake")
    before = user.pid("llama-server")
    user.kill(NAME)
    wait_for(lambda: keeper(user) is None, "it has ended")
    checks = {c["name"]: c for c in user.json("doctor", "--quick")}
    assert checks["sleep"]["machines"] == ["local"]
    assert user.ask("Who are you?")
    assert user.pid("llama-server") == before
    user.stop()
