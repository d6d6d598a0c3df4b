"""Measure the console's first paint and CPU time: run it with ``make bench-tui``.

A serving two-worker cluster is shown in a real pseudo-terminal. First come the seconds
from process start until the cluster's state is on the screen. Then comes the CPU time
of console and controller, idle and during an answer. Figures, no verdict: machines
differ.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import termios
import threading
import time
import urllib.request

import psutil

ROUNDS = 7
MEASURE_S = 10.0
ROWS, COLUMNS = 36, 120
MARKER = b"serving"


class Console:
    """The console in a pseudo-terminal, its output read and thrown away."""

    def __init__(self, **variables: str) -> None:
        self.master, slave = pty.openpty()
        size = struct.pack("HHHH", ROWS, COLUMNS, 0, 0)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, size)
        env = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        env |= variables
        # An installed console has its bytecode; without it a start compiles 150 files.
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            ["dllm-tui"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=env,
            start_new_session=True,
        )
        os.close(slave)

    def first_paint_s(self, timeout_s: float = 20.0) -> float:
        """Seconds from the start until the marker has been written."""
        seen = b""
        while time.monotonic() - self.started < timeout_s:
            if select.select([self.master], [], [], 0.1)[0]:
                seen += os.read(self.master, 65536)
                if MARKER in seen:
                    return time.monotonic() - self.started
        sys.exit(f"the console did not show {MARKER.decode()!r} in {timeout_s} s")

    def drain(self) -> threading.Thread:
        reader = threading.Thread(target=self._read, daemon=True)
        reader.start()
        return reader

    def _read(self) -> None:
        try:
            while os.read(self.master, 65536):
                pass
        except OSError:
            return

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(10)
        os.close(self.master)


def cpu_percent(pids: dict[str, int]) -> dict[str, float]:
    """CPU of each process over the measuring time, in per cent of one core."""
    processes = {name: psutil.Process(pid) for name, pid in pids.items()}
    before = {name: sum(p.cpu_times()[:2]) for name, p in processes.items()}
    time.sleep(MEASURE_S)
    return {
        name: (sum(p.cpu_times()[:2]) - before[name]) / MEASURE_S * 100
        for name, p in processes.items()
    }


def dllm(*args: str) -> str:
    command = ["dllm-tui", *args]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def generate(url: str, stop: threading.Event) -> None:
    """Keep the model generating until told to stop."""
    body = {"prompt": "a", "n_predict": 3000, "ignore_eos": True, "stream": True}
    while not stop.is_set():
        with urllib.request.urlopen(url, json.dumps(body).encode()) as reply:
            for _ in reply:
                if stop.is_set():
                    return


def main() -> None:
    """Measure and print."""
    from backends.demo import MODEL_PATH

    status = json.loads(dllm("status", "--json"))
    ours = status["state"] != "serving"
    if ours:
        dllm("up", "--model", str(MODEL_PATH), "--workers", "2", "--detach")
    status = json.loads(dllm("status", "--json"))
    try:
        measure(status)
    finally:
        if ours:
            dllm("stop")


def measure(status: dict[str, object]) -> None:
    """All figures on a serving cluster."""
    paints = []
    for _ in range(ROUNDS + 1):
        console = Console()
        paints.append(console.first_paint_s())
        console.end()
    del paints[0]  # It wrote the bytecode.
    print(
        f"first paint     median {statistics.median(paints):.3f} s, "
        f"{min(paints):.3f} to {max(paints):.3f} s over {ROUNDS} starts"
    )
    # At once, so that both draw the same and share what the machine does meanwhile.
    consoles = {"console": Console(), "without the pulse": Console(NO_MOTION="1")}
    for console in consoles.values():
        console.first_paint_s()
        console.drain()
    time.sleep(2)
    pids = {
        **{name: console.process.pid for name, console in consoles.items()},
        "controller": int(str(status["controller_pid"])),
    }
    show("idle CPU", cpu_percent(pids))
    stop = threading.Event()
    url = str(status["api_url"]).removesuffix("/v1") + "/completion"
    generator = threading.Thread(target=generate, args=(url, stop), daemon=True)
    generator.start()
    time.sleep(1)
    show("live CPU", cpu_percent(pids))
    stop.set()
    generator.join(10)
    for console in consoles.values():
        console.end()


def show(title: str, figures: dict[str, float]) -> None:
    parts = ", ".join(f"{name} {value:.1f} %" for name, value in figures.items())
    print(f"{title:15} {parts} of a core over {MEASURE_S:.0f} s")


if __name__ == "__main__":
    main()
