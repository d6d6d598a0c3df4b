"""Completion as a shell asks for it: words, options and names, and nothing harmful."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from backends.config import PeerConfig, put_peer
from backends.paths import user_paths
from backends.state import ClusterSnapshot, Link, ProcessInfo, ProcessRole, ProcessState
from tui.cli import completion
from tui.cli.command import PROGRAM
from tui.cli.completion import VARIABLE
from tui.cli.main import cli

BIN = Path(sys.executable).parent


@pytest.fixture(autouse=True)
def home(new_user: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A user with two peers, two clusters, a theme and models."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    (tmp_path / "runtime").mkdir(mode=0o700)
    monkeypatch.delenv("HF_HOME", raising=False)
    put_peer(user_paths(), "mini", PeerConfig(ssh="mini"))
    put_peer(user_paths(), "nuc", PeerConfig(ssh="nuc"))
    for file in (
        user_paths().clusters_dir / "second.json",
        user_paths().config_dir / "themes" / "mine.toml",
        tmp_path / ".models" / "big.gguf",
        tmp_path / ".models" / "big$(touch x).gguf",
    ):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host box *.lan\n  User ada\nHost ?x\n")
    return tmp_path


def offered(line: str) -> list[str]:
    words = line.split(" ")
    env = {
        VARIABLE: "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    result = CliRunner(env=env).invoke(cli, prog_name=PROGRAM)
    return [line.partition(",")[2] for line in result.output.split()]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("dllm-tui dr", ["drain"]),
        ("dllm-tui sto", []),
        ("dllm-tui peers re", ["remove", "rename", "reset"]),
        ("dllm-tui up --det", ["--detach"]),
        ("dllm-tui up --peer ", ["mini", "nuc"]),
        ("dllm-tui up --head l", ["local"]),
        ("dllm-tui peers remove n", ["nuc"]),
        ("dllm-tui peers add b", ["box"]),
        ("dllm-tui status --cluster s", ["second"]),
        ("dllm-tui up bi", ["big"]),
        ("dllm-tui models show dllm", ["dllm-demo"]),
        ("dllm-tui --theme mi", ["mine"]),
        ("dllm-tui completion f", ["fish"]),
        ("dllm-tui logs ", []),
    ],
)
def test_words_options_and_names(line: str, expected: list[str]) -> None:
    assert offered(line) == expected


def test_names_of_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    process = ProcessInfo(
        name="llama-server", role=ProcessRole.SERVER, state=ProcessState.RUNNING
    )
    now = ClusterSnapshot(processes=(process,), links=(Link(worker="worker1"),))

    def told(ask: object, cluster: str) -> ClusterSnapshot:
        assert cluster == "second"
        return now

    monkeypatch.setattr(completion, "_told", told)
    assert offered("dllm-tui logs --cluster second ll") == ["llama-server"]
    assert offered("dllm-tui links slow --cluster second ") == ["all", "worker1"]


def test_no_controller_is_started_and_a_broken_file_is_no_trouble() -> None:
    user_paths().config_file.write_text("workers = [")
    assert offered("dllm-tui up --peer ") == []
    assert offered("dllm-tui logs ") == []
    assert not user_paths().lock.exists()


@pytest.mark.parametrize(
    ("shell", "script"),
    [
        (
            "bash",
            'eval "$(dllm-tui completion bash)"; COMP_WORDS=(dllm-tui up --peer "");'
            "COMP_CWORD=3; _dllm_tui_completion dllm-tui; echo ${COMPREPLY[@]}",
        ),
        (
            # Its completion widgets want a line editor: these stand in for them.
            "zsh",
            "compdef() { bound=$1 }; compadd() { print -l -- ${(P)@[-1]} };"
            "_describe() { print -l -- ${(P)@[-2]} };"
            'eval "$(dllm-tui completion zsh)"; words=(dllm-tui up --peer "");'
            "CURRENT=4; $bound",
        ),
        (
            "fish",
            "dllm-tui completion fish | source; complete -C 'dllm-tui up --peer '",
        ),
    ],
)
def test_a_real_shell_completes(shell: str, script: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [shell, "-c", script],
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.split() == ["mini", "nuc"], done.stderr
