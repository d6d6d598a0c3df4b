"""Hours of faults: every answer right, and nothing that outlives them grows.

Run as ``python -m tools.trials.soak --minutes 120``. Four clients ask a cluster of
two workers, plainly and streamed. Every 20 s one of its processes is killed. In the
first quarter gateway and controller are among them; from then on their memory,
descriptors and files are watched. The exit status is the verdict.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import sys
import threading
import time
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psutil

from backends.demo import MODEL_PATH
from tests.engine.conftest import User, somebody, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHAT = "/v1/chat/completions"
CLIENTS = 4
EVERY_S = 20.0
GROWTH_MAX = 1.05
SLACK = {"rss_bytes": 4 << 20, "descriptors": 3 * CLIENTS, "files": 4}
"""So much is no growth, whatever the share: clients come and go."""
ENGINE = ("worker1", "worker2", "relay-worker1", "llama-server")
OURS = ("api-gateway", "controller")
ASKED = {
    "messages": [{"role": "user", "content": "What is a split?"}],
    "max_tokens": 60,
    "temperature": 0,
    "ignore_eos": True,
    "cache_prompt": False,
}


def answer(port: int, *, stream: bool) -> str:
    """One answer's text.

    Raises:
        OSError: the connection broke.
        HTTPException: the same.
        ValueError: it is no whole answer.
    """
    connection = HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("POST", CHAT, json.dumps({**ASKED, "stream": stream}))
        response = connection.getresponse()
        raw = response.read()
    finally:
        connection.close()
    if response.status != 200:
        raise ValueError(f"status {response.status}: {raw[:200]!r}")
    if not stream:
        return str(json.loads(raw)["choices"][0]["message"]["content"])
    if not raw.endswith(b"data: [DONE]\n\n"):
        raise ValueError(f"it ends with {raw[-200:]!r}")
    lines = [x[6:] for x in raw.splitlines() if x.startswith(b"data: {")]
    choices = (choice for x in lines for choice in json.loads(x)["choices"])
    return "".join(choice["delta"].get("content") or "" for choice in choices)


class Client(threading.Thread):
    """Asks and asks, and knows what the answer is."""

    def __init__(self, port: int, right: str, over: threading.Event) -> None:
        super().__init__()
        self.answers = 0
        self.broken = 0
        """By the end of the gateway itself."""
        self.wrong: list[str] = []
        self._asked = port, right
        self._over = over

    def run(self) -> None:
        """Ask until it is over."""
        port, right = self._asked
        for stream in itertools.cycle((True, False)):
            if self._over.is_set():
                return
            try:
                text = answer(port, stream=stream)
            except (OSError, HTTPException):
                self.broken += 1
                time.sleep(0.5)
                continue
            except ValueError as error:
                text = str(error)
            self.answers += 1
            if text != right:
                self.wrong.append(text)


def victims(
    random_: random.Random, names: Callable[[], tuple[str, ...]]
) -> Iterator[str]:
    while True:
        bag = list(names())
        random_.shuffle(bag)
        yield from bag


def figures(user: User) -> dict[str, int]:
    status = user.status()
    pids = {"controller": status["controller_pid"], "gateway": user.pid("api-gateway")}
    found = {}
    for name, pid in pids.items():
        process = psutil.Process(pid)
        found[f"{name} rss_bytes"] = process.memory_info().rss
        found[f"{name} descriptors"] = process.num_fds()
    found["files"] = sum(1 for file in user.home.rglob("*") if file.is_file())
    return found


def killed(user: User, victim: str) -> None:
    if victim == "controller":
        psutil.Process(user.status()["controller_pid"]).kill()
    else:
        user.kill(victim)
    wait_for(lambda: user.status()["state"] == "serving", "serving again", 60)


def medians(seen: list[dict[str, int]]) -> dict[str, float]:
    return {name: statistics.median(one[name] for one in seen) for name in seen[0]}


def grown(seen: list[dict[str, int]]) -> list[str]:
    if not seen:
        return []
    quarter = max(len(seen) // 4, 1)
    first, last = medians(seen[:quarter]), medians(seen[-quarter:])
    found = []
    for name, before in first.items():
        slack = SLACK[name.rpartition(" ")[2]]
        print(f"{name:24} {before:14.0f} {last[name]:14.0f}")
        if last[name] > max(before * GROWTH_MAX, before + slack):
            found.append(name)
    return found


def soaked(user: User, minutes: float, seed: int) -> list[str]:
    """Everything that went wrong."""
    user.run("up", "--model", str(MODEL_PATH), "--workers", "2", "--detach")
    port = urlsplit(user.status()["api_url"]).port or 0
    right, over = answer(port, stream=False), threading.Event()
    clients = [Client(port, right, over) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    began, seen, faults = time.monotonic(), list[dict[str, int]](), 0

    def share() -> float:
        return (time.monotonic() - began) / (60 * minutes)

    chosen = victims(
        random.Random(seed), lambda: ENGINE if share() >= 0.25 else (*ENGINE, *OURS)
    )
    try:
        while share() < 1:
            at = time.monotonic()
            victim = next(chosen)
            if victim in OURS and share() >= 0.25:
                continue
            killed(user, victim)
            faults += 1
            if share() >= 0.25:
                seen.append(figures(user))
            time.sleep(max(EVERY_S - (time.monotonic() - at), 0.0))
    finally:
        over.set()
        for client in clients:
            client.join(180)
    answers, broken = sum(c.answers for c in clients), sum(c.broken for c in clients)
    wrong = [text for client in clients for text in client.wrong]
    print(
        f"{faults} faults, {answers} answers, {len(wrong)} wrong, {broken} broken off"
    )
    user.run("stop")
    user.assert_nothing_left()
    return [*wrong, *(f"{name} has grown" for name in grown(seen))]


def main() -> None:
    """Soak, print; the exit status is the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with somebody() as user:
        troubles = soaked(user, options.minutes, options.seed)
    for trouble in troubles:
        print(trouble)
    sys.exit(bool(troubles))


if __name__ == "__main__":
    main()
