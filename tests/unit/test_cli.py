"""The command line: help with examples everywhere, usage errors, lazy commands."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from backends.client.client import ControllerClient
from backends.demo import MODEL_PATH
from backends.errors import DllmError, UsageError
from tui.cli import logs, main
from tui.cli.main import COMMANDS, cli, guarded
from tui.cli.output import CLEAR_LINE, emit_json, redraw, say, show


def test_the_overview_names_every_command() -> None:
    output = CliRunner().invoke(cli, ["--help"]).output
    assert all(command in output for command in COMMANDS)


@pytest.mark.parametrize(
    "args", [["nonsense"], ["up"], ["up", "x", "--workers", "99"], ["--bad"]]
)
def test_usage_errors_exit_with_2(args: list[str]) -> None:
    assert CliRunner().invoke(cli, args).exit_code == main.EXIT_USAGE


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DllmError("It broke", "Mend it."), 1),
        (UsageError("What?"), 2),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_are_sentences(
    error: BaseException, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    assert guarded(fail) == code
    err = capsys.readouterr().err
    assert err.strip()
    assert "Traceback" not in err


def test_paths_are_shown() -> None:
    output = CliRunner().invoke(cli, ["config", "paths"]).output
    assert "config.toml" in output
    assert "controller.sock" in output


def test_check_tells_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    found = CliRunner().invoke(cli, ["config", "check"])
    assert found.exit_code == 0
    assert "every setting has its default" in found.output
    file = tmp_path / "dllm-tui/config.toml"
    file.parent.mkdir()
    file.write_text("workers = 0\n")
    found = CliRunner().invoke(cli, ["config", "check"])
    assert found.exit_code == 1
    assert "config.toml:1: " in found.output


@pytest.mark.parametrize(
    ("args", "settings", "mouse"),
    [
        ([], "", True),
        (["--no-mouse"], "", False),
        ([], "mouse = false\n", False),
    ],
)
def test_no_mouse_leaves_it_to_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    args: list[str],
    settings: str,
    mouse: bool,
) -> None:
    from tui.app.app import DllmApp

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "dllm-tui").mkdir()
    (tmp_path / "dllm-tui/config.toml").write_text(settings)
    runs: list[bool] = []
    monkeypatch.setattr(DllmApp, "run", lambda _, mouse: runs.append(mouse))
    for name in ("stdin", "stdout"):
        monkeypatch.setattr(f"tui.cli.main.sys.{name}", Terminal())
    with pytest.raises(SystemExit):
        cli(args, standalone_mode=False)
    assert runs == [mouse]


class Terminal:
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("sink", [say, show, redraw, emit_json])
def test_nothing_printed_drives_a_terminal(
    sink: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """A title and a clipboard by OSC, in both widths of control characters."""
    sink("\x1b]0;mine\x07 \x9d52;c;AAAA\x9c \u202e done")
    printed = capsys.readouterr()
    # click itself leaves escapes out where there is no terminal.
    text = (printed.out + printed.err).removeprefix(CLEAR_LINE).removeprefix("\r")
    assert "done" in text
    assert all(c.isprintable() or c == "\n" for c in text)


def test_json_says_the_same_as_before_it_was_made_safe(
    capsys: pytest.CaptureFixture[str],
) -> None:
    value = {"note": "\x1b\x9b \u202e \U000e0001 ä\n"}
    emit_json(value)
    assert json.loads(capsys.readouterr().out) == value


def test_every_command_prints_through_the_safe_sink() -> None:
    """``click.echo`` and ``print`` belong to ``output`` alone."""
    folder = Path(main.__file__).parent
    for file in folder.glob("*.py"):
        if file.name != "output.py":
            assert not re.search(r"(?<!\.)\bprint\(|click\.echo", file.read_text()), (
                file
            )


def test_a_command_that_exits_with_1_does(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def failing() -> None:
        raise click.exceptions.Exit(1)

    assert guarded(lambda: failing(args=[], standalone_mode=False)) == 1


def test_a_bug_is_a_sentence_too(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise KeyError("\x1b[2J")

    assert guarded(fail) == 1
    err = capsys.readouterr().err
    assert "KeyError" in err
    assert "\x1b" not in err


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("stauts", "status"),
        ("lgos", "logs"),
        ("peers shwo", "show"),
        ("models lits", "list"),
        ("config shwo", "show"),
        ("up --modle", "--model"),
    ],
)
def test_what_is_mistyped_is_met_halfway(typed: str, meant: str) -> None:
    result = CliRunner().invoke(cli, typed.split())
    assert result.exit_code == main.EXIT_USAGE
    assert f"Did you mean '{meant}'" in result.output


def test_mistyped_names_are_met_halfway(monkeypatch: pytest.MonkeyPatch) -> None:
    async def names(cluster: str) -> list[str]:
        return ["llama-server", "worker1"]

    monkeypatch.setattr(logs, "_names", names)
    result = CliRunner().invoke(cli, ["logs", "lama-server"])
    assert "Did you mean llama-server?" in str(result.exception)
    result = CliRunner().invoke(cli, ["models", "show", "dllm-dem0"])
    assert "Did you mean dllm-demo?" in str(result.exception)


ABOUT_A_CLUSTER = ("chat", "demo", "logs", "status", "down", "trace", "up", "plan")


@pytest.mark.parametrize(
    "command", [[], *([name] for name in ABOUT_A_CLUSTER), ["links", "slow"]]
)
def test_a_cluster_can_be_named(command: list[str]) -> None:
    output = CliRunner().invoke(cli, [*command, "--help"]).output
    assert "--cluster NAME" in output
    assert "DLLM_CLUSTER" in output


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("--cluster lab stop", "lab"),
        ("stop --cluster lab", "lab"),
        ("--cluster other stop --cluster lab", "lab"),
        ("stop", "second"),
        ("--cluster lab status", "lab"),
        ("status", "second"),
        ("--cluster lab lab set all --latency 5ms", "lab"),
        ("--cluster lab demo --headless", "lab"),
        (f"--cluster lab up --model {MODEL_PATH}", "lab"),
        (f"--cluster lab --model {MODEL_PATH} up", "lab"),
    ],
)
def test_a_cluster_named_before_the_command_is_the_one_meant(
    line: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Named after the command it counts more, in the environment less."""
    asked: list[str] = []

    class Client(ControllerClient):
        async def running(self, *_: object) -> bool:
            asked.append(self.cluster)
            raise DllmError("It was asked")

        snapshot = prepare = propose = set_lab = running  # type: ignore[assignment]

    monkeypatch.setattr("backends.client.client.ControllerClient", Client)
    env = {"DLLM_CLUSTER": "second"}
    result = CliRunner().invoke(cli, line.split(), env=env)
    assert (asked, str(result.exception)) == ([meant], "It was asked")


def test_the_overview_takes_no_option_that_a_command_does_not_go_by() -> None:
    for line in ("--theme x status", "--no-mouse models list", "--model m peers"):
        with pytest.raises(UsageError, match="is for the console, not for"):
            cli(line.split(), standalone_mode=False)


@pytest.mark.parametrize("name", ["", "../x", "a" * 33, "-a", "a b", "ä"])
def test_bad_names_of_clusters_are_refused(name: str) -> None:
    run = lambda: cli(["down", "--cluster", name], standalone_mode=False)  # noqa: E731
    assert guarded(run) == main.EXIT_USAGE


@pytest.mark.parametrize(
    "options",
    [["--latency", "61s"], ["--jitter", "2000s"], ["--rate", "1001GB/s"]],
)
def test_a_lab_beyond_the_relay_is_refused_with_its_limit(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run = lambda: cli(["links", "slow", "all", *options], standalone_mode=False)  # noqa: E731
    assert guarded(run) == main.EXIT_USAGE
    assert re.search(r"60 s|1000 GB/s", capsys.readouterr().err)


def test_a_peers_model_needs_a_whole_path(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["up", "north:only/x.gguf"]
    assert guarded(lambda: cli(arguments, standalone_mode=False)) == 1
    told = capsys.readouterr().err
    assert "north:only/x.gguf is not an absolute path" in told
    assert "north:/…/only/x.gguf" in told


def test_a_length_of_drafts_without_a_draft_is_refused() -> None:
    result = CliRunner().invoke(cli, ["plan", "dllm-demo", "--draft-max", "4"])
    assert result.exit_code == main.EXIT_USAGE
    assert "--draft-max needs --draft" in result.output
