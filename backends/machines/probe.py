"""Looking at a machine: one script over its shell, nothing left behind there."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from backends.engine import compiling
from backends.errors import HostError
from backends.machines.agent.answers import MemoryTold, device_of
from backends.machines.probe_text import Probed, parse_probe
from backends.state import PeerFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from backends.machines.shell import Shell

PROBE_S = 20.0
"""Longest probe; a fifth of a second is usual."""
RTT_TRIES = 3
BANDWIDTH_S = 0.5
# A megabyte that a compressing connection cannot make much smaller.
_NOISE = """\
block=$(od -An -v -tx1 -N 32768 /dev/urandom | tr -d ' \\n' | fold -w 4095)
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do printf '%s\\n' "$block"; done
"""


async def survey(
    shell: Shell,
    *parts: str,
    engine_dirs: Sequence[str] = (),
    on_line: Callable[[str], None] | None = None,
) -> Probed:
    """What a machine is and what is installed there; no engine is started.

    Args:
        shell: the machine.
        parts: any of ``system``, ``tools``, ``engines``.
        engine_dirs: directories of engines configured for it; ``~/`` is its home.
        on_line: gets every line as it comes.

    Raises:
        HostError: the script failed, or its answer is not complete.
        PeerUnreachable: the connection broke.
    """
    arguments = (" ".join(parts), *engine_dirs)
    result = await shell.run(script(), *arguments, timeout_s=PROBE_S, on_line=on_line)
    try:
        return parse_probe(result.stdout)
    except HostError as error:
        raise HostError(
            f"The answer of {shell.name} to the probe is not complete", error.hint
        ) from error


def script() -> str:
    """The text of ``scripts/probe.sh``, with what it shares with those of a build."""
    shared = compiling.script("common")
    return shared + compiling.script("probe", package="backends.machines.scripts")


def facts_of(probed: Probed, peer: str) -> PeerFacts:
    """The lasting part of what a probe told; of its devices the CPU."""
    tools = probed.tools
    memory = MemoryTold(
        total_bytes=probed.memory_bytes,
        available_bytes=probed.memory_free_bytes,
        cpu=probed.cpu_name or probed.arch,
        cores=probed.performance_cores,
    )
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
        devices=(device_of(memory, peer),),
        disk_free_bytes=probed.disk_free_bytes,
        engines=probed.engines,
        relay_path=newest_relay(probed),
        compiler=tools["cxx"].text if "cxx" in tools else "",
        cmake=f"cmake {tools['cmake'].version}" if "cmake" in tools else "",
    )


def newest_relay(probed: Probed) -> str:
    """Path of our helper there; empty when there is none."""
    newest = max(probed.relays, key=_numbers, default="")
    return probed.relays.get(newest, "")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(piece) for piece in version.split(".") if piece.isdigit())


async def rtt_ms(shell: Shell) -> float:
    """The shortest of a few round trips: the others had to wait for something."""
    return min([await shell.rtt_ms() for _ in range(RTT_TRIES)])


async def bandwidth_mb_s(shell: Shell) -> float | None:
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
