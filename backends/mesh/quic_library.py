"""The QUIC library iroh, which is an extra: found, repaired, and tried before use."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import logging
import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from backends.errors import MachineError

log = logging.getLogger(__name__)

INSTALL = "Install it: pip install 'dllm-tui[mesh]'."
SUPPORTED = ((1, 2), (2, 0))
"""From the first version to before the second."""
SLOW_BEFORE = (1, 3)
"""Older ones copy what they send byte by byte: 7 MB/s in place of 150."""
TRIAL_S = 10.0
TRIAL_BYTES = 100_000
CLOSE_S = 2.0
_ALPN = b"dllm/trial/1"
_works = ""
"""The version that was tried here, and works."""


def iroh_version() -> str:
    """The installed version; empty where there is none."""
    try:
        return version("iroh")
    except PackageNotFoundError:
        return ""


async def iroh_library() -> Any:
    """The library; two endpoints on loopback prove at the first use that it works."""
    global _works
    found = iroh_version()
    if not found:
        raise MachineError("QUIC needs iroh, which is not installed", INSTALL)
    if not SUPPORTED[0] <= _numbers(found) < SUPPORTED[1]:
        raise MachineError(f"iroh {found} is not one that is understood here", INSTALL)
    try:
        library = await asyncio.to_thread(importlib.import_module, "iroh")
        if _works != found:
            if _numbers(found) < SLOW_BEFORE:
                _repair(library)
            async with asyncio.timeout(TRIAL_S):
                await _try(library)
            _works = found
    except Exception as error:
        # Whatever it is: its own errors are of its own kinds, and all else goes on.
        log.info("iroh %s does not work: %r", found, error)
        raise MachineError(
            f"iroh {found} does not work here",
            "All but QUIC works without it. Install another of its versions.",
        ) from error
    return library


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


def _repair(library: Any) -> None:
    """Have it copy bytes at once (uniffi-rs 0.32 does so itself)."""

    def write(self: Any, value: Any) -> None:
        data = bytes(value)
        with self._reserve(len(data)):
            at = ctypes.addressof(self.rbuf.data.contents) + self.rbuf.len
            ctypes.memmove(at, data, len(data))

    library.iroh_ffi._UniffiRustBufferBuilder.write = write


async def _try(library: Any) -> None:
    """Send bytes there and back between two endpoints."""
    options = {
        "preset": library.preset_minimal(),
        "bind_addr": "127.0.0.1:0",
        "alpns": [_ALPN],
        "relay_mode": library.RelayMode.disabled(),
    }
    ends = [
        await library.Endpoint.bind(library.EndpointOptions(**options)) for _ in "12"
    ]
    try:
        await asyncio.gather(_echo(ends[0]), _ask(library, ends[1], ends[0].addr()))
    finally:
        for end in ends:
            await close_endpoint(end)


async def _echo(endpoint: Any) -> None:
    connection = await (await (await endpoint.accept_next()).accept()).connect()
    stream = await connection.accept_bi()
    await stream.send().write_all(await stream.recv().read_to_end(TRIAL_BYTES))
    await stream.send().finish()
    await connection.closed()


async def _ask(library: Any, endpoint: Any, address: Any) -> None:
    connection = await endpoint.connect(address, _ALPN)
    stream = await connection.open_bi()
    sent = bytes(range(250)) * (TRIAL_BYTES // 250)
    await stream.send().write_all(sent)
    await stream.send().finish()
    told = await stream.recv().read_to_end(TRIAL_BYTES)
    connection.close(0, b"")
    if told != sent:
        raise MachineError("bytes came back changed")


async def bound_endpoint(
    library: Any, binds: Sequence[tuple[str, ...]], **options: Any
) -> Any:
    """An endpoint at the first of the addresses that can be had; it contacts nobody."""
    for addresses in binds:
        preset = _bound_to(library, *addresses)
        with contextlib.suppress(library.IrohError):
            made = library.EndpointOptions(preset=preset, **options)
            return await library.Endpoint.bind(made)
    raise MachineError(
        f"QUIC gets no port of UDP at {binds[0][0]}",
        "Something else may listen there.",
    )


def _bound_to(library: Any, *addresses: str) -> Any:
    class Preset(library.Preset):  # type: ignore[misc]
        """Made for one endpoint."""

        def apply(self, builder: Any) -> None:
            builder.apply_minimal()
            for address in addresses:
                builder.bind_addr(address)

    return Preset()


async def close_endpoint(endpoint: Any) -> None:
    """Close it; a peer that answers no more is waited for no longer."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_S):
            await endpoint.close()
