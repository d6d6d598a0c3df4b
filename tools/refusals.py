"""Very many different requests of every refused class, judged by the relay's own code.

Run as ``python -m tools.refusals PROGRAM COUNT [SEED]``, PROGRAM being
``refuse_requests`` of ``native/tests``; without a seed, others in every run. Handles
and addresses are those of a stock worker. Of a refused request nothing whole may go on
to it; that such a worker then lives is tried with a connection for each, so with fewer,
by ``test_relay_refusals``.
"""

from __future__ import annotations

import os
import random
import socket
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from tests.native.refused import Given, of_version
from tests.native.stock import engine, start_worker

if TYPE_CHECKING:
    from collections.abc import Callable

VERSIONS = "7.0.0", "8.0.0"


class Noting(socket.socket):
    """Remembers what passes, as ``refuse_requests`` reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.noted = b""

    def sendall(self, data: bytes) -> None:  # type: ignore[override]
        self.noted += message(b"U", data)
        super().sendall(data)

    def recv(self, count: int) -> bytes:  # type: ignore[override]
        data = super().recv(count)
        self.noted += message(b"D", data)
        return data


def message(kind: bytes, data: bytes) -> bytes:
    return kind + struct.pack("<I", len(data)) + data


def judged(
    program: Path,
    noted: bytes,
    made: Callable[[Given], bytes],
    given: Given,
    count: int,
) -> str:
    with subprocess.Popen(
        [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin
        assert process.stdout
        try:
            process.stdin.write(noted)
            for _ in range(count):
                process.stdin.write(message(b"R", made(given)))
            process.stdin.close()
        except BrokenPipeError:
            pass
        return process.stdout.read().decode().strip()


def tell(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def judge_all(program: Path, version: str, count: int, work: Path) -> bool:
    began = time.monotonic()
    wrong = []
    with ExitStack() as stack:
        port = start_worker(stack, engine(version), work / "worker.log")
        client = stack.enter_context(Noting())
        client.connect(("127.0.0.1", port))
        given = Given(client, version)
        classes = of_version(version)
        for name, made in classes.items():
            said = judged(program, client.noted, made, given, count)
            wrong += [f"{version}: {name}: {said}"] if said != str(count) else []
    took_s = time.monotonic() - began
    right = len(classes) - len(wrong)
    tell(
        f"{version}: {count} of each of {right} classes refused, {took_s:.0f} s", *wrong
    )
    return not wrong


def main() -> None:
    """Judge the classes of one version after the other, in processes of their own."""
    program, count = Path(sys.argv[1]).resolve(), int(sys.argv[2])
    seed = int(sys.argv[3]) if sys.argv[3:] else random.randrange(1 << 32)
    tell(f"seed {seed}")
    random.seed(seed)
    children = []
    for version in VERSIONS:
        if (child := os.fork()) == 0:
            with tempfile.TemporaryDirectory() as work:
                os._exit(not judge_all(program, version, count, Path(work)))
        children.append(child)
    results = [os.waitpid(child, 0)[1] for child in children]
    sys.exit(any(results))


if __name__ == "__main__":
    main()
