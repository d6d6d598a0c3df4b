"""kill -9 in a streamed answer, again and again; and with stock alone.

Run as ``make trials`` or ``python -m tools.trials.kills --trials 100``. A client that
knows of nothing asks for a greedy answer of 400 tokens of the bundled model; at a
random event a process of the kind that ``--kill`` names is killed, of several a random
one. Workers are also killed under a stock llama-server, with stock workers
that nobody looks after. All start anew for every trial. What the client saw is
printed as a table for the docs. The exit status tells whether all of ours were whole,
and word for word what an undisturbed cluster answers.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from backends.demo import MODEL_PATH
from tests.engine.conftest import somebody, wait_for
from tests.kit.processes import is_agent, name_of, words_of
from tests.native.stock import engine, free_port, server, start, wait_for_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import psutil

    from tests.engine.conftest import User

TOKENS = 400
PATH = "/v1/chat/completions"
ASKED = {
    "messages": [{"role": "user", "content": "What is a split?"}],
    "max_tokens": TOKENS,
    "temperature": 0,
    "ignore_eos": True,
    "cache_prompt": False,
    "stream": True,
}
FRESH_EVERY = 4
"""A process that dies more often within two minutes is not started again."""
SETTLE_S = 240.0
VICTIMS = {
    "worker": "ggml-rpc-server",
    "relay": "dllm-relay",
    "llama-server": "llama-server",
    "controller": "backends.controller",
}
"""Programs by what they are. The gateway is none of them: its end is a connection's."""

HEADS = ("cluster", "killed", "workers", "whole", "word for word", "pause", "seen")


@dataclass
class Seen:
    text: str = ""
    is_whole: bool = False
    trouble: str = ""
    longest_pause_s: float = 0.0


def nothing() -> None:
    """Leave the answer alone."""


def asked(port: int, at: int = 0, then: Callable[[], None] = nothing) -> Seen:
    """One answer; after ``at`` events ``then`` is done."""
    seen = Seen()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SETTLE_S)
    try:
        connection.request("POST", PATH, json.dumps(ASKED).encode())
        _read(connection.getresponse(), seen, at, then)
    except (OSError, http.client.HTTPException) as error:
        seen.trouble = type(error).__name__
    finally:
        connection.close()
    if not seen.is_whole and not seen.trouble:
        seen.trouble = "the stream ended in the middle"
    return seen


def _read(
    response: http.client.HTTPResponse, seen: Seen, at: int, then: Callable[[], None]
) -> None:
    last, count = time.monotonic(), 0
    for line in response:
        seen.is_whole = seen.is_whole or line == b"data: [DONE]\n"
        if not line.startswith(b"data: {"):
            continue
        now = time.monotonic()
        seen.longest_pause_s = max(seen.longest_pause_s, now - last)
        last, count = now, count + 1
        said = json.loads(line.removeprefix(b"data: "))
        if "error" in said:
            seen.trouble = str(said["error"]["message"])
        for choice in said.get("choices", []):
            seen.text += choice["delta"].get("content") or ""
        if count == at:
            then()


def kill_one(user: User, what: str, random_: random.Random) -> None:
    found = [p for p in user.processes() if is_a(p, what)]
    random_.choice(found).kill()


def is_a(process: psutil.Process, what: str) -> bool:
    words = (name_of(process), *words_of(process)[1:])
    return VICTIMS[what] in words and not is_agent(process)


def ours(
    what: str, workers: int, trials: int, random_: random.Random
) -> Iterator[Seen]:
    """The answer of an undisturbed cluster, then those of the trials."""
    up = ("up", "--model", str(MODEL_PATH), "--workers", str(workers), "--detach")
    with somebody() as user:
        for trial in range(trials):
            if trial % FRESH_EVERY == 0:
                user.run("stop")
                user.run(*up)
                port = urlsplit(user.status()["api_url"]).port or 0
            if not trial:
                yield asked(port)
            at = random_.randrange(1, TOKENS)
            yield asked(port, at, lambda: kill_one(user, what, random_))
            wait_for(
                lambda: user.status()["state"] == "serving", "it serves again", SETTLE_S
            )
        user.run("stop")
        user.assert_nothing_left()


def stock(_: str, workers: int, trials: int, random_: random.Random) -> Iterator[Seen]:
    """The same of llama-server and workers alone, of which a worker is killed."""
    version = "7.0.0"
    program = str(engine(version) / "ggml-rpc-server")
    for trial in range(trials):
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            ports = [free_port() for _ in range(workers)]
            argv = [program, "-H", "127.0.0.1", "-t", "1"]
            started = [
                start(stack, [*argv, "-p", str(port)], folder / f"{port}.log")
                for port in ports
            ]
            for port in ports:
                wait_for_port(port)
            log = folder / "server.log"
            url = stack.enter_context(server(version, MODEL_PATH, ports, log))
            port = urlsplit(url).port or 0
            if not trial:
                yield asked(port)
            at = random_.randrange(1, TOKENS)
            yield asked(port, at, random_.choice(started).kill)


WAYS = {"ours": ours, "stock": stock}


def row(
    way: str, what: str, workers: int, whole: Seen, seen: list[Seen]
) -> tuple[str, bool]:
    """A line of the table, and whether nobody noticed anything."""
    same = sum(one.is_whole and one.text == whole.text for one in seen)
    troubles = sorted({one.trouble for one in seen if one.trouble})
    pauses = [one.longest_pause_s for one in seen if one.is_whole]
    pause = (
        f"{statistics.median(pauses):.1f} s, {max(pauses):.1f} s at most"
        if pauses
        else "–"
    )
    cells = [
        way,
        what,
        str(workers),
        f"{sum(one.is_whole for one in seen)} of {len(seen)}",
        f"{same} of {len(seen)}",
        pause,
        "; ".join(troubles) or "nothing",
    ]
    return "| " + " | ".join(cells) + " |", same == len(seen)


def print_head() -> None:
    for head in (HEADS, ("---",) * len(HEADS)):
        print("| " + " | ".join(head) + " |")


def main() -> None:
    """Try, print the table; the exit status is the verdict on ours."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--ways", nargs="+", choices=sorted(WAYS))
    parser.add_argument("--kill", choices=sorted(VICTIMS), default="worker")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    ways = options.ways or (list(WAYS) if options.kill == "worker" else ["ours"])
    if "stock" in ways and options.kill != "worker":
        parser.error("of stock alone only workers are killed")
    print_head()
    is_well = True
    for way in ways:
        for workers in options.workers:
            random_ = random.Random(options.seed)
            whole, *seen = WAYS[way](options.kill, workers, options.trials, random_)
            line, unnoticed = row(way, options.kill, workers, whole, seen)
            is_well = is_well and (unnoticed or way != "ours")
            print(line, flush=True)
    sys.exit(not is_well)


if __name__ == "__main__":
    main()
