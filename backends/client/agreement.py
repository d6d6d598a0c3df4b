"""Agree on the API with a controller; one of an earlier release is replaced."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import msgspec

from backends.client import http
from backends.client.start import dismiss, ensure_running
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
    if info.api == API_VERSION:
        return found
    if info.api > API_VERSION:
        raise ControllerError(
            f"The controller that runs is of a newer dllm-tui ({info.version}, "
            f"pid {info.pid})",
            "Use that one, or end it with its own dllm-tui down --all.",
        )
    if not replaces:
        raise ControllerError(
            "The controller that runs is of an older dllm-tui, and where you only "
            "watch it is not replaced",
            "Watch it with its own dllm-tui, or leave out --readonly.",
        )
    await dismiss(paths, info.pid)
    return await ensure_running(paths)


async def _ask(socket: Path, silence_s: float) -> ControllerInfo:
    """Ask a controller for its facts."""
    async with http.request(
        socket, "GET", "/v1/version", silence_s=silence_s
    ) as response:
        content = await response.read()
    if response.status == 200:
        with contextlib.suppress(*NOT_JSON):
            return msgspec.json.decode(content, type=ControllerInfo)
    raise ControllerError(
        f"What listens on {socket} does not say of which release it is",
        "End it with its own dllm-tui down --all.",
    )
