"""Asking an engine what it is: version, RPC protocol, devices, flags; kept on disk.

The answers change only with the binaries, so they are kept under the cache, keyed by
path, size and modification time: the second question costs milliseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from backends.engine.install import read_manifest
from backends.errors import EngineError
from backends.state import Device, DeviceKind, EngineInfo, Value

if TYPE_CHECKING:
    from backends.engine.find import EngineLocation
    from backends.paths import Paths

FORMAT = 1
"""Changes when a kept answer would be read differently."""
ANSWER_S = 60.0
"""Longest wait for one answer; a first CUDA or Metal start compiles kernels."""
BANNER_S = 60.0
_POLL_S = 0.02
_PORT_TRIES = 3
_OUTPUT_BYTES_MAX = 1 << 20
_VERSION = re.compile(r"^version: (.+)$", re.M)
_DEVICE = re.compile(
    r"^\s+(?P<name>[^\s:]+): (?P<what>.*) "
    r"\((?P<total>\d+) MiB, (?P<free>\d+) MiB free\)\s*$",
    re.M,
)
_FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")
_BANNER = re.compile(r"Starting RPC server v(\d+\.\d+\.\d+)")
_KINDS = {
    "CUDA": DeviceKind.CUDA,
    "MTL": DeviceKind.METAL,
    "Metal": DeviceKind.METAL,
    "Vulkan": DeviceKind.VULKAN,
    "ROCm": DeviceKind.HIP,
    "HIP": DeviceKind.HIP,
    "CPU": DeviceKind.CPU,
}


class EngineFacts(Value, frozen=True, kw_only=True):
    """Everything an engine tells of itself."""

    info: EngineInfo
    flags: frozenset[str]
    """Options ``llama-server --help`` names, dashes included."""


async def describe(location: EngineLocation, paths: Paths) -> EngineInfo:
    """What this engine is.

    ``free_bytes`` of its devices is as of the first time it was asked; use
    ``list_devices`` for now.

    Raises:
        EngineError: it does not run, or does not answer in time.
    """
    return (await facts(location, paths)).info


async def flags_of(location: EngineLocation, paths: Paths) -> frozenset[str]:
    """The options its llama-server knows, such as ``-fit`` or ``--no-webui``.

    Raises:
        EngineError: it does not run, or does not answer in time.
    """
    return (await facts(location, paths)).flags


async def facts(location: EngineLocation, paths: Paths) -> EngineFacts:
    """Everything at once, from the cache where the binaries are unchanged.

    Raises:
        EngineError: it does not run, or does not answer in time.
    """
    file = _cache_file(location, paths)
    kept = await asyncio.to_thread(_read, file)
    if kept is None:
        kept = await _ask(location)
        await asyncio.to_thread(_keep, file, kept)
    info = msgspec.structs.replace(kept.info, source=location.source.value)
    return EngineFacts(info=info, flags=kept.flags)


async def list_devices(
    location: EngineLocation, rpc_endpoint: str = "", *, timeout_s: float = ANSWER_S
) -> tuple[Device, ...]:
    """The accelerators and their memory at this moment; llama.cpp never lists the CPU.

    With an endpoint (``host:port``) those of that rpc-server come as ``RPC0``…

    Raises:
        EngineError: it does not run, or does not answer in time.
    """
    rpc = ("--rpc", rpc_endpoint) if rpc_endpoint else ()
    options = (*rpc, "--list-devices")
    return parse_devices(
        await _output(location.server_path, *options, timeout_s=timeout_s)
    )


async def _ask(location: EngineLocation) -> EngineFacts:
    try:
        async with asyncio.TaskGroup() as group:
            version = group.create_task(_output(location.server_path, "--version"))
            help_text = group.create_task(_output(location.server_path, "--help"))
            devices = group.create_task(list_devices(location))
            protocol = group.create_task(rpc_protocol(location.worker_path))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    info = EngineInfo(
        directory=location.directory,
        source=location.source.value,
        server_path=location.server_path,
        worker_path=location.worker_path,
        version=parse_version(version.result()),
        rpc_protocol=protocol.result(),
        backends=_backends(location, devices.result()),
        devices=devices.result(),
    )
    return EngineFacts(info=info, flags=parse_flags(help_text.result()))


def _backends(location: EngineLocation, devices: tuple[Device, ...]) -> tuple[str, ...]:
    manifest = read_manifest(Path(location.directory))
    if manifest is not None:
        return manifest.backends
    kinds = dict.fromkeys(device.kind.value for device in devices)
    return ("cpu", *kinds, "rpc")


def parse_version(text: str) -> str:
    """``0.5.0-dev (build 336, commit 0c1e570)`` out of what ``--version`` prints."""
    match = _VERSION.search(text)
    return match[1].strip() if match else ""


def parse_flags(help_text: str) -> frozenset[str]:
    """Every option at the start of a line of the help, aliases included."""
    heads = (line for line in help_text.splitlines() if line.startswith("-"))
    return frozenset(flag for line in heads for flag in _FLAG.findall(_options(line)))


def _options(line: str) -> str:
    """The part before the description, which two spaces or more set apart."""
    # Short options are padded to a column themselves: "-c,    --ctx-size N      size".
    return re.split(r"(?<![,\s])\s{2,}", line, maxsplit=1)[0]


def parse_devices(text: str) -> tuple[Device, ...]:
    """The lines of ``--list-devices``; ids are ``local/<name>``."""
    return tuple(
        Device(
            id=f"local/{match['name']}",
            name=match["name"],
            kind=_kind(match["name"]),
            description=match["what"],
            total_bytes=int(match["total"]) << 20,
            free_bytes=int(match["free"]) << 20,
            memory_pool=f"local/{match['name']}",
        )
        for match in _DEVICE.finditer(text)
    )


def _kind(name: str) -> DeviceKind:
    return _KINDS.get(name.rstrip("0123456789"), DeviceKind.OTHER)


# --- running it ---------------------------------------------------------------


async def _output(program: str, *options: str, timeout_s: float = ANSWER_S) -> str:
    """Standard output and error of a program.

    Raises:
        EngineError: it cannot be started, fails, or does not end in time.
    """
    child = await _start(program, *options)
    shown = " ".join((program, *options))
    try:
        async with asyncio.timeout(timeout_s):
            text = await _read_all(child)
            code = await child.wait()
    except TimeoutError:
        raise EngineError(
            f"{shown} gave no answer within {timeout_s:.0f} s",
            "Check its drivers, or build another with: dllm-tui engine build.",
        ) from None
    finally:
        await _kill(child)
    if code != 0:
        raise EngineError(f"{shown} failed: {_why(code, text)}", _REBUILD)
    return text


_REBUILD = "Build one for this machine with: dllm-tui engine build."


async def _read_all(child: asyncio.subprocess.Process) -> str:
    assert child.stdout is not None
    output = b""
    while data := await child.stdout.read(65536):
        # Read on, so that it never blocks; keep what can be an answer.
        output = (output + data)[:_OUTPUT_BYTES_MAX]
    return output.decode("utf-8", "replace")


def _why(code: int, text: str) -> str:
    """One line of reason: the signal, or the last thing it said."""
    if code == -signal.SIGILL:
        return "it uses instructions this CPU does not have"
    if code < 0:
        return f"killed by {_signal_name(-code)}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else f"exit code {code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


async def _start(*argv: str) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "GGML_NO_BACKTRACE": "1"},
            start_new_session=True,
            # Python ignores SIGPIPE, and a stock rpc-server must: let it inherit.
            restore_signals=False,
        )
    except OSError as error:
        raise EngineError(
            f"Cannot run {argv[0]} ({error.strerror})",
            "Is it built for this machine? Build one with: dllm-tui engine build.",
        ) from error


async def _kill(child: asyncio.subprocess.Process) -> None:
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()


async def rpc_protocol(worker_path: str) -> str:
    """``major.minor.patch`` from the banner of a worker started for this.

    The banner stays in the worker's buffer until its first client, so one bare TCP
    connection is made and closed; a HELLO would be answered into a closed socket.
    Empty when it prints none (before RPC 1.0).

    Raises:
        EngineError: it cannot be started, or does not begin to listen.
    """
    for attempt in range(_PORT_TRIES):
        port = _free_port()
        child = await _start(worker_path, "-H", "127.0.0.1", "-p", str(port))
        try:
            async with asyncio.timeout(BANNER_S):
                text = await _banner(child, port)
        except TimeoutError:
            raise EngineError(
                f"{worker_path} did not begin to listen within {BANNER_S:.0f} s",
                _REBUILD,
            ) from None
        finally:
            await _kill(child)
        if match := _BANNER.search(text):
            return match[1]
        if child.returncode == -signal.SIGKILL:
            return ""
        # It ended by itself: the port was taken meanwhile, or it cannot run at all.
        if attempt == _PORT_TRIES - 1:
            why = _why(child.returncode or 0, text)
            raise EngineError(f"{worker_path} does not start: {why}", _REBUILD)
    raise AssertionError("unreachable")


async def _banner(child: asyncio.subprocess.Process, port: int) -> str:
    """Touch the port until the banner, or a first client, is seen, or it ends."""
    assert child.stdout is not None
    text = b""
    connected = False
    while True:
        connected = connected or await _touch(port)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_POLL_S):
                data = await child.stdout.read(4096)
                if not data:
                    await child.wait()
                    return text.decode("utf-8", "replace")
                text += data
        decoded = text.decode("utf-8", "replace")
        if _BANNER.search(decoded) or (connected and "client connection" in decoded):
            return decoded


async def _touch(port: int) -> bool:
    """Connect and close, sending nothing; whether somebody listened."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# --- keeping it ---------------------------------------------------------------


def _cache_file(location: EngineLocation, paths: Paths) -> Path:
    parts = [str(FORMAT)]
    for path in (location.server_path, location.worker_path):
        try:
            status = Path(path).stat()
        except OSError as error:
            raise EngineError(
                f"Cannot read {path} ({error.strerror})",
                "Build an engine with: dllm-tui engine build.",
            ) from error
        parts += [path, str(status.st_size), str(status.st_mtime_ns)]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return paths.cache_dir / "engine-facts" / f"{digest[:24]}.json"


def _read(file: Path) -> EngineFacts | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=EngineFacts)
    except (OSError, msgspec.DecodeError):
        return None


def _keep(file: Path, value: EngineFacts) -> None:
    """Write atomically; a cache that cannot be written is only slower."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(msgspec.json.encode(value))
        temporary.replace(file)
