"""A question on the command line ends at once with Ctrl-C, on a real terminal."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.kit.waiting import until
from tui.cli import command as runner

pytestmark = pytest.mark.usefixtures("forking")
ASK = """
import click
from tui.cli.main import guarded
from tui.cli.command import prompting, run
from tui.cli.output import say

async def ask():
    with prompting():
        {question}
    say("answered")

import sys
sys.exit(guarded(lambda: run(ask())))
"""
QUESTIONS = (
    'click.confirm("Trust it?", abort=True, err=True)',
    'click.prompt("Password", hide_input=True, err=True)',
)


def asked(question: str) -> tuple[subprocess.Popen[bytes], int]:
    """A command that has put its question, and our end of its terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", ASK.format(question=question)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    said = b""
    while b":" not in said:
        said += os.read(ours, 1024)
    return process, ours


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_prompt_at_once(question: str, number: signal.Signals) -> None:
    process, ours = asked(question)
    time.sleep(0.2)
    process.send_signal(number)
    try:
        assert process.wait(20) == 130
    finally:
        process.kill()
        os.close(ours)


def test_no_means_no() -> None:
    process, ours = asked(QUESTIONS[0])
    os.write(ours, b"n\n")
    assert process.wait(20) == 130
    os.close(ours)


# --- Signals end a command with its clean-up done; a second one may break that off ---


class Command:
    """Works until it is interrupted, then cleans up until a test lets it."""

    def __init__(self) -> None:
        self.works = False
        self.cleans = False
        self.cleaned = False
        self.may_end = asyncio.Event()

    async def work(self) -> None:
        self.works = True
        try:
            await asyncio.Event().wait()
        finally:
            self.cleans = True
            await self.may_end.wait()
            self.cleaned = True


@pytest.fixture(autouse=True)
def _hears_again() -> Iterator[None]:
    with runner.signals_kept():
        yield


async def ended_by_a_signal(command: Command) -> bool:
    try:
        await runner._until_signal(command.work())
    except KeyboardInterrupt:
        return True
    return False


async def interrupted(command: Command) -> asyncio.Future[bool]:
    running = asyncio.ensure_future(ended_by_a_signal(command))
    await until(lambda: command.works)
    os.kill(os.getpid(), signal.SIGINT)
    await until(lambda: command.cleans)
    return running


@pytest.mark.parametrize("again", runner.SIGNALS)
async def test_a_key_that_bounces_does_not_break_off_the_clean_up(
    again: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "IMPATIENT_AFTER_S", 600.0)
    command = Command()
    running = await interrupted(command)
    os.kill(os.getpid(), again)
    await asyncio.sleep(0.1)
    command.may_end.set()
    assert await running
    assert command.cleaned


async def test_who_is_impatient_breaks_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "IMPATIENT_AFTER_S", 0.0)
    command = Command()
    running = await interrupted(command)
    os.kill(os.getpid(), signal.SIGINT)
    assert await running
    assert not command.cleaned
