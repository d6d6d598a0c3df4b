"""Whether a controller speaks our API; one of an earlier release is replaced."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

import msgspec

from backends.client import http
from backends.client.start import ensure_running, wait_gone
from backends.controller.lock import lock_holder
from backends.errors import ControllerError
from backends.state import API_VERSION, NOT_JSON, ControllerInfo

if TYPE_CHECKING:
    from pathlib import Path

    from backends.client.start import Found
    from backends.paths import Paths


async def agreed(
    paths: Paths, found: Found, silence_s: float, *, replaces: bool
) -> Found:
    """A controller that speaks our API: the one found, or one that takes its place.

    One of an earlier release is told to leave, which leaves running what it runs;
    its successor adopts that. Without ``replaces`` it stays.

    Raises:
        ControllerError: it is of a later release, or does not leave.
        OSError: the connection broke, or it was silent.
    """
    info = await _ask(found.socket, silence_s)
    if info is not None and info.api == API_VERSION:
        return found
    if info is not None and info.api > API_VERSION:
        raise ControllerError(
            f"The controller that runs is of a newer dllm-tui ({info.version}, "
            f"pid {info.pid})",
            "Use that one, or end it with its own dllm-tui stop --all.",
        )
    if not replaces:
        raise ControllerError(
            "The controller that runs is of an older dllm-tui, and where you only "
            "watch it is not replaced",
            "Watch it with its own dllm-tui, or leave out --readonly.",
        )
    await _dismiss(paths, info)
    return await ensure_running(paths)


async def _ask(socket: Path, silence_s: float) -> ControllerInfo | None:
    """What a controller says of itself; None where it does not know the question."""
    async with http.request(
        socket, "GET", "/v1/version", silence_s=silence_s
    ) as response:
        content = await response.read()
    if response.status != 200:
        return None
    try:
        return msgspec.json.decode(content, type=ControllerInfo)
    except NOT_JSON:
        return None


async def _dismiss(paths: Paths, info: ControllerInfo | None) -> None:
    """Tell an earlier controller to leave, and wait until it has.

    Raises:
        ControllerError: nobody knows its process, or it stays.
    """
    known = info or lock_holder(paths.lock) or lock_holder(paths.earlier_lock)
    if known is None:
        raise ControllerError(
            "The controller that runs is of an older dllm-tui, and cannot be replaced",
            "End it with its own dllm-tui stop.",
        )
    with contextlib.suppress(ProcessLookupError):
        os.kill(known.pid, signal.SIGTERM)
    await wait_gone(paths, known.pid)
