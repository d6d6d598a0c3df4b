"""A question on the command line ends at once with Ctrl-C, on a real terminal."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time

import pytest

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
