"""Going on with a streamed ``/completion``, whose events tell ids by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from backends.engine.sse import event_of
from backends.gateway.course import Course, Told

if TYPE_CHECKING:
    from backends.gateway.course import Ask, Ending


class NativeCourse(Course):
    """Passes everything as it is; later events count from the beginning."""

    _sent_bytes = 0
    _sent_before = 0
    _has_new_line = False
    _told = 0
    """So many ids the client has: some before their text, which is held back."""

    def _look(self, event: bytes, data: bytes) -> bytes:
        told = msgspec.json.decode(data, type=Told)
        self.is_told = told.stop
        if not told.stop:
            self._prompt = replace(self._prompt, prompt_n=told.tokens_evaluated)
            self._count_told(told)
            self._passed(told.content)
        return event

    def _passed(self, text: str) -> None:
        self._sent_bytes += len(text.encode())
        self._has_new_line = self._has_new_line or "\n" in text

    async def next_body(self, ask: Ask) -> bytes:
        """The same, and remember what was sent and told until now."""
        self._told = max(self._told, len(self._tokens))
        self._sent_before = self._sent_bytes
        return await super().next_body(ask)

    def _piece(self, told: Told, data: bytes) -> bytes:
        is_known = self._base + told.tokens_predicted <= self._told
        if is_known and not told.content:
            return b""
        self._passed(told.content)
        said = msgspec.json.decode(data)
        if is_known:
            said["tokens"] = []
        said["tokens_predicted"] = self._base + told.tokens_predicted
        said["tokens_evaluated"] = self._before.prompt_tokens
        if "timings" in said:
            said["timings"] = self._whole(told.timings)
        return event_of(said)

    def _last(self, ending: Ending) -> bytes:
        said = ending.said
        said["tokens_predicted"] = ending.tokens
        said["tokens_evaluated"] = self._before.prompt_tokens
        said["prompt"] = self._own(said.get("prompt", ""))
        said["has_new_line"] = said.get("has_new_line") or self._has_new_line
        said["timings"] = self._whole(said.get("timings"), is_full=ending.is_full)
        if ending.is_full:
            said["stop_type"] = "limit"
        self._restore(said.get("generation_settings", {}))
        return event_of(said)

    def _own(self, prompt: str) -> str:
        """The client's part of a prompt that ends with the answer so far."""
        raw = prompt.encode()
        return raw[: len(raw) - self._sent_before].decode(errors="replace")

    def _restore(self, settings: dict[str, Any]) -> None:
        """Name the limit of the whole answer."""
        for name in ("n_predict", "max_tokens"):
            if name in settings:
                settings[name] = self._wish.limit
