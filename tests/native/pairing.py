"""Running ``dllm-relay worker``, the far end of a pair, and both ends together."""

from __future__ import annotations

import json
import secrets
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from tests.kit.waiting import PATIENCE_S
from tests.native.relaying import Relay, running

# So that the worker is asked what the client asks, and nothing else.
AS_ASKED = ("--no-answers",)


def key_file(path: Path) -> tuple[str, str]:
    path.touch(0o600)
    path.write_text(secrets.token_hex(32) + "\n")
    return "--key-file", str(path)


class FarEnd:
    """A running ``dllm-relay worker`` before an rpc-server at a port of ours."""

    def __init__(
        self,
        program: Path,
        worker: int,
        log: Path,
        *options: str,
        before: Sequence[str] = (),
    ) -> None:
        """Start it; it listens on a free port, without a key at a Unix socket.

        ``before``: words that run a command somewhere else.
        """
        self.log = log
        socket = f"unix:{log.with_suffix('.pair')}"
        place = "127.0.0.1:0" if "--key-file" in options else socket
        where = () if "--listen" in options else ("--listen", place)
        argv = [*before, str(program), "worker", *where, "--name", log.stem]
        argv += ["--worker", f"127.0.0.1:{worker}", *options]
        with log.open("w") as out:
            self.process = subprocess.Popen(
                argv, stdout=subprocess.PIPE, stderr=out, text=True
            )
        assert self.process.stdout
        self.port = int(json.loads(self.process.stdout.readline())["port"])
        self.endpoint = f"127.0.0.1:{self.port}" if self.port else socket
        """Where it is dialled."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
        if self.process.stdout:
            self.process.stdout.close()


# What the client gets a reply to, but for the results of a pass.
QUESTIONS = (
    *("HELLO", "DEVICE_COUNT", "GET_DEVICE_MEMORY", "GET_ALIGNMENT", "GET_MAX_SIZE"),
    *("ALLOC_BUFFER", "BUFFER_GET_BASE", "GET_ALLOC_SIZE", "SET_TENSOR_HASH"),
)


RESULTS = "GET_TENSOR"


def waited_for(relay: Relay, before: Counter[str] | None = None) -> Counter[str]:
    """Questions of a llama-server that has started that waited for the worker.

    ``before``: what went before it, by `all_waited_for`.
    """
    before = before or Counter()
    with relay.stats() as stats:
        warmed_up = stats.until(
            lambda line: (
                line["type"] == "snapshot"
                and line["commands"].get(RESULTS, {"count": 0})["count"]
                > before[RESULTS]
            )
        )
    waited = _waited(warmed_up) - before
    return Counter({name: waited[name] for name in QUESTIONS if waited[name]})


def all_waited_for(relay: Relay) -> Counter[str]:
    with relay.stats() as stats:
        return _waited(
            stats.until(
                lambda line: line["type"] == "snapshot" and not line["connected"]
            )
        )


def _waited(snapshot: dict[str, Any]) -> Counter[str]:
    commands = snapshot["commands"].items()
    return Counter({name: each["count"] - each["answered"] for name, each in commands})


@contextmanager
def paired(
    program: Path,
    worker: int,
    stats: Path,
    *options: str,
    near_options: Sequence[str] = (),
    far_options: Sequence[str] = (),
) -> Iterator[tuple[Relay, FarEnd]]:
    """Both ends; the head's dials, and both get the options."""
    near_options = (*options, *near_options)
    far_log = stats.with_name(stats.stem + "-far.log")
    with (
        FarEnd(program, worker, far_log, *options, *far_options) as far,
        running(program, far.endpoint, stats, *near_options, way="--pair-dial") as near,
    ):
        yield near, far
