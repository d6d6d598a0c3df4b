"""First token and tokens per second through a gateway and without, in turn.

Run as ``python -m tools.bench.bench_gateway BUILD``. BUILD is a build of ``native/``
with its target ``bench_programs``. One stock llama-server with a model of some 10 ms a
token answers streams. It is asked directly, through a gateway and through a bare copy
relay, in random order. The copy relay does the least that any
process in the middle can. The first figure is the time to the first piece of an answer
of one token, from a cached prompt. The second is the rate of the pieces of a longer
answer. Verdicts are medians of the turns' differences and ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import random
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from backends.gateway.control_messages import Mode, Target, gateway_argv
from backends.gateway.listen_settings import ListenSettings
from tests.native.stock import (
    cluster,
    free_port,
    start,
    wait_for_port,
    wait_until_up,
)
from tools.bench.bench_decode import PROMPT, model
from tools.bench.bench_llama import quartiles

if TYPE_CHECKING:
    from collections.abc import Callable

TOKENS = 64
"""Of a longer answer."""
FIRST_TARGET_MS = 1.0
RATIO_TARGET = 0.99
WAYS = ("direct", "copy", "gateway")


def pieces(port: int, tokens: int) -> list[float]:
    """Seconds from the request to each piece of a streamed answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    body = {
        "prompt": PROMPT,
        "n_predict": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    raw = json.dumps(body).encode()
    connection.connect()
    began = time.perf_counter()
    connection.request("POST", "/completion", raw, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    found = []
    while line := answer.readline():
        if line.startswith(b"data:"):
            found.append(time.perf_counter() - began)
    connection.close()
    return found


def first_ms(port: int) -> float:
    return pieces(port, 1)[0] * 1000


def tokens_per_s(port: int) -> float:
    times = pieces(port, TOKENS)
    return (TOKENS - 1) / (times[TOKENS - 1] - times[0])


async def tell(socket: Path, target: Target) -> None:
    """Tell a gateway where llama-server is, as a controller does."""
    while True:
        try:
            _, writer = await asyncio.open_unix_connection(socket)
            break
        except OSError:
            await asyncio.sleep(0.05)
    writer.write(msgspec.json.encode(target) + b"\n")
    await writer.drain()
    writer.close()
    await writer.wait_closed()


def started(stack: ExitStack, version: str, build: Path) -> dict[str, int]:
    """Ports of all ways to one llama-server."""
    work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    server = stack.enter_context(cluster(version, model(), 1, work, None))
    direct, copy, port = int(server.url.rpartition(":")[2]), free_port(), free_port()
    argv = [str(build / "bench/copy_relay"), str(copy), str(direct)]
    start(stack, argv, work / "copy.log")
    wait_for_port(copy)
    socket = work / "gateway.sock"
    process = start(
        stack,
        list(gateway_argv("bench", port, socket, ListenSettings())),
        work / "g.log",
    )
    asyncio.run(tell(socket, Target(mode=Mode.SERVE, port=direct, server="1")))
    wait_until_up(f"http://127.0.0.1:{port}", process)
    return dict(zip(WAYS, (direct, copy, port), strict=True))


def measured(
    ports: dict[str, int], count: int, of: Callable[[int], float]
) -> list[dict[str, float]]:
    """A figure of all ways, so many times."""
    order = random.Random(1)
    for port in ports.values():
        of(port)
    return [
        {way: of(ports[way]) for way in order.sample(WAYS, len(WAYS))}
        for _ in range(count)
    ]


def main() -> None:
    """Measure, print; the exit status is the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--engine", default="8.0.0", help="protocol version")
    options = parser.parse_args()
    print(f"load average before: {os.getloadavg()[0]:.1f}")
    with ExitStack() as stack:
        ports = started(stack, options.engine, options.build.resolve())
        firsts = measured(ports, options.turns * 3, first_ms)
        rates = measured(ports, options.turns, tokens_per_s)
    for way in WAYS:
        first = statistics.median(turn[way] for turn in firsts)
        rate = statistics.median(turn[way] for turn in rates)
        print(f"{way:8} first token {first:6.2f} ms   {rate:7.1f} tok/s")
    for way in WAYS[1:]:
        added = [turn[way] - turn["direct"] for turn in firsts]
        ratios = [turn[way] / turn["direct"] for turn in rates]
        added_ms, ratio = statistics.median(added), statistics.median(ratios)
        print(
            f"{way:8} first token {added_ms:+.2f} ms (middle half {quartiles(added)}), "
            f"tokens {ratio:.3f} of direct (middle half {quartiles(ratios)})"
        )
    print(f"targets: {FIRST_TARGET_MS:+.0f} ms, {RATIO_TARGET}")
    sys.exit(added_ms > FIRST_TARGET_MS or ratio < RATIO_TARGET)


if __name__ == "__main__":
    main()
