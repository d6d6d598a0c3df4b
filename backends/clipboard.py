"""Copies, kept where the terminal's own clipboard may not reach.

A console copies through the terminal (OSC 52), which never says whether it did so:
macOS's Terminal does not, tmux only if it is told to. So a copy also goes to a file.
On the machine that one sits at it goes to the desktop's clipboard, too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from backends.errors import DllmError
from backends.writing import write_private

DESKTOP_TIMEOUT_S = 2.0


def keep(text: str, file: Path) -> None:
    """Put text on the desktop's clipboard, if there is one here, and into a file."""
    _to_desktop(text)
    try:
        write_private(file, text.encode(errors="replace"))
    except OSError as error:
        raise DllmError(
            f"What was copied cannot be kept in {file} ({error.strerror})",
            "The terminal may have it all the same.",
        ) from error


def desktop_command() -> list[str]:
    """The program that fills this desktop's clipboard; none without a desktop."""
    if "SSH_CONNECTION" in os.environ:
        return []
    candidates = [
        (sys.platform == "darwin", ["pbcopy"]),
        ("WAYLAND_DISPLAY" in os.environ, ["wl-copy"]),
        ("DISPLAY" in os.environ, ["xclip", "-selection", "clipboard"]),
    ]
    fitting = [argv for there, argv in candidates if there and shutil.which(argv[0])]
    return fitting[0] if fitting else []


def _to_desktop(text: str) -> None:
    if not (argv := desktop_command()):
        return
    try:
        subprocess.run(
            argv,
            input=text.encode(errors="replace"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=DESKTOP_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        # The terminal and the file are left, and the file is told of.
        return
