"""Measure the cost of watching peers: run it with ``make bench-watching`` (root).

A cluster of two workers here answers while three peers over SSH are looked after. In
each pair of answers, controller and agents work during one and are suspended during
the other. The figure is the median ratio of their tokens per second. The kernel counts
their forks on each peer, and their messages.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import statistics
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from backends.demo import MODEL_PATH
from tests.hosts.network import Network, missing
from tests.hosts.user import HeadUser
from tests.kit.processes import is_agent
from tools.bench.bench_tunnel import PROMPT, show

if TYPE_CHECKING:
    from collections.abc import Iterator

PEERS = ("ada", "bob", "cy")
PAIRS = int(os.environ.get("DLLM_BENCH_PAIRS", "40"))
TOKENS = 256
SETTLE_S = 0.3
QUIET_S = 20.0
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))


def watchers(user: HeadUser, network: Network) -> list[psutil.Process]:
    controller = psutil.Process(user.status()["controller_pid"])
    there = [psutil.Process(p) for peer in network.peers for p in peer.agents()]
    here = [p for p in controller.children() if is_agent(p)]
    return [controller, *here, *there]


@contextlib.contextmanager
def suspended(processes: list[psutil.Process]) -> Iterator[None]:
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    try:
        time.sleep(SETTLE_S)
        yield
    finally:
        for process in processes:
            process.send_signal(signal.SIGCONT)
        time.sleep(SETTLE_S)


def tokens_per_s(api_url: str) -> float:
    asked = {"prompt": PROMPT, "n_predict": TOKENS, "ignore_eos": True}
    place = f"{api_url.removesuffix('/v1')}/completion"
    request = urllib.request.Request(place, json.dumps(asked).encode())
    with urllib.request.urlopen(request, timeout=120) as answer:
        return float(json.load(answer)["timings"]["predicted_per_second"])


def compare(processes: list[psutil.Process], api_url: str) -> None:
    """Pairs of answers, whichever comes first decided by a coin."""
    rates: dict[str, list[float]] = {"watched": [], "unwatched": []}
    for _ in range(PAIRS):
        for way in random.sample(list(rates), 2):
            alone = (
                suspended(processes) if way == "unwatched" else contextlib.nullcontext()
            )
            with alone:
                rates[way].append(tokens_per_s(api_url))
    for way, found in rates.items():
        show(f"decode, {way}", found, "tok/s")
    pairs = zip(rates["watched"], rates["unwatched"], strict=True)
    ratios = sorted(watched / alone for watched, alone in pairs)
    middle = f"{ratios[PAIRS // 4]:.3f} to {ratios[-PAIRS // 4]:.3f}"
    median = statistics.median(ratios)
    print(
        f"watched / unwatched: median of {PAIRS} pairs {median:.3f}, half in {middle}"
    )


def count_forks(network: Network) -> dict[str, int]:
    lines = Path("/proc/stat").read_text().splitlines()
    here = next(line for line in lines if line.startswith("processes")).split()[1]
    return {"here": int(here), **{p.name: p.count_forks() for p in network.peers}}


def count_quiet(processes: list[psutil.Process], network: Network) -> None:
    cpu_s = [sum(p.cpu_times()[:2]) for p in processes]
    before = count_forks(network)
    time.sleep(QUIET_S)
    forks = {name: n - before[name] for name, n in count_forks(network).items()}
    used = sum(sum(p.cpu_times()[:2]) for p in processes) - sum(cpu_s)
    # Each count is a process of its peer.
    there = ", ".join(f"{p.name} {forks[p.name] - 1}" for p in network.peers)
    print(f"idle: in {QUIET_S:.0f} s forks on {there}")
    print(f"idle: and {forks['here']} by all programs of this kernel")
    print(f"idle: {used / QUIET_S:.1%} of a core for {len(processes)} watchers")


def main() -> None:
    if reason := missing():
        sys.exit(f"bench-watching {reason}")
    network = Network()
    user = None
    try:
        network.write_ssh_config()
        os.environ["HOME"] = str(network.home)
        user = HeadUser(network, CACHE)
        for peer in PEERS:
            user.run("peers", "add", peer)
            user.run("peers", "provision", peer)
        up = ("up", "--model", str(MODEL_PATH), "--workers", "2", "--detach")
        api_url = user.json(*up)["api_url"]
        processes = watchers(user, network)
        count_quiet(processes, network)
        compare(processes, api_url)
    finally:
        if user:
            user.run("stop", "--all")
        network.close()


if __name__ == "__main__":
    main()
