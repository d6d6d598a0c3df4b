"""Command lines for llama.cpp's programs; pure, no shell."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from backends.engine.find import EngineLocation

LOOPBACK = "127.0.0.1"
LAYERS_VERBOSITY = 5
"""Prints which layer goes where, and 1.1 KB for every token generated thereafter."""


def worker_argv(
    location: EngineLocation, *, port: int, device: str, threads: int | None = None
) -> tuple[str, ...]:
    """An rpc-server for one device on a loopback port.

    Start it with SIGPIPE ignored: a stock one dies of a client that leaves early.
    """
    options = ("-H", LOOPBACK, "-p", str(port), "-d", device)
    more = () if threads is None else ("-t", str(threads))
    return (location.worker_path, *options, *more)


def server_argv(
    location: EngineLocation,
    flags: Collection[str],
    *,
    model: str,
    rpc_endpoints: Sequence[str],
    device_names: Sequence[str],
    n_gpu_layers: int,
    tensor_split: Sequence[int],
    ctx_size: int,
    parallel: int,
    port: int,
    host: str = LOOPBACK,
    extra: Sequence[str] = (),
    verbosity: int = LAYERS_VERBOSITY,
    no_repack: bool | None = None,
) -> tuple[str, ...]:
    """A llama-server with exactly this placement.

    ``flags`` are the options it knows (``ask.flags_of``); what it does not know is left
    out. ``--rpc`` precedes ``--device``, which could not name its devices otherwise.
    ``ctx_size`` is shared by the ``parallel`` slots. ``no_repack`` None: where this CPU
    has AMX, on which repacked Q8_0 weights crash a llama-server without RPC.
    ``extra`` comes last and so has the last word.
    """
    return (
        location.server_path,
        *_model(model, ctx_size, parallel),
        *_placement(rpc_endpoints, device_names, n_gpu_layers, tensor_split),
        *_switches(flags, cpu_has_amx() if no_repack is None else no_repack),
        *_verbosity(flags, verbosity),
        *("--host", host, "--port", str(port)),
        *extra,
    )


def _model(model: str, ctx_size: int, parallel: int) -> tuple[str, ...]:
    return ("-m", model, "-c", str(ctx_size), "-np", str(parallel))


def _placement(
    rpc_endpoints: Sequence[str],
    device_names: Sequence[str],
    n_gpu_layers: int,
    tensor_split: Sequence[int],
) -> tuple[str, ...]:
    rpc = ("--rpc", ",".join(rpc_endpoints)) if rpc_endpoints else ()
    if not device_names or n_gpu_layers <= 0:
        return (*rpc, "--device", "none", "-ngl", "0")
    counts = ("-ts", ",".join(map(str, tensor_split))) if tensor_split else ()
    devices = ("--device", ",".join(device_names))
    return (*rpc, *devices, "-ngl", str(n_gpu_layers), *counts)


def _switches(flags: Collection[str], no_repack: bool) -> tuple[str, ...]:
    fit = ("-fit", "off") if "-fit" in flags else ()
    slots = ("--slots",) if "--slots" in flags else ()
    no_page = tuple(f for f in ("--no-ui", "--no-webui") if f in flags)[:1]
    repack = ("--no-repack",) if no_repack and "--no-repack" in flags else ()
    return (*fit, *slots, *no_page, *repack)


def _verbosity(flags: Collection[str], level: int) -> tuple[str, ...]:
    if "-lv" in flags:
        return ("-lv", str(level))
    # Before 2025 all debug lines were one switch.
    return ("-v",) if level >= LAYERS_VERBOSITY and "-v" in flags else ()


def cpu_has_amx(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the CPU lists AMX tiles; False where there is no such file."""
    try:
        with cpuinfo.open(errors="replace") as file:
            for line in file:
                if line.startswith("flags"):
                    return "amx_tile" in line.split()
    except OSError:
        return False
    return False
