"""What ``make`` would run, wherever the checkout lies and whatever is missing."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAKEFILE = ROOT / "Makefile"


def would_run(target: str, folder: Path, programs: Path, **more: str) -> str:
    """The commands of a target in a checkout, none of which is run."""
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    return subprocess.check_output(
        ["make", "--dry-run", "-f", str(MAKEFILE), target],
        cwd=folder,
        env=env | {"PATH": f"{programs}{os.pathsep}{env['PATH']}"} | more,
        text=True,
    )


def test_a_checkout_may_have_a_space_in_its_path(tmp_path: Path) -> None:
    ccache = tmp_path / "ccache"
    ccache.write_text("#!/bin/sh\n")
    ccache.chmod(0o755)
    checkout = tmp_path / "a checkout"
    told = would_run("native-built", checkout, tmp_path)
    lines = [shlex.split(line) for line in told.splitlines() if "CCACHE_DIR" in line]
    assert len(lines) == 3
    for words in lines:
        assert f"CCACHE_BASEDIR={checkout}" in words


def test_shells_are_tried_once_they_are_installed(tmp_path: Path) -> None:
    told = would_run("test-unit", tmp_path / "checkout", tmp_path, READY="another")
    assert 0 < told.index("apt-get install") < told.index("/pytest ")


def test_without_openssl_fewer_tests_share_threads(tmp_path: Path) -> None:
    told = would_run("native-sanitized", tmp_path / "checkout", tmp_path)
    (built,) = [line for line in told.splitlines() if "--target" in line]
    targets = built.partition("--target ")[2].split()
    build = tmp_path / "build"
    configure = ("cmake", "-S", ROOT / "native", "-B", build, "-G", "Ninja")
    subprocess.run([*configure, "-DDLLM_TLS=OFF", "-DDLLM_SANITIZE=thread"], check=True)
    subprocess.run(["ninja", "-C", build, "-t", "query", *targets], check=True)
