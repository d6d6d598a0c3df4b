"""The console of a user in a terminal of its own, as a person has it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import threading
import time
from typing import Self

from tests.engine.conftest import WAIT_S, User

ROWS, COLUMNS = 36, 120


class Terminal:
    """A pseudo-terminal with a console in it; what it writes is kept."""

    def __init__(self, user: User) -> None:
        self._master, slave = pty.openpty()
        size = struct.pack("HHHH", ROWS, COLUMNS, 0, 0)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, size)
        env = {**user.env, "TERM": "xterm-256color"}
        self._process = subprocess.Popen(
            ["dllm-tui"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=env,
            cwd=user.home,
            start_new_session=True,
        )
        os.close(slave)
        self._seen = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(10)
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

    def kill(self, number: int) -> None:
        self._process.send_signal(number)

    def _read(self) -> None:
        """Take what it writes, so that it never waits for us."""
        with contextlib.suppress(OSError):
            while True:
                if select.select([self._master], [], [], 0.1)[0]:
                    self._seen += os.read(self._master, 65536)
                elif self._process.poll() is not None:
                    return
