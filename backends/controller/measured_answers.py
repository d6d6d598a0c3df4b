"""Answers that a race and a sweep measure, and whether other work disturbed them."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from backends.bench.results import DISTURBED_CORES, BusyTime
from backends.controller.chat_api import QuestionQueue
from backends.controller.cluster import Cluster
from backends.errors import ControllerError, ProcessFailed
from backends.machine_names import LOCAL
from backends.state import ChatDelta, ChatRequest, ChatTimings


class MeasuredAnswers:
    """Asks a cluster one question after the other, and keeps what the last one showed.

    Answers are greedy, with one seed, so that their words can be compared.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._queue = QuestionQueue()
        self._timings: ChatTimings | None = None
        self.disturbed = False
        """True if other requests or programs were at work during the last answer."""

    async def ask(self, prompt: str, tokens: int) -> AsyncGenerator[ChatDelta, None]:
        """Yield an answer of so many tokens at most, as it comes.

        Raises:
            ProcessFailed: the cluster broke meanwhile.
            ControllerError: nothing serves, or the answer was cut off.
        """
        request = ChatRequest.greedy(prompt, tokens, seed=1)
        store = self._cluster.store
        ours = [p.pid for p in store.snapshot.processes if p.pid and p.peer == LOCAL]
        busy, began = BusyTime(ours), time.monotonic()
        self.disturbed, last = False, ChatDelta()
        async with aclosing(self._queue.answer(self._cluster, request)) as deltas:
            async for delta in deltas:
                if delta.failure is not None:
                    raise ProcessFailed(delta.failure)
                self.disturbed |= store.snapshot.speed.requests_active > 1
                last = delta
                yield delta
        if not last.done:
            raise ControllerError("The answer was cut off", "See dllm-tui status.")
        self.disturbed |= busy.other_cores(time.monotonic() - began) > DISTURBED_CORES
        self._timings = last.timings

    def timings(self, hint: str) -> ChatTimings:
        """Return llama-server's own timings of the last answer.

        Raises:
            ControllerError: it was too short to have a speed; ``hint`` says what to do.
        """
        if self._timings is None or not self._timings.tok_per_s:
            raise ControllerError("The answer was too short to measure", hint)
        return self._timings
