"""The tree of commands: former names, groups alone, options, forms of a listing."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import sys
from collections.abc import AsyncGenerator, Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from backends.client.client import ControllerClient
from backends.demo import MODEL_PATH
from backends.errors import DllmError, UsageError
from backends.state import (
    Ask,
    ClusterSnapshot,
    ClusterState,
    KnownMachine,
    PairMode,
    Peer,
    ProcessInfo,
    ProcessRole,
    ProcessState,
    UsageReport,
)
from tests.unit.clicked import commands
from tui.cli import logs, main
from tui.cli import status as status_module
from tui.cli.command import require_terminal
from tui.cli.main import COMMANDS, cli, guarded
from tui.cli.output import CLEAR_LINE, emit_json, redraw, say, show


@cache
def helped(*words: str) -> str:
    # As wide as in a terminal of 80 columns.
    shown = CliRunner().invoke(cli, [*words, "--help"], terminal_width=78)
    assert shown.exit_code == 0, words
    return shown.output


def groups() -> set[str]:
    return {name.rpartition(" ")[0] for name, _ in commands()} - {""}


def test_examples_say_that_the_bundled_model_is_in_a_checkout() -> None:
    told = helped("demo") + (Path(__file__).parents[2] / "docs/launch.md").read_text()
    lines = [one for one in told.splitlines() if "dllm-tui demo" in one]
    bundled = [one for one in lines if "--bundled" in one]
    assert len(bundled) == 2
    assert all("in a checkout" in one for one in bundled)


def test_every_command_has_help_with_an_example_of_its_own() -> None:
    for command, _ in commands():
        text = helped(*command.split())
        _, _, examples = text.partition("Examples:")
        assert f"dllm-tui {command}" in examples, command
        assert max(map(len, text.splitlines())) <= 80, command


@pytest.mark.parametrize(
    ("typed", "called"),
    [
        (".venv/bin/dllm-tui", ".venv/bin/dllm-tui"),
        ("/opt/bin/dllm-tui", "/opt/bin/dllm-tui"),
        ("{path}/dllm-tui", "dllm-tui"),
    ],
)
def test_the_command_is_named_as_it_can_be_typed_again(
    typed: str, called: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkout's environment need not be active."""
    (tmp_path / "dllm-tui").touch(mode=0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.argv", [typed.format(path=tmp_path)])
    assert main._called() == called


@pytest.mark.parametrize(
    ("former", "now"),
    [
        ("stop", "down"),
        ("inspect", "models show"),
        ("models info", "models show"),
        ("models thin", "models sparse"),
        ("models seed", "models cache fill"),
        ("models cache show", "models cache list"),
        ("peers probe", "peers show"),
        ("peers provision", "peers setup"),
        ("peers clean", "peers reset"),
        ("key", "keys"),
        ("keys revoke", "keys remove"),
        ("lab set", "links slow"),
        ("lab clear", "links reset"),
        ("lab show", "links list"),
        ("engine status", "engine show"),
        ("config get", "config show"),
    ],
)
def test_former_names_still_work_and_are_offered_no_more(former: str, now: str) -> None:
    assert helped(*former.split()).startswith(f"Usage: dllm-tui {now} ")
    *group, word = former.split()
    assert not re.search(rf"^  {word} ", helped(*group), re.MULTILINE)


@pytest.mark.parametrize(
    ("former", "now"),
    [
        ("up m.gguf --no-relay --detach", "up --relay off m.gguf --detach"),
        ("up --pair never m.gguf", "up --relay single m.gguf"),
        ("up m.gguf --dry-run -- --temp 0", "plan m.gguf -- --temp 0"),
        ("up m.gguf --no-relay --dry-run", "plan --relay off m.gguf"),
        ("up m.gguf -- --dry-run", "up m.gguf -- --dry-run"),
        ("drain --off", "resume"),
        ("drain --limit 3", "drain --limit 3"),
    ],
)
def test_former_options_still_work(former: str, now: str) -> None:
    args = former.split()
    context = click.Context(cli)
    _, command, rest = cli.resolve_command(context, args)
    assert command is not None
    assert [command.name, *rest] == now.split()


def test_the_overview_names_every_command_and_cuts_no_sentence() -> None:
    assert all(command in helped() for command in COMMANDS)
    for group in ("", *groups()):
        listed = helped(*group.split())
        assert "...\n" not in listed.partition("\n")[2], group
        assert max(map(len, listed.splitlines())) <= 80, group


@pytest.mark.parametrize(
    ("line", "relay", "pair"),
    [
        ("", True, None),
        ("--relay auto", True, PairMode.AUTO),
        ("--relay pair", True, PairMode.ALWAYS),
        ("--relay single", True, PairMode.NEVER),
        ("--relay off", False, None),
    ],
)
@pytest.mark.parametrize("command", ["up", "plan"])
def test_one_option_says_which_relays_there_are(
    command: str,
    line: str,
    relay: bool,
    pair: PairMode | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Ask] = []

    async def prepare(
        self: ControllerClient, ask: Ask, *, explain: bool = False
    ) -> None:
        asked.append(ask)
        raise DllmError("It was asked")

    monkeypatch.setattr(ControllerClient, "prepare", prepare)
    for given in (
        [str(MODEL_PATH), "--context"],
        ["--model", str(MODEL_PATH), "--ctx"],
    ):
        words = [command, *line.split(), *given, "512", "--", "--temp", "0.2"]
        assert "It was asked" in str(CliRunner().invoke(cli, words).exception)
        ask = asked.pop()
        assert (ask.relay, ask.pair) == (relay, pair)
        assert (ask.model, ask.ctx_size) == (str(MODEL_PATH), 512)
        assert ask.extra_args == ("--temp", "0.2")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("trace passes.json --json", "Give one of FILE and --json"),
        ("logs llama-server -f --json", "--follow has no effect with --json"),
        ("logs --follow", "--follow needs a process"),
        ("down --all --cluster x", "--cluster has no effect with --all"),
        ("--cluster x down --all", "--cluster has no effect with --all"),
        ("demo --prompt Why?", "--prompt needs --headless"),
        ("demo --max-tokens 3", "--max-tokens needs --headless"),
        ("demo --headless --no-mouse", "--no-mouse has no effect with --headless"),
        ("connect --write", "--write needs a client"),
        ("chat --again 1", "--again needs --conversation"),
        ("up m.gguf --model n.gguf", "Give one model"),
        ("up m.gguf n.gguf", "unexpected extra argument"),
        ("models --json list", "unexpected extra argument"),
        ("peers add x --via gate", "--via needs a token"),
        (
            "peers add x --bare 10.0.0.3:1 --accept-host-key y",
            "--accept-host-key has no effect with --bare",
        ),
    ],
)
def test_what_would_have_no_effect_is_an_error(line: str, said: str) -> None:
    result = CliRunner().invoke(cli, line.split())
    assert result.exit_code == main.EXIT_USAGE
    assert said in result.output


def test_a_group_alone_does_what_its_help_says(monkeypatch: pytest.MonkeyPatch) -> None:
    every = dict(commands())
    for group in groups():
        default = re.search(r"Without a command: (\w+)\.", helped(*group.split()))
        assert default is not None, group
        command = f"{group} {default[1]}"
        ran: list[str] = []

        def invoke(ctx: click.Context, ran: list[str] = ran) -> None:
            ran.append(ctx.command_path)

        monkeypatch.setattr(every[command], "invoke", invoke)
        for words in (group, f"{group} --json", command):
            assert CliRunner().invoke(cli, words.split()).exit_code == 0, words
        assert ran == [f"dllm-tui {command}"] * 3


PEERS = (
    Peer(name="mini", transport="ssh", address="ada@mini", rtt_ms=3.14159),
    Peer(name="nuc\x1b[2J", transport="bare", note="two\nlines"),
)


def listed(monkeypatch: pytest.MonkeyPatch, *found: Peer) -> None:
    async def settled(self: ControllerClient) -> tuple[Peer, ...]:
        return found

    async def known(self: ControllerClient) -> tuple[KnownMachine, ...]:
        return ()

    monkeypatch.setattr(ControllerClient, "settled_peers", settled)
    monkeypatch.setattr(ControllerClient, "peers_to_pick", known)


def test_a_list_is_a_table_wide_names_or_json(monkeypatch: pytest.MonkeyPatch) -> None:
    listed(monkeypatch, *PEERS)

    def out(*words: str) -> str:
        return CliRunner().invoke(cli, ["peers", *words], catch_exceptions=False).stdout

    head, mini, nuc = out().splitlines()
    assert head.split("   ")[0] == "NAME"
    assert "ADDRESS" not in head
    assert mini[: head.index("RTT") + 3].endswith("3.14 ms")
    assert nuc.endswith("two lines")
    assert nuc.index("bare") == head.index("TRANSPORT") == mini.index("ssh")
    assert "ada@mini" in out("list", "-o", "wide").splitlines()[1]
    assert out("-o", "name") == "mini\nnuc\n"
    assert out("--json") == out("list", "-o", "json")

    assert [p["name"] for p in json.loads(out("--json"))] == [p.name for p in PEERS]


def test_an_empty_list_is_told_on_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    listed(monkeypatch)
    for words in (["peers"], ["peers", "-o", "wide"]):
        result = CliRunner().invoke(cli, words)
        assert (result.stdout, result.stderr[:9]) == ("", "No peers.")
    assert CliRunner().invoke(cli, ["peers", "-o", "name"]).output == ""


@pytest.mark.parametrize(("quiet", "said"), [([], True), (["-q"], False)])
def test_quiet_leaves_out_progress_and_no_result(
    quiet: list[str], said: bool, tmp_path: Path
) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(MODEL_PATH.read_bytes())
    done = CliRunner().invoke(cli, ["models", "verify", str(model), *quiet])
    assert done.stdout.startswith("whole")
    assert bool(done.stderr) is said


@pytest.mark.parametrize("as_json", [False, True])
async def test_a_watched_status_is_printed_as_it_changes(
    as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    states = iter([ClusterState.LOADING, ClusterState.LOADING, ClusterState.SERVING])

    async def current(cluster: str) -> ClusterSnapshot:
        if (state := next(states, None)) is None:
            raise DllmError("It went")
        return ClusterSnapshot(cluster=cluster, state=state)

    monkeypatch.setattr(status_module, "current_snapshot", current)
    monkeypatch.setattr(status_module, "WATCH_EVERY_S", 0.0)
    status = status_module.status.callback
    assert status is not None
    with pytest.raises(DllmError, match="It went"):
        await status(cluster="lab", watch=True, as_json=as_json)
    out = capsys.readouterr().out
    assert (out.count("loading"), out.count("serving")) == (1, 1)
    if as_json:
        assert [json.loads(line)["cluster"] for line in out.splitlines()] == ["lab"] * 2


def test_watched_processes_have_the_form_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = ProcessInfo(
        name="worker1", role=ProcessRole.WORKER, state=ProcessState.RUNNING, pid=4711
    )

    async def usages(_: ControllerClient) -> AsyncGenerator[UsageReport, None]:
        yield UsageReport(processes=(worker,))
        raise DllmError("It went")

    monkeypatch.setattr(ControllerClient, "usages", usages)

    def told(*form: str) -> list[list[str]]:
        words = ["processes", "list", "--watch", *form]
        output = CliRunner().invoke(cli, words).output
        return [line.split() for line in output.splitlines()]

    assert "4711" in told("-o", "wide")[1]
    assert "PID" not in told()[0]
    assert told("-o", "name") == [["worker1"]]


@pytest.mark.parametrize(
    "line", ["peers setup nobody", f"models copy {MODEL_PATH} nobody"]
)
def test_work_at_a_peer_that_is_unknown_is_refused(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def peers(self: ControllerClient) -> tuple[Peer, ...]:
        return PEERS

    monkeypatch.setattr(ControllerClient, "peers", peers)
    said = str(CliRunner().invoke(cli, line.split()).exception)
    assert said.startswith("There is no peer nobody. Known: mini,")
    assert said.endswith("Add it: dllm-tui peers add nobody.")


# --- The command line: help with examples everywhere, usage errors, lazy commands ---


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


@pytest.mark.parametrize(
    ("args", "settings", "mouse"),
    [([], "", True), (["--no-mouse"], "", False), ([], "mouse = false\n", False)],
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


def test_safe_json_says_the_same_as_before(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_a_terminal_that_draws_no_screen_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    monkeypatch.setattr(sys, "stdout", terminal)
    require_terminal()
    monkeypatch.setenv("TERM", "dumb")
    with pytest.raises(UsageError, match="TERM=dumb"):
        require_terminal()


class Disk(io.BytesIO):
    is_full = False

    def write(self, data: Any) -> int:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


def test_output_that_cannot_be_written_is_neither_a_bug_nor_lost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = Disk()
    stdout = io.TextIOWrapper(disk, encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setattr(main, "cli", lambda **_: show("✓ fein, für 1 µs"))
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert (ended.value.code, disk.getvalue()) == (0, b"? fein, f\xfcr 1 \xb5s\n")
    disk.is_full = True
    assert guarded(lambda: show("more")) == 1
    disk.is_full = False
    assert "Cannot write the output (No space left" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("stauts", "status"),
        ("lgos", "logs"),
        ("peers shwo", "show"),
        ("models lits", "list"),
        ("models cache prnue", "prune"),
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


def test_a_cluster_can_be_named() -> None:
    for command in ((), *((name,) for name in ABOUT_A_CLUSTER), ("links", "slow")):
        assert "--cluster NAME" in helped(*command), command
        assert "DLLM_CLUSTER" in helped(*command), command


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
        async def running(self, *_: object, **__: object) -> bool:
            asked.append(self.cluster)
            raise DllmError("It was asked")

        snapshot = prepare = propose = set_lab = running  # type: ignore[assignment]

    monkeypatch.setattr("backends.client.client.ControllerClient", Client)
    monkeypatch.setattr("tui.cli.demo.ControllerClient", Client)
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
    "options", [["--latency", "61s"], ["--jitter", "2000s"], ["--rate", "1001GB/s"]]
)
def test_a_lab_beyond_the_relay_is_refused_with_its_limit(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run = lambda: cli(["links", "slow", "all", *options], standalone_mode=False)  # noqa: E731
    assert guarded(run) == main.EXIT_USAGE
    assert re.search(r"60 s|1000 GB/s", capsys.readouterr().err)


def test_peers_model_needs_a_whole_path(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["up", "north:only/x.gguf"]
    assert guarded(lambda: cli(arguments, standalone_mode=False)) == 1
    told = capsys.readouterr().err
    assert "north:only/x.gguf is not an absolute path" in told
    assert "north:/…/only/x.gguf" in told


def test_a_length_of_drafts_without_a_draft_is_refused() -> None:
    result = CliRunner().invoke(cli, ["plan", "dllm-demo", "--draft-max", "4"])
    assert result.exit_code == main.EXIT_USAGE
    assert "--draft-max needs --draft" in result.output
