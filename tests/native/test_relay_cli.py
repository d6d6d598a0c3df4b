"""The command line of ``dllm-relay`` itself."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.native.relaying import HEAD, WORKER, run

ROOT = Path(__file__).resolve().parents[2]


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
        (HEAD, "head needs --worker"),
        (WORKER, "worker needs one of --listen and --dial"),
        ((*WORKER, "--listen", "unix:/x", "--dial", "unix:/x"), "one of --listen"),
        (("worker", "--listen", "unix:/x", "--name", "w"), "worker needs --worker"),
        ((*HEAD, "--worker", "unix:/x", "--pair-dial", "unix:/y"), "exclude each"),
        (
            (*HEAD[:2], "0.0.0.0:0", "--name", "w", "--worker", "unix:/x"),
            "whoever reaches it has the worker, without a key; listen at 127.0.0.1",
        ),
        ((*HEAD, "--pair-dial", "here"), "needs ADDRESS:PORT or unix:PATH"),
        ((*HEAD, "--pair-dial", "unix:/x", "--id", "5"), "--id needs 32 hexadecimal"),
        (("paper", "--device", "CUDA0"), "NAME:TOTAL[:FREE]"),
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
