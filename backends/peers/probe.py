"""Looking at a machine: one script over its shell, nothing left behind there."""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from msgspec.structs import replace

from backends.errors import HostError
from backends.peers.probe_text import (
    Probed,
    parse_clock,
    parse_probe,
    shares_memory,
)
from backends.state import Device, DeviceKind, PeerFacts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from backends.peers.shell import Shell
    from backends.state import PeerModel

PROBE_S = 20.0
"""Longest probe. Milliseconds are usual; a cold GPU driver takes seconds."""
IDENTITIES_S = 2
"""How long the identities of models may take; the others' stay empty."""
HASH_S = 3600.0
"""Longest wait for the full hash of a file: a slow disk reads 100 GB in less."""
RTT_TRIES = 3
"""The shortest of so many round trips counts: the others had to wait for something."""
BANDWIDTH_S = 0.5
BANDWIDTH_BYTES = 1_048_576
_GIB = 1 << 30
_EVERYTHING = ("system", "tools", "engines", "models")
# A megabyte that a compressing connection cannot make much smaller.
_NOISE = """\
block=$(od -An -v -tx1 -N 32768 /dev/urandom | tr -d ' \\n' | fold -w 4095)
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do printf '%s\\n' "$block"; done
"""


@runtime_checkable
class TimedShell(Protocol):
    """A shell that can time a round trip without starting anything there."""

    async def rtt_ms(self) -> float:
        """One round trip through the connection, in milliseconds."""
        ...


async def probe(
    shell: Shell,
    *,
    engine_dirs: Sequence[str],
    model_dirs: Sequence[str],
    budgets: Mapping[str, float],
    bandwidth: bool = True,
) -> PeerFacts:
    """What a machine is, has and holds.

    One round trip and the time of the script (0.2 s and the reading of about 3 MB a
    model), one for the round-trip time, and at most 0.5 s for the bandwidth.

    Args:
        shell: the machine.
        engine_dirs: directories of engines configured for it; ``~/`` is its home.
        model_dirs: more folders with models than the usual ones.
        budgets: GiB the user allows, by device name (``CUDA0``).
        bandwidth: whether to load the connection with up to 1 MB.

    Raises:
        HostError: the script failed, or its answer is not complete.
        PeerUnreachable: the connection broke.
    """
    started, at = time.monotonic(), time.time()
    heard: list[float] = []

    def listen(line: str) -> None:
        if line.startswith("clock\t"):
            heard.append(time.time())

    arguments = (str(len(engine_dirs)), *engine_dirs, *model_dirs)
    wanted = (" ".join(_EVERYTHING), str(IDENTITIES_S))
    result = await shell.run(
        script(), *wanted, *arguments, timeout_s=PROBE_S, on_line=listen
    )
    probed = parse_probe(result.stdout)
    # Only now there is a connection for certain.
    rtt_ms = await _rtt_ms(shell)
    speed = await _bandwidth_mb_s(shell) if bandwidth else None
    facts = facts_of(probed, shell.name, budgets)
    return replace(
        facts,
        at=at,
        clock_offset_s=_clock_offset_s(probed, heard, rtt_ms),
        rtt_ms=rtt_ms,
        bandwidth_mb_s=speed,
        seconds=time.monotonic() - started,
    )


async def survey(shell: Shell, *parts: str) -> Probed:
    """Some parts of a probe (``system``, ``tools``, ``engines``), all it tells.

    Raises:
        HostError: the script failed, or its answer is not complete.
        PeerUnreachable: the connection broke.
    """
    result = await shell.run(script(), " ".join(parts), "0", "0", timeout_s=PROBE_S)
    return parse_probe(result.stdout)


async def read_identities(shell: Shell, *paths: str) -> tuple[PeerModel, ...]:
    """Size and identity of files there; those that cannot be read are left out.

    Raises:
        HostError: the script failed or took too long.
        PeerUnreachable: the connection broke.
    """
    result = await shell.run(script(), "identity", *paths, timeout_s=HASH_S)
    return parse_probe(result.stdout).models


async def read_hashes(shell: Shell, *paths: str) -> dict[str, str]:
    """Full SHA-256 of files there, by path; unreadable ones are left out.

    Takes as long as the disk needs to read them.

    Raises:
        HostError: the script failed or took too long.
        PeerUnreachable: the connection broke.
    """
    result = await shell.run(script(), "sha256", *paths, timeout_s=HASH_S)
    return parse_probe(result.stdout).hashes


@cache
def script() -> str:
    """The text of ``scripts/probe.sh``."""
    return files("backends.peers.scripts").joinpath("probe.sh").read_text("utf-8")


def facts_of(probed: Probed, peer: str, budgets: Mapping[str, float]) -> PeerFacts:
    """The lasting part of what a probe told, with the peer's name in its devices."""
    relay = max(probed.relays, key=_numbers, default="")
    return PeerFacts(
        at=0.0,
        os=probed.os,
        arch=probed.arch,
        libc=probed.libc,
        system=probed.system,
        hostname=probed.hostname,
        cores=probed.cores,
        performance_cores=probed.performance_cores,
        memory_bytes=probed.memory_bytes,
        memory_free_bytes=probed.memory_free_bytes,
        devices=_devices(probed, peer, budgets),
        disk_free_bytes=probed.disk_free_bytes,
        engines=probed.engines,
        relay_version=relay,
        relay_path=probed.relays.get(relay, ""),
        compiler=probed.tools["cxx"].text if "cxx" in probed.tools else "",
        cmake=probed.tools["cmake"].version if "cmake" in probed.tools else "",
        problems=tuple(probed.problems),
        models=probed.models,
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(piece) for piece in version.split(".") if piece.isdigit())


def _devices(
    probed: Probed, peer: str, budgets: Mapping[str, float]
) -> tuple[Device, ...]:
    """The CPU, then what the engine lists; a GPU may share the CPU's memory."""
    name = probed.cpu_name or probed.arch
    count = probed.performance_cores
    cpu = Device(
        id="",
        name="CPU",
        kind=DeviceKind.CPU,
        description=f"{name}, {count} core{'' if count == 1 else 's'}",
        total_bytes=probed.memory_bytes,
        free_bytes=probed.memory_free_bytes,
    )
    devices = [replace(cpu, memory_pool=peer)]
    for device in probed.accelerators:
        pool = peer if shares_memory(device) else f"{peer}/{device.name}"
        devices.append(replace(device, memory_pool=pool))
    return tuple(
        replace(
            device,
            id=f"{peer}/{device.name}",
            budget_bytes=_budget_bytes(budgets.get(device.name)),
        )
        for device in devices
    )


def _budget_bytes(gib: float | None) -> int | None:
    return None if gib is None else int(gib * _GIB)


def _clock_offset_s(probed: Probed, heard: list[float], rtt_ms: float) -> float:
    """Its clock minus ours; the line that tells it took half a round trip."""
    if probed.clock is None or not heard:
        return 0.0
    return probed.clock - (heard[-1] - rtt_ms / 2000)


async def _rtt_ms(shell: Shell) -> float:
    """One round trip; where the connection cannot tell, that of an empty script."""
    if isinstance(shell, TimedShell):
        return min([await shell.rtt_ms() for _ in range(RTT_TRIES)])
    started = time.monotonic()
    await shell.run(":")
    return (time.monotonic() - started) * 1000


async def _bandwidth_mb_s(shell: Shell) -> float | None:
    """MB/s from there to here, between the first and the last line that came."""
    times: list[float] = []
    sizes: list[int] = []

    def listen(line: str) -> None:
        times.append(time.monotonic())
        sizes.append(len(line) + 1)

    with contextlib.suppress(TimeoutError, HostError):
        async with asyncio.timeout(BANDWIDTH_S):
            await shell.run(_NOISE, on_line=listen)
    if len(times) < 2 or times[-1] <= times[0]:
        return None
    return sum(sizes[1:]) / (times[-1] - times[0]) / 1e6


__all__ = [
    "Probed",
    "TimedShell",
    "facts_of",
    "parse_clock",
    "parse_probe",
    "probe",
    "read_hashes",
    "read_identities",
    "script",
    "survey",
]
