"""The command line of ``dllm-relay`` itself."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(relay: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(relay), *args], capture_output=True, text=True, timeout=20, check=False
    )


def test_version_is_the_project_s(relay: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    done = run(relay, "--version")
    assert (done.returncode, done.stdout) == (0, f"dllm-relay {project['version']}\n")


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (("--help",), "usage: dllm-relay COMMAND"),
        (("-h",), "usage: dllm-relay COMMAND"),
        (("spawn", "--help"), "usage: dllm-relay spawn --dir DIR"),
    ],
)
def test_help(relay: Path, args: tuple[str, ...], part: str) -> None:
    done = run(relay, *args)
    assert done.returncode == 0
    assert part in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


@pytest.mark.parametrize(
    ("args", "part"),
    [
        ((), "a command is missing"),
        (("dance",), "unknown command 'dance'"),
        (("spawn",), "spawn needs --dir DIR"),
        (("spawn", "--dir", "x"), "spawn needs -- and a command"),
        (("spawn", "--dir", "x", "--dance", "1", "--", "true"), "'--dance'"),
        (("spawn", "--dir", "x", "--env", "1", "--", "true"), "NAME=VALUE"),
        (("head", "--worker", "unix:"), "needs ADDRESS:PORT or unix:PATH, not"),
        (("head", "--worker", "::1:80"), "needs ADDRESS:PORT or unix:PATH, not"),
        (("head", "--listen", "unix:/x"), "--listen needs ADDRESS:PORT"),
        (("head", "--gone-after", "0"), "--gone-after needs 1 to 3600 seconds"),
        (("head", "--listen", "127.0.0.1:0", "--name", "w"), "head needs --worker"),
    ],
)
def test_wrong_usage_is_one_sentence(
    relay: Path, args: tuple[str, ...], part: str
) -> None:
    done = run(relay, *args)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("dllm-relay: ")
    assert part in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_output_that_cannot_be_written_is_a_failure(relay: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [str(relay), "--version"], stdout=full, timeout=20, check=False
        )
    assert done.returncode == 1
