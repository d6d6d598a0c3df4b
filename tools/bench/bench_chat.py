"""Measure the console while an answer comes at 100 tokens per second.

Run it with ``make bench-tui``. The console draws in a real pseudo-terminal. The answer
is made up and paced by the clock. The controller's own code keeps it in the same
process, so its cost is in the figure. No verdict: machines differ.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path
from typing import TYPE_CHECKING

from backends.state import ChatDelta, ChatTimings
from tests.tui import scenes
from tests.tui.scripted import ScriptedCluster
from tui.app.app import DllmApp

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from backends.state import ChatRequest

TOK_PER_S = 100
SETTLE_S = 2.0
MEASURE_S = 12.0
SIZES = ((36, 120), (24, 80))
SENTENCE = (
    "Because air **scatters** short wavelengths more strongly than `long` ones, the "
    "sky is blue. "
)
PARAGRAPH = SENTENCE * 3 + "\n\n1. one thing\n2. another thing\n\n"


class Talkative(ScriptedCluster):
    """Answers with as many tokens a second, on and on."""

    async def _answered(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        began = time.monotonic()
        words = [f"{word} " for word in PARAGRAPH.split(" ")]
        for count in range(1, 1_000_000):
            timings = ChatTimings(tokens=count, tok_per_s=float(TOK_PER_S))
            yield ChatDelta(text=words[count % len(words)], timings=timings)
            await asyncio.sleep(began + count / TOK_PER_S - time.monotonic())


async def talk(result: Path) -> None:
    """The console in this terminal: asks by itself, measures, leaves."""
    cluster = Talkative(scenes.homelab_serving())
    with tempfile.TemporaryDirectory() as folder:
        app = DllmApp(cluster, memory_file=Path(folder) / "console.json")

        async def measure() -> None:
            while app._home.chat.conversation is None:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            app._home.go_to("chat")
            chat = app._home.chat
            app.open(chat.session.ask("Why is the sky blue?"), group="asked")
            await asyncio.sleep(SETTLE_S)
            before, began = sum(os.times()[:2]), time.monotonic()
            await asyncio.sleep(MEASURE_S)
            used = (sum(os.times()[:2]) - before) / (time.monotonic() - began)
            conversation = chat.conversation
            assert conversation is not None
            said = conversation.turns[-1].reply.text
            figure = f"{used * 100:.1f} % of a core, {len(said)} characters"
            await asyncio.to_thread(result.write_text, figure)
            app.exit()

        measuring = asyncio.create_task(measure())
        await app.run_async()
        await measuring


def main() -> None:
    for rows, columns in SIZES:
        with tempfile.NamedTemporaryFile() as result:
            run(rows, columns, result.name)
            figure = Path(result.name).read_text()
            print(f"chat CPU at {TOK_PER_S} tok/s, {columns}x{rows}: {figure}")


def run(rows: int, columns: int, result: str) -> None:
    """A console in a terminal of that size, its output read and thrown away."""
    master, slave = pty.openpty()
    size = struct.pack("HHHH", rows, columns, 0, 0)
    fcntl.ioctl(slave, termios.TIOCSWINSZ, size)
    env = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    command = [sys.executable, "-m", "tools.bench.bench_chat", result]
    child = subprocess.Popen(
        command,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=env,
        start_new_session=True,
    )
    os.close(slave)
    try:
        while os.read(master, 65536):
            pass
    except OSError:
        child.wait(10)
    os.close(master)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(talk(Path(sys.argv[1])))
    else:
        main()
