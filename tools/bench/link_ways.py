"""The ways of ``bench-link``: workers here, over a network, or behind pairs."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from backends.paths import user_paths
from tests.kit.models import write_llama
from tests.kit.waiting import wait_until
from tests.native.pairing import FarEnd, key_file
from tests.native.relaying import Relay, running
from tests.native.stock import engine, free_port, start

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.hosts.machine import Machine
    from tests.hosts.network import Network

WORKERS = ("ada", "bob")
LAB = {"latency_ms": 5, "rate_mb_s": 30}


def model_file(name: str, write: Callable[[Path], None]) -> Path:
    """A model that is written once."""
    file = user_paths().cache_dir / "bench" / f"{name}.gguf"
    if not file.exists():
        print(f"Writing {file}", flush=True)
        file.parent.mkdir(parents=True, exist_ok=True)
        half = file.with_suffix(".part")
        write(half)
        half.replace(file)
    return file


def _large(file: Path) -> None:
    """22 layers and 1.1 GB, all matrices Q8_0."""
    write_llama(
        file,
        n_layer=22,
        n_embd=2048,
        n_ff=5120,
        repeating=True,
        quantized=True,
        whole=True,
    )


def large_model() -> Path:
    return model_file("link-22x2048x5120-q8_0", _large)


@dataclass
class Site:
    network: Network
    build: Path
    version: str
    work: Path

    @property
    def relay(self) -> Path:
        return self.build / "dllm-relay"

    @property
    def machines(self) -> list[Machine]:
        return [self.network.peer(name) for name in WORKERS]


def inside(machine: Machine) -> list[str]:
    return ["nsenter", "-t", str(machine.container.pid), "-n", "--"]


def crossed(machine: Machine) -> tuple[int, int]:
    argv = [*inside(machine), "cat", "/proc/net/dev"]
    lines = subprocess.check_output(argv, text=True).splitlines()[2:]
    fields = [line.split(":")[1].split() for line in lines if "lo:" not in line]
    return sum(int(f[0]) for f in fields), sum(int(f[8]) for f in fields)


def start_there(stack: ExitStack, site: Site, machine: Machine, address: str) -> str:
    """A stock worker on a machine; its endpoint."""
    port = free_port()
    program = str(engine(site.version) / "ggml-rpc-server")
    argv = [*inside(machine), program, "-H", address, "-p", str(port), "-t", "1"]
    start(stack, argv, site.work / f"{machine.name}.log")
    wait_until(
        lambda: any(each.endswith(f":{port}") for each in machine.listening()),
        f"the worker on {machine.name}",
    )
    return f"{address}:{port}"


def loopback(stack: ExitStack, site: Site, model: Path) -> Iterator[str]:
    """Stock workers here."""
    for name in WORKERS:
        port = free_port()
        program = str(engine(site.version) / "ggml-rpc-server")
        argv = [program, "-H", "127.0.0.1", "-p", str(port), "-t", "1"]
        start(stack, argv, site.work / f"{name}.log")
        yield f"127.0.0.1:{port}"


def stock(stack: ExitStack, site: Site, model: Path) -> Iterator[str]:
    for machine in site.machines:
        yield start_there(stack, site, machine, machine.address)


def single(stack: ExitStack, site: Site, model: Path) -> Iterator[Relay]:
    for endpoint, name in zip(stock(stack, site, model), WORKERS, strict=True):
        stats = site.work / f"{name}.sock"
        yield stack.enter_context(running(site.relay, endpoint, stats))


def pair(stack: ExitStack, site: Site, model: Path) -> Iterator[Relay]:
    """Links to relays that have the model's file."""
    for machine in site.machines:
        endpoint = start_there(stack, site, machine, "127.0.0.1")
        key = key_file(site.work / f"{machine.name}.key")
        far = FarEnd(
            site.relay,
            int(endpoint.split(":")[1]),
            site.work / f"{machine.name}-far.log",
            *("--listen", f"{machine.address}:0", "--model", str(model), *key),
            before=inside(machine),
        )
        stack.enter_context(far)
        where = f"{machine.address}:{far.port}"
        stats = site.work / f"{machine.name}.sock"
        near = running(site.relay, where, stats, *key, way="--pair-dial")
        yield stack.enter_context(near)


Way = Callable[[ExitStack, Site, Path], "Iterator[str | Relay]"]
WAYS: dict[str, Way] = {"loopback": loopback, "stock": stock, "pair": pair}
SLOW: dict[str, Way] = {"stock": single, "pair": pair}


def slow_down(relay: Relay) -> None:
    with relay.stats() as stats:
        stats.send({"lab": LAB})
        stats.until(lambda line: bool(line.get("lab")))


@contextlib.contextmanager
def workers(
    site: Site, way: str, model: Path, *, limited: bool
) -> Iterator[tuple[list[str], list[Relay]]]:
    """Endpoints for llama-server, and the relays behind them."""
    with ExitStack() as stack:
        begin = (SLOW if limited else WAYS)[way]
        reached: list[str | Relay] = list(begin(stack, site, model))
        relays = [each for each in reached if isinstance(each, Relay)]
        for relay in relays if limited else ():
            slow_down(relay)
        ends = [e if isinstance(e, str) else f"127.0.0.1:{e.port}" for e in reached]
        yield ends, relays
