"""What the scripts do under a time limit: it is for what takes long alone."""

from __future__ import annotations

import subprocess
from pathlib import Path

import backends.engine

COMMON = Path(backends.engine.__file__).parent / "scripts" / "common.sh"
OFTEN = """
. "$1"
trap 'exit 143' TERM
for _ in $(seq 200); do bounded 600 true || exit 1; done
bounded 600 sh -c 'exit 7'; echo "$?"
bounded 0 sleep 600; echo "$?"
"""


def test_who_waits_for_a_quick_one_does_not_wait_for_its_limit() -> None:
    """The watcher that is told to end may not be able to hear it yet."""
    argv = ["sh", "-c", OFTEN, "sh", str(COMMON)]
    found = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert found.stdout.split() == ["7", "137"], found.stderr
