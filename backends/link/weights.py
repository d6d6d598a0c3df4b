"""Asking a relay which weights its worker got."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import msgspec

from backends.link.wire import LINE_BYTES_MAX
from backends.state.weights import WorkerWeights

if TYPE_CHECKING:
    from pathlib import Path

ANSWER_S = 5.0
TRIES = 2
# It stands among the first lines, before the counters.
LINES_MAX = 4


class _Line(msgspec.Struct, frozen=True):
    """A line of a relay, as far as it is looked at here."""

    type: str


async def worker_weights(stats: Path) -> WorkerWeights | None:
    """What the worker holds at this moment; None where the relay does not say.

    ``stats`` is the relay's socket: every new reader is told first of all.
    """
    for _ in range(TRIES):
        # A way to another machine may break and be there again.
        with contextlib.suppress(OSError, ValueError):
            async with asyncio.timeout(ANSWER_S):
                return await _told(stats)
    return None


async def _told(stats: Path) -> WorkerWeights | None:
    reader, writer = await asyncio.open_unix_connection(
        str(stats), limit=LINE_BYTES_MAX
    )
    try:
        for _ in range(LINES_MAX):
            raw = await reader.readline()
            if msgspec.json.decode(raw, type=_Line).type == "placement":
                return msgspec.json.decode(raw, type=WorkerWeights)
        return None
    finally:
        writer.close()
