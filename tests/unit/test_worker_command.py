"""``dllm-tui worker`` and ``join`` without a worker: tokens, consoles, limits."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from backends.errors import DllmError, UsageError
from backends.mesh.dialling import parse_place
from backends.mesh.owner_limits import OwnerLimits
from backends.mesh.pairings import Asking, PairedConsole, PairingFile, with_console
from backends.mesh.quic_place import QuicPlace
from backends.mesh.tenants import Tenants
from backends.mesh.token import TokenKind, new_token, read_token
from backends.mesh.worker import Worker
from backends.mesh.worker_status import (
    LogEntry,
    StatusFile,
    TenantState,
    WorkerStatus,
)
from backends.paths import user_paths
from tests.kit.waiting import until
from tui.cli.main import cli
from tui.cli.worker import _log, life_s, limits_of
from tui.cli.worker_status import WorkerScreen, limits_text, painted
from tui.model.qr_code import qr_text

KEY = "ssh-ed25519 AAAA"
ASKING = Asking(
    name="ada", address="10.0.0.2", digits="012345", expires_at=time.time() + 86400
)


@pytest.fixture(autouse=True)
def pairings(new_user: None) -> PairingFile:
    """Of a user who has nothing yet."""
    return PairingFile(user_paths().worker_pairings_file)


@pytest.fixture
def ada(pairings: PairingFile) -> PairedConsole:
    one = PairedConsole(name="ada", key=KEY, added_at=time.time() - 60)
    pairings.change(lambda found: with_console(found, one))
    return one


def run(*args: str, **more: Any) -> Result:
    return CliRunner().invoke(cli, args, **more)


def test_without_a_worker_nobody_is_invited(pairings: PairingFile) -> None:
    result = run("worker", "invite")
    assert isinstance(result.exception, DllmError)
    assert "dllm-tui worker [--headless]" in str(result.exception)
    assert not pairings.read().invitations


def test_a_token_can_be_drawn() -> None:
    drawn = qr_text(new_token(TokenKind.ADD, "n", ("10.0.0.7",), 1, bytes(32)).text)
    lines = drawn.splitlines()
    assert len({len(line) for line in lines}) == 1
    assert len(lines) < 40
    assert set(drawn) <= set("█▀▄ \n")


def test_consoles_are_listed_renamed_and_revoked(ada: PairedConsole) -> None:
    assert json.loads(run("worker", "list", "--json").output)[0]["name"] == "ada"
    assert "ada" in run("worker", "list").output
    assert "ada is called studio now" in run("worker", "rename", "ada", "studio").output
    unknown = run("worker", "revoke", "ada").exception
    assert isinstance(unknown, UsageError)
    assert "Known: studio" in str(unknown)
    assert "Revoked studio" in run("worker", "revoke", "studio").output
    assert "No consoles" in run("worker", "list").output


BUSY = WorkerStatus(
    name="nuc",
    pid=7,
    ways=("TCP at [::]:50080", "QUIC"),
    limits=OwnerLimits(memory_bytes=8 << 30, models=("/m",)),
    used_bytes=3 << 30,
    consoles=(
        TenantState(
            name="studio",
            connected=True,
            way="relay",
            address="http://10.0.0.5:50090",
            rtt_ms=31.2,
            processes=2,
            devices=("CPU", "CUDA0"),
            memory_bytes=3 << 30,
        ),
        TenantState(name="ada"),
    ),
    log=(LogEntry(at=0.0, text="studio has connected"),),
)


async def test_a_log_of_a_worker_that_nobody_may_use_says_how(
    pairings: PairingFile, capsys: pytest.CaptureFixture[str]
) -> None:
    tenants = SimpleNamespace(log_after=lambda _: (), told=0, pairings=pairings.read())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await _log(cast(Worker, SimpleNamespace(tenants=tenants)), as_json=False)
    assert "dllm-tui worker invite" in capsys.readouterr().err


def test_the_status_of_a_worker_without_a_screen(pairings: PairingFile) -> None:
    assert "No worker runs here" in str(run("worker", "status").exception)
    file = user_paths().worker_status_file
    StatusFile(file).write(BUSY)
    assert file.stat().st_mode & 0o077 == 0
    # One that was killed has left it.
    assert "No worker runs here" in str(run("worker", "status").exception)
    held = pairings.hold()
    try:
        # Another runs now, and has told nothing yet.
        pairings.change(lambda found: replace(found, pid=BUSY.pid + 1))
        assert "tells no status" in str(run("worker", "status").exception)
        pairings.change(lambda found: replace(found, pid=BUSY.pid))
        shown = run("worker", "status").stdout
        told = json.loads(run("worker", "status", "--json").stdout)
        file.unlink()
        assert "tells no status" in str(run("worker", "status").exception)
    finally:
        os.close(held)
    assert msgspec.convert(told, WorkerStatus) == BUSY
    for line in (
        "● nuc: lent",
        "in use   3.0 GiB of 8.0 GiB of memory · 2 programs",
        "reached  by TCP at [::]:50080 · QUIC",
        "● studio   relay http://10.0.0.5:50090   31.2 ms   "
        "2 programs on CPU, CUDA0   3.0 GiB",
        "○ ada      away",
        "studio has connected",
    ):
        assert line in shown, shown


def test_a_pause_is_remembered(pairings: PairingFile) -> None:
    assert "Paused; no worker runs here now" in run("worker", "pause").output
    assert pairings.read().paused
    assert json.loads(run("worker", "resume", "--json").stdout) == {"paused": False}
    assert not pairings.read().paused


def test_limits_as_they_are_typed(tmp_path: Path) -> None:
    limits = limits_of("8GiB", "CUDA0, CPU", "22-7", (str(tmp_path),))
    assert limits.memory_bytes == 8 << 30
    assert limits.devices == ("CUDA0", "CPU")
    assert limits_text(limits) == (
        f"8.0 GiB · CUDA0, CPU · 22 to 7 o'clock · models in {tmp_path}, read-only"
    )
    assert "all memory · all devices · at all hours" in limits_text(
        limits_of(None, None, None, ())
    )


@pytest.mark.parametrize(
    ("memory", "hours"), [("8 bananas", None), ("x", None), (None, "7")]
)
def test_limits_that_say_nothing_are_refused(
    memory: str | None, hours: str | None
) -> None:
    with pytest.raises(UsageError):
        limits_of(memory, None, hours, ())


@pytest.mark.parametrize("text", ["0s", "8d", "1 year", ""])
def test_a_token_is_good_for_a_while_only(text: str) -> None:
    with pytest.raises(UsageError):
        life_s(text)
    assert life_s("10m") == 600


def test_the_key_of_a_relay_is_not_shown(pairings: PairingFile) -> None:
    place = QuicPlace(node=bytes(32), relay="http://10.0.0.5:50090", relay_key="s3cret")
    one = PairedConsole(name="ada", key=KEY, added_at=0.0, quic=place)
    pairings.change(lambda found: with_console(found, one))
    shown = run("worker", "list", "--json").output
    assert place.relay in shown
    assert "s3cret" not in shown
    assert "s3cret" not in repr(one)


def test_a_place_to_listen_at_is_an_address() -> None:
    for wrong in ("mini", "10.0.0.7:x", "10.0.0.7:70000", "[::1", "::1:80:"):
        with pytest.raises(UsageError, match="is no place to listen at"):
            parse_place(wrong, 1)
    right = {
        "": ("::", 1),
        ":80": ("::", 80),
        "10.0.0.7": ("10.0.0.7", 1),
        "10.0.0.7:80": ("10.0.0.7", 80),
        "[fd00::7]:80": ("fd00::7", 80),
        "[::1]": ("::1", 1),
    }
    assert {text: parse_place(text, 1) for text in right} == right
    assert "no place" in str(run("worker", "run", "--listen", "mini").exception)


def test_a_token_is_read_from_standard_input() -> None:
    token = new_token(TokenKind.JOIN, "studio", ("127.0.0.1",), 1, bytes(32)).text
    result = run("join", "-", input=f"{token}\n")
    assert "127.0.0.1:1 cannot be reached" in str(result.exception)
    result = run("join", token[:-3])
    assert "cut off or was changed" in str(result.exception)
    result = run("join", "mini")
    assert "That is no token" in str(result.exception)


def test_limits_beside_a_running_worker_are_not_ignored(pairings: PairingFile) -> None:
    token = new_token(TokenKind.JOIN, "studio", ("127.0.0.1",), 1, bytes(32)).text
    held = pairings.hold()
    try:
        for limit in (("--memory", "8GiB"), ("--name", "x"), ("--models-writable",)):
            refused = run("join", token, *limit).exception
            assert isinstance(refused, UsageError)
            assert "has limits of its own" in str(refused)
        # Without any it goes on.
        assert "cannot be reached" in str(run("join", token).exception)
    finally:
        os.close(held)


def test_digits_are_accepted_by_a_command(pairings: PairingFile) -> None:
    assert "No console asks" in str(run("worker", "accept", "123456").exception)
    asking = Asking(
        name="ada", address="10.0.0.2", digits="012345", expires_at=time.time() + 60
    )
    pairings.ask(asking)
    assert "Accepted ada" in run("worker", "accept", "012 345").output
    assert (now := pairings.read().asking) is not None
    assert now.accepted
    pairings.ask(asking)
    wrong = run("worker", "accept", "123456").exception
    assert "The digits here are others: ada was refused" in str(wrong)
    assert "No console asks" in str(run("worker", "accept", "012345").exception)
    pairings.ask(replace(asking, expires_at=time.time() - 1))
    assert "No console asks" in str(run("worker", "accept", "012345").exception)


def test_the_unit_has_the_limits_that_were_given(tmp_path: Path) -> None:
    more = ("--memory", "8GiB", "--models", str(tmp_path), "--models", "/m")
    install = ("worker", "service", "install", "--dry-run", "--models-writable")
    told = run(*install, *more).stdout
    (command,) = (line for line in told.splitlines() if line.startswith("ExecStart="))
    assert '"worker" "run" "--headless"' in command
    assert '"--models-writable"' in command
    assert f'"--memory" "8GiB" "--models" "{tmp_path}" "--models" "/m"' in command
    wrong = run("worker", "service", "install", "--dry-run", "--hours", "9")
    assert isinstance(wrong.exception, UsageError)


async def test_keys_pause_invite_and_end(
    pairings: PairingFile,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The screen of its owner, by its keys."""
    pressed: asyncio.Queue[str] = asyncio.Queue()

    @contextlib.asynccontextmanager
    async def keys() -> AsyncIterator[asyncio.Queue[str]]:
        yield pressed

    monkeypatch.setattr("tui.cli.worker_status._keys", keys)
    monkeypatch.setenv("COLUMNS", "39")
    paths = user_paths()
    worker = Worker(paths, pairings, Tenants(paths, pairings, OwnerLimits(), "nuc"))
    worker.listen("127.0.0.1", 0)
    shown = asyncio.create_task(WorkerScreen(worker).run())
    # Between words, below what it continues.
    folded = r"nuc: lent\n.*all devices ·\n {11}at all hours"
    await until(lambda: re.search(folded, capsys.readouterr().out), "the screen")
    pressed.put_nowait("p")
    paused = "nuc: its owner has paused it"
    await until(lambda: paused in capsys.readouterr().out, "the pause")
    assert pairings.read().paused
    pressed.put_nowait("i")
    out = ""

    def has_token() -> bool:
        nonlocal out
        out += capsys.readouterr().out
        return "dllm-tui peers add TOKEN" in out

    await until(has_token, "a token")
    (text,) = {w for w in out.split() if w.startswith("dllm1-")}
    assert read_token(text, TokenKind.ADD).port == pairings.read().port
    asking = Asking(
        name="ada", address="10.0.0.2", digits="012345", expires_at=time.time() + 60
    )
    for key, accepted in (("y", True), ("n", False)):
        pairings.ask(asking)
        await until(lambda: "show 012 345?" in capsys.readouterr().out, "the digits")
        pressed.put_nowait(key)
        await until(lambda: pairings.read().asking != asking, "the answer")
        assert pairings.read().asking == replace(asking, accepted=accepted)
    pressed.put_nowait("q")
    await shown


@pytest.fixture
def screen(pairings: PairingFile) -> WorkerScreen:
    paths = user_paths()
    worker = Worker(paths, pairings, Tenants(paths, pairings, OwnerLimits(), "nuc"))
    worker.listen("127.0.0.1", 0)
    return WorkerScreen(worker)


def drawn(screen: WorkerScreen, width: int = 120, height: int = 60) -> str:
    return "\n".join(screen.lines(width, height))


async def test_a_token_is_shown_while_it_is_good(
    screen: WorkerScreen, pairings: PairingFile
) -> None:
    await screen.press("i")
    assert "good once, for 1 h 00 m: dllm-tui peers add TOKEN" in drawn(screen)
    await screen.press("c")
    assert "too small" in drawn(screen, 39, 20)
    code = drawn(screen)
    assert set(code) <= set("█▀▄ \nc back")
    await screen.press("c")
    assert "dllm1-" in drawn(screen)
    (one,) = pairings.read().invitations
    old = replace(one, expires_at=time.time() - 1)
    pairings.change(lambda found: replace(found, invitations=(old,)))
    assert "token" not in drawn(screen)
    assert "c code" not in drawn(screen)


async def test_a_question_stays_until_the_other_side_has_decided(
    screen: WorkerScreen, pairings: PairingFile
) -> None:
    pairings.ask(ASKING)
    assert "Does it show 012 345?" in drawn(screen)
    await screen.press("y")
    assert "ada (10.0.0.2) wants to use it" in drawn(screen)
    assert "You agreed to 012 345; its user has not yet." in drawn(screen)


def with_programs(screen: WorkerScreen) -> None:
    tenant = SimpleNamespace(processes=2, used_bytes=0, state=BUSY.consoles[0])
    screen._worker.tenants.known["k"] = cast("Any", tenant)


async def test_one_question_is_seen_at_a_time_even_behind_a_code(
    screen: WorkerScreen, pairings: PairingFile
) -> None:
    with_programs(screen)
    await screen.press("i")
    await screen.press("c")
    assert "c back" in drawn(screen)
    pairings.ask(ASKING)
    assert "Does it show 012 345?" in drawn(screen)
    assert not await screen.press("q")
    assert "End it?" in drawn(screen)
    assert "012 345" not in drawn(screen)
    assert not await screen.press("n")
    assert pairings.read().asking == ASKING
    pairings.ask(None)
    await screen.press("c")
    assert "c back" in drawn(screen)
    await screen.press("q")
    assert "End it?" in drawn(screen)


async def test_programs_of_others_are_not_ended_unasked(screen: WorkerScreen) -> None:
    with_programs(screen)
    assert not await screen.press("q")
    assert "2 programs of consoles end with it. End it?   y yes   n no" in drawn(screen)
    assert not await screen.press("n")
    assert "q end" in drawn(screen)
    assert not await screen.press("q")
    assert await screen.press("y")


async def test_the_screen_fits_the_terminal(screen: WorkerScreen) -> None:
    for number in range(50):
        screen._worker.tenants.say(f"line {number}")
    assert "line 49" in drawn(screen, 80, 12)
    for height in (12, 24):
        assert len(drawn(screen, 80, height).split("\n")) < height


def test_signs_have_colours_unless_none_are_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = "● nuc: lent\n  ○ ada\n●not a sign"
    assert painted(text) == (
        "\x1b[32m●\x1b[0m nuc: lent\n  \x1b[90m○\x1b[0m ada\n●not a sign"
    )
    monkeypatch.setenv("NO_COLOR", "1")
    assert painted(text) == text
