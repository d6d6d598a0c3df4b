"""The command line: help with examples everywhere, usage errors, lazy commands."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from backends.errors import DllmError, UsageError
from tui.cli import main
from tui.cli.main import COMMANDS, cli, guarded
from tui.cli.output import printable


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_help_with_examples(command: str) -> None:
    result = CliRunner().invoke(cli, [command, "--help"])
    assert result.exit_code == 0
    assert "Examples:" in result.output
    assert f"dllm-tui {command}" in result.output


def test_the_overview_names_every_command() -> None:
    output = CliRunner().invoke(cli, ["--help"]).output
    assert all(command in output for command in COMMANDS)


@pytest.mark.parametrize(
    "args", [["nonsense"], ["up"], ["up", "--model", "x", "--workers", "99"], ["--bad"]]
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
    output = CliRunner().invoke(cli, ["--paths"]).output
    assert "config.toml" in output
    assert "controller.sock" in output


def test_control_characters_never_reach_the_terminal() -> None:
    assert printable("a\x1b[31mb\x07\n\tc") == "a�[31mb�\n\tc"
