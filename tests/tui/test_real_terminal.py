"""The console in tmux: what a real terminal shows of it, and sends to it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from rich.cells import cell_len

from tui.app import theming
from tui.model.files import BUILTIN_FOLDER

pytestmark = pytest.mark.skipif(not shutil.which("tmux"), reason="there is no tmux")

PATIENCE_S = 60.0
PROGRAM = Path(sys.executable).with_name("dllm-tui")
TOUR = Path(__file__).parents[2] / "docs" / "tour.jsonl.gz"


class Look(NamedTuple):
    columns: int
    rows: int
    theme: str
    words: tuple[str, ...]
    options: tuple[str, ...] = ()


LOOKS = (
    Look(80, 24, "dllm-dark", ("╭─ Split ──", "Live", "│ › ", "● serving", "◆")),
    Look(240, 67, "dllm-light", ("╭─ Peers ──", "╭─ Token ──", "7 Machines")),
    Look(80, 24, "dllm-dark", ("+- Split --", "@ serving", "space play"), ("--ascii",)),
)


class Tmux:
    """A server of its own with the console in its only window."""

    def __init__(self, folder: Path, look: Look) -> None:
        self._socket = folder / "s"
        size = ("-x", str(look.columns), "-y", str(look.rows))
        argv = [PROGRAM, "--theme", look.theme, *look.options, "--replay", TOUR]
        # With the size that pytest's processes are told, no other would be seen.
        sized = ("COLUMNS", "LINES")
        env = {name: value for name, value in os.environ.items() if name not in sized}
        env |= {"COLORTERM": "truecolor", "TERM": "xterm-256color"}
        self("new-session", "-d", *size, *map(str, argv), env=env)
        self("set-option", "-s", "set-clipboard", "on")

    def __call__(self, *args: str, env: dict[str, str] | None = None) -> str:
        argv = ["tmux", "-f", os.devnull, "-S", str(self._socket), *args]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
        return done.stdout

    def lines(self) -> list[str]:
        # With the spaces at the ends that were drawn, and without those that were not.
        return self("capture-pane", "-p", "-N").splitlines()

    def wait_for(self, seen: Callable[[str], object]) -> str:
        deadline = time.monotonic() + PATIENCE_S
        while not seen(text := "\n".join(self.lines())):
            assert time.monotonic() < deadline, text
            time.sleep(0.1)
        return text


@contextmanager
def shown(look: Look) -> Iterator[Tmux]:
    # A socket's path is short.
    with tempfile.TemporaryDirectory(prefix="dllm-") as folder:
        tmux = Tmux(Path(folder), look)
        try:
            yield tmux
        finally:
            tmux("kill-server")


def is_whole(line: str) -> bool:
    """True if a frame that begins at the left ends at the right."""
    ends = {"│": "│", "╭": "╮", "╰": "╯", "|": "|", "+": "+"}
    return line[:1] not in ends or line[-1:] == ends[line[:1]]


@pytest.mark.parametrize("look", LOOKS, ids=["dark", "light", "ascii"])
def test_it_is_drawn_whole_and_hears_keys(look: Look) -> None:
    theme = theming.find_theme(look.theme, [BUILTIN_FOLDER])
    assert theme is not None
    with shown(look) as tmux:
        tmux.wait_for(lambda text: all(word in text for word in look.words))
        # It stands still.
        tmux("send-keys", "Space")
        tmux.wait_for(lambda text: text.splitlines()[-2].startswith((" ‖ ", " | ")))
        lines = tmux.lines()
        assert len(lines) == look.rows
        assert {cell_len(line) for line in lines} == {look.columns}
        assert [line for line in lines if not is_whole(line)] == []
        assert "\N{REPLACEMENT CHARACTER}" not in "".join(lines)
        assert not look.options or "".join(lines).isascii()
        coloured = tmux("capture-pane", "-p", "-e")
        red, green, blue = bytes.fromhex((theme.background or "").removeprefix("#"))
        assert f"48;2;{red};{green};{blue}" in coloured
        tmux("send-keys", "Y")
        tmux.wait_for(lambda text: "Copied the launch command" in text)
        assert "llama-server -m " in tmux("show-buffer")
        tmux("send-keys", "F5")
        tmux.wait_for(lambda text: " Logs " in text and "update_slots" in text)
