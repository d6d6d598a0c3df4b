"""One answer on its way from the cluster to the chat pane, at a pace one can draw."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, cast

import msgspec

from backends.errors import DllmError
from backends.state import ChatDelta

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from backends.state import ChatRequest
    from tui.cluster import Cluster

DRAW_INTERVAL_S = 0.05


async def talk(
    cluster: Cluster, request: ChatRequest, show: Callable[[ChatDelta], None]
) -> None:
    """Stream an answer into ``show``: at most 20 deltas a second, the last one done."""
    pace = _Pace(show)
    try:
        # Closing the stream is what stops the generation.
        stream = cast("AsyncGenerator[ChatDelta, None]", cluster.chat(request))
        async with aclosing(stream) as deltas:
            async for delta in deltas:
                pace.push(delta)
        pace.end(ChatDelta(done=True))
    except DllmError as error:
        pace.end(ChatDelta(done=True, failure=error.failure()))
    except asyncio.CancelledError:
        pace.end(ChatDelta(done=True, finish_reason="stopped"))
        raise


class _Pace:
    """Joins deltas that come faster than they are drawn."""

    def __init__(self, show: Callable[[ChatDelta], None]) -> None:
        self._show = show
        self._waiting: ChatDelta | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._done = False

    def push(self, delta: ChatDelta) -> None:
        self._waiting = delta if self._waiting is None else join(self._waiting, delta)
        if delta.done:
            self._done = True
            self._flush()
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(DRAW_INTERVAL_S, self._flush)

    def end(self, delta: ChatDelta) -> None:
        """Make sure that a last delta with ``done`` was shown."""
        if not self._done:
            self.push(delta)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting is not None:
            delta, self._waiting = self._waiting, None
            self._show(delta)


def join(first: ChatDelta, second: ChatDelta) -> ChatDelta:
    """Two deltas in a row as one."""
    return msgspec.structs.replace(
        second,
        text=first.text + second.text,
        reasoning=first.reasoning + second.reasoning,
        prompt_progress=second.prompt_progress or first.prompt_progress,
        timings=second.timings or first.timings,
    )
