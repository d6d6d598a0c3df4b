"""A command of a user in a terminal of its own, as a person has it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import threading
import time
from functools import partial
from typing import Self

from tests.engine.conftest import WAIT_S, User

ROWS, COLUMNS = 36, 120


class Terminal:
    """A pseudo-terminal with ``dllm-tui`` in it; the output is kept.

    The terminal is the controlling one, so the command hears when it is closed. A
    ``deaf`` command ignores that.
    """

    def __init__(self, user: User, *args: str, deaf: bool = False) -> None:
        self._master, slave = pty.openpty()
        size = struct.pack("HHHH", ROWS, COLUMNS, 0, 0)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, size)
        self.process = subprocess.Popen(
            ["dllm-tui", *args],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**user.env, "TERM": "xterm-256color"},
            cwd=user.home,
            start_new_session=True,
            preexec_fn=partial(_take_terminal, deaf=deaf),
        )
        os.close(slave)
        self._seen = bytearray()
        self._closed = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(10)
        self.close()

    def close(self) -> None:
        if not self._closed.is_set():
            self._closed.set()
            self._reader.join(10)
            os.close(self._master)

    def wait_for(self, text: bytes) -> None:
        deadline = time.monotonic() + WAIT_S
        while text not in self._seen:
            shown = bytes(self._seen[-2000:])
            assert time.monotonic() < deadline, f"{text!r} not in {shown!r}"
            time.sleep(0.02)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def _read(self) -> None:
        """Take the output, so that the command never waits for us."""
        with contextlib.suppress(OSError):
            while not self._closed.is_set():
                if select.select([self._master], [], [], 0.1)[0]:
                    self._seen += os.read(self._master, 65536)
                elif self.process.poll() is not None:
                    return


def _take_terminal(*, deaf: bool) -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    if deaf:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
