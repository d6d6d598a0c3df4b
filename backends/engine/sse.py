"""Server-sent events of llama-server, and the pieces of an answer in them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import msgspec

from backends.state import NOT_JSON, ChatDelta, ChatTimings, Failure

DONE = b"[DONE]"


HELD_BYTES_MAX = 64 << 20
"""An event that is not over after so much ends its stream with an error. With every
word's probability for each token one takes tens of megabytes, and is whole."""
DONE_EVENT = b"data: [DONE]\n\n"
ENDLESS = "llama-server sent an event without end"
_END = b"\n\n"
_DATA = b"data: "


class EndlessEvent(OSError):
    """An event of a stream is longer than any can be."""


class LineFeeds:
    """Gives each line the one end that llama-server uses: a stream may have three."""

    def __init__(self) -> None:
        self._is_split = False
        """True if the last line ended in what may be half of its end."""

    def take(self, chunk: bytes) -> bytes:
        if self._is_split:
            chunk = chunk.removeprefix(b"\n")
        self._is_split = chunk.endswith(b"\r")
        if b"\r" not in chunk:
            return chunk
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


class Splitter:
    """Gives whole events alone: half of one could not be taken back."""

    def __init__(self) -> None:
        self._lines = LineFeeds()
        self._rest = bytearray()

    def take(self, chunk: bytes) -> list[bytes]:
        """The events that are whole by now, each with the blank line after it."""
        # The part already searched is not searched again, but for half an end.
        looked = max(len(self._rest) - 1, 0)
        self._rest += self._lines.take(chunk)
        end = self._rest.rfind(_END, looked)
        if end >= 0:
            whole = bytes(self._rest[:end]).split(_END)
            del self._rest[: end + len(_END)]
            return [event + _END for event in whole]
        if len(self._rest) > HELD_BYTES_MAX:
            raise EndlessEvent(ENDLESS)
        return []


def payload(event: bytes) -> bytes:
    data = event[len(_DATA) :] if event.startswith(_DATA) else b""
    return data if data.startswith(b"{") else b""


def event_of(value: Any) -> bytes:
    return _DATA + msgspec.json.encode(value) + _END


async def events(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The payload of each ``data:`` or ``error:`` line, however the bytes arrive."""
    splitter = Splitter()
    async for chunk in chunks:
        for event in splitter.take(chunk):
            for line in event.splitlines():
                name, colon, data = line.partition(b":")
                if colon and name in (b"data", b"error"):
                    yield data.strip()


# --- answers --------------------------------------------------------------------


CUT = "cut"
"""Why an answer ended whose connection broke: whoever passed it on is gone."""


def failed(
    what: str,
    hint: str = "",
    timings: ChatTimings | None = None,
    finish_reason: str = "error",
) -> ChatDelta:
    return ChatDelta(
        done=True,
        finish_reason=finish_reason,
        timings=timings,
        failure=Failure(what=what, hint=hint),
    )


class AnswerReader:
    """Turns events into pieces, and remembers what the last piece must say."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started = clock()
        self._first_token_s: float | None = None
        self._timings: ChatTimings | None = None
        self._pieces = 0
        self._finish_reason = ""
        self.done = False
        """True if the last piece has been given."""

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
        self.done = True
        return failed(
            "The connection broke in the middle of the answer",
            "The events say what ended; ask again.",
            self._timings,
            CUT,
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
        cached = int(_number(found, "cache_n"))
        return ChatTimings(
            prompt_tokens=int(_number(found, "prompt_n")) + cached,
            cached_tokens=cached,
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
    if not isinstance(found, dict):
        return None
    total = _number(found, "total")
    done = max(_number(found, "processed"), _number(found, "cache"))
    return min(done / total, 1.0) if total > 0 else None
