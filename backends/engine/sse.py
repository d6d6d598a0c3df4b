"""llama-server's event stream, read as the pieces of an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from backends.state import NOT_JSON, ChatDelta, ChatTimings, Failure

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

EVENT_BYTES_MAX = 8 << 20
"""An event is one token; a longer line is not llama-server talking."""
DONE = b"[DONE]"


async def events(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The payload of each ``data:`` or ``error:`` line, however the bytes arrive.

    Raises:
        OSError: a line is longer than any token can be.
    """
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > EVENT_BYTES_MAX:
            raise OSError("an event of the stream has no end")
        for line in lines:
            name, colon, payload = line.rstrip(b"\r").partition(b":")
            if colon and name in (b"data", b"error"):
                yield payload.strip()


def failed(what: str, hint: str = "", timings: ChatTimings | None = None) -> ChatDelta:
    """The last piece of an answer that failed."""
    failure = Failure(what=what, hint=hint)
    return ChatDelta(done=True, finish_reason="error", timings=timings, failure=failure)


class AnswerReader:
    """Turns events into pieces, and remembers what the last piece must say."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start the clock: the request is about to be sent."""
        self._clock = clock
        self._started = clock()
        self._first_token_s: float | None = None
        self._timings: ChatTimings | None = None
        self._pieces = 0
        self._finish_reason = ""
        self.done = False
        """Whether the last piece has been given."""

    def take(self, event: bytes) -> Iterator[ChatDelta]:
        """The pieces one event amounts to, mostly one."""
        if event == DONE:
            yield self.end()
            return
        try:
            body = msgspec.json.decode(event)
        except NOT_JSON:
            return
        if not isinstance(body, dict):
            return
        if error := body.get("error"):
            yield self._failed(error)
        elif delta := self._delta(body):
            yield delta

    def end(self) -> ChatDelta:
        """The last piece: the finish reason and figures, or that it was cut off."""
        if not self._finish_reason:
            return self.cut()
        self.done = True
        return ChatDelta(
            done=True, finish_reason=self._finish_reason, timings=self._timings
        )

    def cut(self) -> ChatDelta:
        """The last piece of an answer whose connection broke."""
        self.done = True
        return failed(
            "llama-server ended in the middle of the answer",
            "The cluster's state and its logs say why.",
            self._timings,
        )

    def _failed(self, error: Any) -> ChatDelta:
        self.done = True
        message = error.get("message") if isinstance(error, dict) else error
        return failed(
            f"llama-server gave up: {str(message)[:300].rstrip('.')}",
            timings=self._timings,
        )

    def _delta(self, body: Mapping[str, Any]) -> ChatDelta | None:
        choice = _first(body.get("choices"))
        delta = choice.get("delta")
        delta = delta if isinstance(delta, dict) else {}
        text = _text(delta.get("content"))
        reasoning = _text(delta.get("reasoning_content"))
        self._finish_reason = _text(choice.get("finish_reason")) or self._finish_reason
        if text or reasoning:
            self._count()
        self._timings = self._read_timings(body.get("timings")) or self._timings
        progress = _progress(body.get("prompt_progress"))
        if not (text or reasoning or progress is not None):
            return None
        return ChatDelta(
            text=text,
            reasoning=reasoning,
            prompt_progress=progress,
            timings=self._timings,
        )

    def _count(self) -> None:
        """Count a piece as a token, for servers that tell nothing while they answer."""
        now = self._clock() - self._started
        self._pieces += 1
        if self._first_token_s is None:
            self._first_token_s = now
        since_first_s = now - self._first_token_s
        rate = (self._pieces - 1) / since_first_s if since_first_s > 0 else 0.0
        self._timings = ChatTimings(
            tokens=self._pieces, tok_per_s=rate, first_token_s=self._first_token_s
        )

    def _read_timings(self, found: Any) -> ChatTimings | None:
        if not isinstance(found, dict):
            return None
        tokens = int(_number(found, "predicted_n"))
        # The first token takes no time of its own: some servers then say a million.
        rate = _number(found, "predicted_per_second") if tokens > 1 else 0.0
        return ChatTimings(
            prompt_tokens=int(_number(found, "prompt_n") + _number(found, "cache_n")),
            prompt_ms=_number(found, "prompt_ms"),
            tokens=tokens,
            tok_per_s=rate,
            first_token_s=self._first_token_s,
        )


def _first(choices: Any) -> Mapping[str, Any]:
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return choices[0]
    return {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(found: Mapping[str, Any], name: str) -> float:
    value = found.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def _progress(found: Any) -> float | None:
    """0…1 of the prompt, what the cache held counted as read."""
    if not isinstance(found, dict):
        return None
    total = _number(found, "total")
    done = max(_number(found, "processed"), _number(found, "cache"))
    return min(done / total, 1.0) if total > 0 else None
