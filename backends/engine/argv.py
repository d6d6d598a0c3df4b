"""Command lines for llama.cpp's programs; pure, no shell."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from backends.engine.ask import TRACES
from backends.state import EngineInfo, ServerSettings

LOOPBACK = "127.0.0.1"
BUFFERS_VERBOSITY = 4
"""Prints how much each device got, and no prompt and no answer."""
LAYERS_VERBOSITY = 5
"""Prints which layer goes where too, and thereafter every prompt and every answer."""

PROMPT_CACHE_MIB = 1024
"""Prompts llama-server may keep on the head, where nothing is known of its memory. Its
own bound is 8 GiB; ``extra`` may set another (``--cache-ram``)."""


def worker_argv(
    engine: EngineInfo,
    *,
    port: int | str,
    devices: Sequence[str],
    threads: int | None = None,
    caches: bool = False,
) -> tuple[str, ...]:
    """An rpc-server for these devices, in their order, on a loopback port.

    If it ``caches``, it keeps large tensors on disk, in ``$LLAMA_CACHE/rpc``. Start it
    with SIGPIPE ignored: a stock one dies of a client that leaves early.
    """
    options = ("-H", LOOPBACK, "-p", str(port), "-d", ",".join(devices))
    more = () if threads is None else ("-t", str(threads))
    return (engine.worker_path, *options, *more, *(("-c",) if caches else ()))


def server_argv(
    engine: EngineInfo,
    flags: Collection[str],
    *,
    model: str,
    rpc_endpoints: Sequence[str],
    device_names: Sequence[str],
    n_gpu_layers: int,
    tensor_split: Sequence[int],
    ctx_size: int,
    server: ServerSettings,
    port: int | str,
    alias: str = "",
    prompt_cache_mib: int | None = None,
    extra: Sequence[str] = (),
    verbosity: int = BUFFERS_VERBOSITY,
    no_repack: bool | None = None,
    speculation: Sequence[str] = (),
    overrides: Sequence[str] = (),
) -> tuple[str, ...]:
    """A llama-server with exactly this placement.

    ``flags`` are the options it knows (``parse_flags``); what it does not know is left
    out. ``--rpc`` precedes ``--device``, which could not name its devices otherwise.
    ``ctx_size`` is shared by the slots. ``alias`` is what clients call the model.
    ``no_repack`` None: where this CPU has AMX, on which repacked Q8_0 weights crash a
    llama-server without RPC. ``speculation`` is from ``speculation.methods``.
    ``overrides`` name buffers of these devices.
    ``extra`` comes last and so has the last word.
    """
    threads = () if server.threads is None else ("-t", str(server.threads))
    return (
        engine.server_path,
        *_model(model, ctx_size, server.slots),
        *_settings(server),
        *threads,
        *_placement(rpc_endpoints, device_names, n_gpu_layers, tensor_split),
        *overrides,
        *speculation,
        *_switches(flags, cpu_has_amx() if no_repack is None else no_repack),
        *_prompt_cache(flags, prompt_cache_mib),
        *_verbosity(flags, verbosity),
        *(("--alias", alias) if alias else ()),
        *("--host", LOOPBACK, "--port", str(port)),
        *extra,
    )


def fit_argv(
    engine: EngineInfo,
    *,
    model: str,
    rpc_endpoint: str,
    tensor_split: Sequence[int],
    ctx_size: int,
    server: ServerSettings,
    extra: Sequence[str] = (),
) -> tuple[str, ...]:
    """A llama-fit-params that tells the memory of such a llama-server.

    The devices are those of one endpoint, in the order of their layers. Of ``extra``
    only what decides about memory is passed on: it does not know the others.
    ``--no-repack`` keeps the CPU's weights where they are counted.
    """
    names = [f"RPC{index}" for index in range(len(tensor_split))]
    endpoints = (rpc_endpoint,) if names else ()
    return (
        engine.fit_path,
        *_model(model, ctx_size, server.slots),
        *_settings(server),
        *_placement(endpoints, names, sum(tensor_split), tensor_split),
        *("--no-repack", *memory_options(extra)),
        *("--fit-print", "on"),
    )


_MEMORY_SWITCHES = frozenset(
    {
        *("-kvo", "--kv-offload", "-nkvo", "--no-kv-offload"),
        *("-kvu", "--kv-unified", "-no-kvu", "--no-kv-unified"),
        *("--swa-full", "-cmoe", "--cpu-moe"),
        *("--op-offload", "--no-op-offload"),
    }
)
_MEMORY_OPTIONS = frozenset(
    {
        *("-c", "--ctx-size", "-np", "--parallel"),
        *("-b", "--batch-size", "-ub", "--ubatch-size"),
        *("-fa", "--flash-attn", "-sm", "--split-mode"),
        *("-ctk", "--cache-type-k", "-ctv", "--cache-type-v"),
        *("-ot", "--override-tensor", "-ncmoe", "--n-cpu-moe"),
        *("-ngl", "--gpu-layers", "--n-gpu-layers", "-ts", "--tensor-split"),
    }
)
_MEMORY_ARGUMENTS = _MEMORY_SWITCHES | _MEMORY_OPTIONS


def memory_options(extra: Sequence[str]) -> tuple[str, ...]:
    """The arguments of llama-server that decide about memory, as they stand.

    ``-fa`` was a switch before it took a value; the value belongs to it if it is one.
    """
    kept: list[str] = []
    takes_value = False
    for argument in extra:
        is_option = argument.startswith("-") and not argument[1:2].isdigit()
        if argument in _MEMORY_ARGUMENTS or (takes_value and not is_option):
            kept.append(argument)
        takes_value = argument in _MEMORY_OPTIONS
    return tuple(kept)


def _model(model: str, ctx_size: int, slots: int) -> tuple[str, ...]:
    return ("-m", model, "-c", str(ctx_size), "-np", str(slots))


def _settings(server: ServerSettings) -> tuple[str, ...]:
    plain = ServerSettings()
    pairs = (
        ("-ctk", server.cache_type_k, plain.cache_type_k),
        ("-ctv", server.cache_type_v, plain.cache_type_v),
        ("-fa", server.flash_attention.value, plain.flash_attention.value),
    )
    return tuple(
        part for name, value, usual in pairs if value != usual for part in (name, value)
    )


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
    metrics = ("--metrics",) if "--metrics" in flags else ()
    return (*fit, *slots, *metrics, *no_page, *repack)


def _prompt_cache(flags: Collection[str], mib: int | None) -> tuple[str, ...]:
    mib = PROMPT_CACHE_MIB if mib is None else mib
    return ("--cache-ram", str(mib)) if "--cache-ram" in flags else ()


def _verbosity(flags: Collection[str], level: int) -> tuple[str, ...]:
    if level < LAYERS_VERBOSITY:
        # Earlier builds print the buffers anyway, and prompts at their level 4.
        return ("-lv", str(level)) if TRACES in flags else ()
    if "-lv" in flags:
        return ("-lv", str(level))
    # Before 2025 all debug lines were one switch.
    return ("-v",) if "-v" in flags else ()


def cpu_has_amx(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """True if the CPU lists AMX tiles; False where there is no such file."""
    try:
        with cpuinfo.open(errors="replace") as file:
            for line in file:
                if line.startswith("flags"):
                    return "amx_tile" in line.split()
    except OSError:
        return False
    return False
