"""Ctrl-C while modules are still imported: the command just ends, without a word."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.kit.waiting import PATIENCE_S

SLOW = """
import sys, time

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            print("imports", flush=True)
            time.sleep(600)

sys.meta_path.insert(0, Slow())
sys.argv = ["dllm-tui", "status"]
from tui.entry import main
main()
"""


def interrupted(module: str, before: str, *others: signal.Signals) -> tuple[int, str]:
    """Exit status and stderr of a command that is interrupted as it imports that.

    ``before`` it does something; after the interruption come ``others``.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", before + SLOW.format(module=module)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "imports\n"
        for number in (signal.SIGINT, *others):
            process.send_signal(number)
        _, said = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    return process.returncode, said


HEARS = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
IGNORES = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"


@pytest.mark.parametrize("module", ["click", "tui.cli.main", "tui.cli.status"])
def test_it_just_ends(module: str) -> None:
    assert interrupted(module, HEARS) == (-signal.SIGINT, "")


def test_it_is_ignored_where_it_was() -> None:
    ended = interrupted("click", IGNORES, signal.SIGTERM)
    assert ended == (-signal.SIGTERM, "")
