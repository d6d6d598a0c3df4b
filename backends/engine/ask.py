"""Asking an engine what it is: version, RPC protocol, devices, flags; kept on disk.

The agent of the machine it is on runs its programs. The answers change only with these.
So they are kept under the cache, keyed by machine, path, size and modification time.
The second question costs milliseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

import msgspec

from backends.errors import EngineError, MachineError, PeerUnreachable
from backends.machine_names import LOCAL
from backends.machine_queries import MachineQueries, Outcome
from backends.paths import Paths
from backends.printable import last_line
from backends.state import NOT_JSON, Device, DeviceKind, EngineInfo, Value
from backends.units import format_signal
from backends.writing import write_private

FORMAT = 5
"""Changes when a kept answer would be read differently."""
NO_GPU = {
    "CUDA_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "",
    "ROCR_VISIBLE_DEVICES": "",
    "GGML_VK_VISIBLE_DEVICES": "",
}
"""In the environment of an engine that is asked something no GPU is needed for."""
TRACES = "-lv 4: trace"
"""Among an engine's options where log level 4 is tracing; debugging is 5 then."""
SPEC_TYPE = "--spec-type"
ANSWER_S = 60.0
"""Longest wait for one answer; a first CUDA or Metal start compiles kernels."""
BANNER_S = 60.0
_BANNER_TRIES = (("-d", "CPU"), ("-d", "CPU"), ())
_VERSION = re.compile(r"^version: (.+)$", re.M)
_DEVICE = re.compile(
    r"^\s+(?P<name>[^\s:]+): (?P<what>.*) "
    r"\((?P<total>\d+) MiB, (?P<free>\d+) MiB free\)\s*$",
    re.M,
)
_TRACES = re.compile(r"^\s+- 4: trace\b", re.M)
_SPEC_TYPES = re.compile(rf"^{SPEC_TYPE} ([\w,-]+)", re.M)
_FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")
_BANNER = re.compile(r"Starting RPC server v(\d+\.\d+\.\d+)")
_BEGUN = ("Starting RPC server v", "client connection")
"""A worker's lines once it has a client; before RPC 1.0 only the second."""
_KINDS = {
    "CUDA": DeviceKind.CUDA,
    "MTL": DeviceKind.METAL,
    "Metal": DeviceKind.METAL,
    "Vulkan": DeviceKind.VULKAN,
    "ROCm": DeviceKind.HIP,
    "HIP": DeviceKind.HIP,
    "CPU": DeviceKind.CPU,
}
# A GPU that has no memory of its own, by what drivers call it.
_SHARES_MEMORY = re.compile(
    r"Apple|Orin|Xavier|Tegra|Thor|GB10\b|Radeon(\(TM\))? (Graphics|\d{3}M|\d{4}S)|"
    r"(UHD|HD|Iris|Arc\(TM\)) .*Graphics|Mali|Adreno|V3D|llvmpipe",
    re.I,
)


class Engine(Value, frozen=True, kw_only=True):
    info: EngineInfo
    flags: frozenset[str]
    """Options ``llama-server --help`` names, dashes included; see ``parse_flags``."""


async def read_engine(
    host: MachineQueries, found: EngineInfo, paths: Paths, *, light: bool = False
) -> Engine:
    """Everything at once, from the cache where the binaries are unchanged.

    ``free_bytes`` of its devices is as of the first time it was asked; use
    ``list_devices`` for now.

    If ``light``, nothing is asked that needs a GPU, whose user would wait.
    """
    file = await _cache_file(host, found, paths)
    kept = await asyncio.to_thread(_read, file)
    if kept is None:
        kept = await _ask(host, found, light)
        if not light:
            # A cache that cannot be written is only slower.
            with contextlib.suppress(OSError):
                await asyncio.to_thread(write_private, file, msgspec.json.encode(kept))
    # Programs may have been added since; what it told is as it was.
    info = msgspec.structs.replace(
        kept.info, source=found.source, fit_path=found.fit_path
    )
    return Engine(info=info, flags=kept.flags)


async def list_devices(
    host: MachineQueries,
    engine: EngineInfo,
    rpc_endpoint: str = "",
    *,
    timeout_s: float | None = None,
) -> tuple[Device, ...]:
    """The accelerators and their memory at this moment; llama.cpp never lists the CPU.

    With an endpoint (``host:port``) those of that rpc-server come as ``RPC0``…
    """
    rpc = ("--rpc", rpc_endpoint) if rpc_endpoint else ()
    argv = (engine.server_path, *rpc, "--list-devices")
    text = await _output(host, *argv, timeout_s=timeout_s, env={})
    return parse_devices(text, host.name)


async def _ask(host: MachineQueries, found: EngineInfo, light: bool) -> Engine:
    server = found.server_path
    version = asyncio.create_task(_output(host, server, "--version"))
    help_text = asyncio.create_task(_output(host, server, "--help"))
    devices = asyncio.create_task(_devices(host, found, light))
    protocol = asyncio.create_task(_protocol(host, found, light))
    # All to their end, though one failed: what was begun there goes on without us.
    await asyncio.gather(version, help_text, devices, protocol, return_exceptions=True)
    kinds = dict.fromkeys(device.kind.value for device in devices.result())
    info = msgspec.structs.replace(
        found,
        version=parse_version(version.result()),
        rpc_protocol=protocol.result(),
        backends=found.backends or ("cpu", *kinds, "rpc"),
        devices=devices.result(),
    )
    return Engine(info=info, flags=parse_flags(help_text.result()))


async def _devices(
    host: MachineQueries, found: EngineInfo, light: bool
) -> tuple[Device, ...]:
    return () if light else await list_devices(host, found)


async def _protocol(host: MachineQueries, found: EngineInfo, light: bool) -> str:
    if light and found.rpc_protocol:
        return found.rpc_protocol
    return await rpc_protocol(host, found.worker_path)


def parse_version(text: str) -> str:
    """``0.5.0-dev (build 336, commit 0c1e570)`` out of what ``--version`` prints."""
    match = _VERSION.search(text)
    return match[1].strip() if match else ""


def parse_flags(help_text: str) -> frozenset[str]:
    """Every option at the start of a line of the help, aliases included.

    ``TRACES`` stands for itself: one of the levels of ``-lv``, not an option. So does
    each speculation method, with the option before it: ``--spec-type draft-simple``.
    """
    heads = [line for line in help_text.splitlines() if line.startswith("-")]
    found = {flag for line in heads for flag in _FLAG.findall(_options(line))}
    ways = _SPEC_TYPES.search(help_text)
    found.update(spec_type(way) for way in (ways[1].split(",") if ways else ()))
    return frozenset(found | {TRACES} if _TRACES.search(help_text) else found)


def spec_type(way: str) -> str:
    return f"{SPEC_TYPE} {way}"


def _options(line: str) -> str:
    # Short options are padded to a column themselves: "-c,    --ctx-size N      size".
    return re.split(r"(?<![,\s])\s{2,}", line, maxsplit=1)[0]


def parse_devices(text: str, machine: str = LOCAL) -> tuple[Device, ...]:
    """The lines of ``--list-devices`` on a machine; ids are ``machine/name``.

    An accelerator library such as BLAS is listed too, without memory: it is none.
    """
    return tuple(
        Device(
            id=f"{machine}/{match['name']}",
            name=match["name"],
            kind=_kind(match["name"]),
            description=match["what"],
            total_bytes=int(match["total"]) << 20,
            free_bytes=int(match["free"]) << 20,
            memory_pool=_pool(machine, match["name"], match["what"]),
        )
        for match in _DEVICE.finditer(text)
        if int(match["total"])
    )


def _pool(machine: str, name: str, description: str) -> str:
    # Some GPUs have no memory of their own.
    if _kind(name) is DeviceKind.METAL:
        shares = description.startswith("Apple")
    else:
        shares = bool(_SHARES_MEMORY.search(description))
    return machine if shares else f"{machine}/{name}"


def _kind(name: str) -> DeviceKind:
    return _KINDS.get(name.rstrip("0123456789"), DeviceKind.OTHER)


# --- running it ---------------------------------------------------------------


async def _output(
    host: MachineQueries,
    *argv: str,
    timeout_s: float | None = None,
    env: Mapping[str, str] = NO_GPU,
) -> str:
    timeout_s = ANSWER_S if timeout_s is None else timeout_s
    done = await _run(host, argv, timeout_s, env)
    shown = " ".join(argv)
    if done.timed_out:
        raise EngineError(
            f"{shown} gave no answer within {timeout_s:g} s",
            f"Check its drivers. {_remedy(host)}",
        )
    if done.code != 0:
        raise EngineError(f"{shown} failed: {_why(done)}", _remedy(host))
    return done.text


async def _run(
    host: MachineQueries,
    argv: Sequence[str],
    timeout_s: float,
    env: Mapping[str, str],
    touch: int = 0,
) -> Outcome:
    until = _BEGUN if touch else ()
    try:
        return await host.run(
            argv, env=env, timeout_s=timeout_s, touch=touch, until=until
        )
    except PeerUnreachable:
        raise
    except MachineError as error:
        raise EngineError(
            f"Cannot run {argv[0]}: {error.what}",
            f"Is it built for this machine? {_remedy(host)}",
        ) from error


def _remedy(host: MachineQueries) -> str:
    if host.name == LOCAL:
        return "Build one for this machine with: dllm-tui engine build."
    return f"Install the head's: dllm-tui peers setup {host.name}."


def _why(done: Outcome) -> str:
    if done.signal == signal.SIGILL:
        return "it uses instructions this CPU does not have"
    if done.signal is not None:
        return f"killed by {format_signal(done.signal)}"
    return last_line(done.text)[:200] or f"exit code {done.code}"


async def rpc_protocol(host: MachineQueries, worker_path: str) -> str:
    """``major.minor.patch`` from the banner of a worker started for this.

    The banner stays in the worker's buffer until its first client, so one bare TCP
    connection is made and closed; a HELLO would be answered into a closed socket.
    Empty when it prints none (before RPC 1.0).
    """
    for device in _BANNER_TRIES:
        port = await host.free_port()
        argv = (worker_path, "-H", "127.0.0.1", "-p", str(port), *device)
        done = await _run(host, argv, BANNER_S, NO_GPU, touch=port)
        if match := _BANNER.search(done.text):
            return match[1]
        if done.timed_out:
            raise EngineError(
                f"{worker_path} did not begin to listen within {BANNER_S:g} s",
                _remedy(host),
            )
        if done.signal == signal.SIGKILL:
            return ""
        # It ended by itself: the port was taken meanwhile, it is too old for the
        # option, or it cannot run at all.
    raise EngineError(f"{worker_path} does not start: {_why(done)}", _remedy(host))


# --- keeping it ---------------------------------------------------------------


async def _cache_file(host: MachineQueries, found: EngineInfo, paths: Paths) -> Path:
    programs = (found.server_path, found.worker_path)
    folders = dict.fromkeys(str(PurePosixPath(path).parent) for path in programs)
    files = await host.find(tuple(folders), suffix="server")
    there = {file.path: file for file in files}
    parts = [str(FORMAT), host.name]
    for path in programs:
        if path not in there:
            raise EngineError(f"There is no {path} on {host.name}", _remedy(host))
        file = there[path]
        parts += [path, str(file.size_bytes), str(file.mtime_ns)]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return paths.cache_dir / "engine-facts" / f"{digest[:24]}.json"


def _read(file: Path) -> Engine | None:
    with contextlib.suppress(OSError, *NOT_JSON):
        return msgspec.json.decode(file.read_bytes(), type=Engine)
    return None
