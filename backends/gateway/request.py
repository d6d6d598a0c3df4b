"""A client's request: its body, read and decoded once, and what it asks for."""

from __future__ import annotations

import asyncio
import contextlib
from codecs import BOM_UTF8
from collections.abc import AsyncIterator
from functools import cache, cached_property
from http import HTTPStatus
from typing import Any

import msgspec
from aiohttp import HttpVersion11, web
from multidict import CIMultiDict

from backends.gateway.api_shapes import Refusal, passed_on
from backends.state.base import NOT_JSON, Value

KEPT_BYTES_MAX = 16 << 20
"""A longer body goes through as it comes, undecoded, and cannot be sent twice."""
WHOLE_BYTES_MAX = 256 << 10
"""A body no longer than this is sent in one piece, with its headers."""
RESUMED_BYTES_MAX = 1 << 20
"""The answer to a longer request is not resumed: to read it again would take long."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

CONSTRAINED = ("grammar", "json_schema", "response_format", "tools", "functions")
"""Fields that hold an answer to a form, which begins anew with every request."""
SEVERAL = ("n", "n_cmpl", "best_of")
SHAPED = (
    *("n_probs", "logprobs", "top_logprobs", "post_sampling_probs"),
    *("response_fields", "backend_sampling", "t_max_predict_ms", "n_indent", "verbose"),
)
"""Fields that change the events, or count from the beginning of an answer."""
LIMITS = ("n_predict", "max_completion_tokens", "max_tokens")
"""The first that is given counts."""
COUNTING = (
    *("/tokenize", "/detokenize", "/apply-template"),
    *("/count_tokens", "/input_tokens"),
)
"""Paths with these ends count tokens; the model itself answers nothing there."""
RANDOM_SEEDS = (None, -1, 0xFFFFFFFF)
"""Seeds that leave the draw to chance."""


class _StreamOptions(Value, frozen=True):
    include_usage: bool = False


class RequestOptions:
    """The fields of a request for an answer, and what they mean for its stream.

    Each field is decoded when somebody asks for it. One of another kind than
    llama-server takes is for llama-server to refuse: such an answer is not resumed.
    """

    def __init__(self, fields: dict[str, msgspec.Raw]) -> None:
        self.fields = fields

    @cached_property
    def is_stream(self) -> bool:
        return bytes(self.fields.get("stream", b"")) == b"true"

    @cached_property
    def limit(self) -> int:
        """Most tokens of the answer; -1 without any."""
        limits = (self._read(name, int | None, default=None) for name in LIMITS)
        return next((limit for limit in limits if limit is not None), -1)

    @cached_property
    def has_timings(self) -> bool:
        return bool(self._read("timings_per_token", bool, default=False))

    @cached_property
    def has_usage(self) -> bool:
        options = self._read("stream_options", _StreamOptions | None, default=None)
        return options is not None and options.include_usage

    @cached_property
    def stops(self) -> list[str]:
        words = self._read("stop", str | list[str] | None, default=None)
        return [words] if isinstance(words, str) else words or []

    @cached_property
    def is_replayable(self) -> bool:
        """True if the same request, with its seed, gives the same stream again.

        Several answers at once come in an order of their own. A limit of time ends an
        answer anywhere.
        """
        try:
            several = (self._read(name, int | None, default=1) for name in SEVERAL)
            if not self.is_stream or any((count or 1) != 1 for count in several):
                return False
            if self._asks("t_max_predict_ms"):
                return False
            # Of another kind they are refused.
            _ = self.is_random
        except NOT_JSON:
            return False
        return "prompt" not in self.fields or self.has_one_prompt

    @cached_property
    def is_random(self) -> bool:
        temperature = self._read("temperature", float | None, default=None)
        seed = self._read("seed", int | None, default=None)
        is_greedy = temperature is not None and temperature <= 0
        return seed in RANDOM_SEEDS and not is_greedy

    @cached_property
    def is_plain(self) -> bool:
        """True if the answer is text alone, which another llama-server can continue.

        ``tools`` and the like that are empty ask for nothing.
        """
        try:
            if any(self._asks(name) for name in (*CONSTRAINED, *SHAPED)):
                return False
            # Of another kind they are refused.
            _ = self.limit, self.has_timings, self.has_usage, self.stops
        except NOT_JSON:
            return False
        return self.is_replayable

    @cached_property
    def has_one_prompt(self) -> bool:
        """True if the prompt is one text, or ids with texts among them."""
        try:
            parts = self._read("prompt", str | list[int | str], default=[])
        except NOT_JSON:
            return False
        return isinstance(parts, str) or any(isinstance(part, int) for part in parts)

    def with_fields(self, fields: dict[str, Any], *, drop: tuple[str, ...]) -> bytes:
        kept = {k: v for k, v in self.fields.items() if k not in drop}
        return msgspec.json.encode({**kept, **fields})

    def _read(self, name: str, kind: Any, *, default: Any) -> Any:
        raw = self.fields.get(name)
        return default if raw is None else _decoder(kind).decode(raw)

    def _asks(self, name: str) -> bool:
        value = self._read(name, Any, default=None)
        return bool(value) and value != {"type": "text"}


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    # A union takes longer to read than what is of it.
    return msgspec.json.Decoder(kind)


def read_options(raw: bytes) -> RequestOptions:
    """The options in a body.

    Raises:
        ValueError: it is no JSON.
    """
    raw = raw.removeprefix(BOM_UTF8)
    # What is left undecoded is not looked at for this.
    raw.decode()
    with contextlib.suppress(RecursionError):
        try:
            fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
            return RequestOptions(fields)
        except msgspec.ValidationError:
            msgspec.json.decode(raw)
    # JSON of another kind, or so deep that llama-server alone can tell.
    return RequestOptions({})


class BufferedRequest:
    """A request kept, so that it can be sent to one llama-server after another."""

    def __init__(self, request: web.BaseRequest) -> None:
        self.request = request
        self.method = request.method
        self.path = request.path
        self.headers: CIMultiDict[str] = passed_on(request.headers)
        self.options: RequestOptions | None = None
        """Its fields; None if the body was not decoded."""
        self._kept: list[bytes] = []
        self._kept_bytes = 0
        self._reading = asyncio.Lock()
        self.is_replayable = True
        """True if all that was read of the body is still there."""
        self._is_invited = False
        self._replacement: bytes | None = None

    @property
    def is_work(self) -> bool:
        """True if it asks for something to be done, and so may wait for it."""
        return self.method not in ("GET", "HEAD", "OPTIONS")

    @property
    def wants_answer(self) -> bool:
        """True unless it asks for tokens or their count alone."""
        return not self.path.endswith(COUNTING)

    @property
    def wants_stream(self) -> bool:
        return self.options is not None and self.options.is_stream

    @property
    def may_stream(self) -> bool:
        return self.is_work if self.options is None else self.options.is_stream

    async def decode(self) -> None:
        """Read the body, if it is short enough to be kept, and see that it is JSON.

        llama-server writes what it cannot read into its log, a prompt among it.

        Raises:
            Refusal: it is no JSON.
        """
        length, kind = self.request.content_length, self.request.content_type
        if self.method != "POST" or not length or length > KEPT_BYTES_MAX:
            return
        if kind.startswith("multipart/") or "Content-Encoding" in self.headers:
            return
        try:
            self.options = read_options(await self.read())
        except ValueError as error:
            raise Refusal(
                HTTPStatus.BAD_REQUEST, f"The body of the request is no JSON: {error}"
            ) from error

    def replace(self, body: bytes) -> None:
        self._replacement = body
        self.headers.popall("Content-Length", None)

    async def body(self) -> bytes | AsyncIterator[bytes] | None:
        if self._replacement is not None:
            return self._replacement
        if not self.request.can_read_body and not self._kept:
            return None
        length = self.request.content_length
        if length is not None and length <= WHOLE_BYTES_MAX:
            return await self.read()
        return self._chunks()

    async def read(self) -> bytes:
        return b"".join([chunk async for chunk in self._chunks()])

    async def _chunks(self) -> AsyncIterator[bytes]:
        told = 0
        while chunk := await self._chunk(told):
            told += 1
            yield chunk

    async def _chunk(self, told: int) -> bytes:
        """The one after so many; empty where the body ends.

        Who sent it to a llama-server that went may be about to read on.
        """
        async with self._reading:
            if told < len(self._kept):
                return self._kept[told]
            if not self._is_invited:
                self._is_invited = True
                await invite(self.request)
            chunk = await self.request.content.readany()
            self._kept_bytes += len(chunk)
            if self._kept_bytes > KEPT_BYTES_MAX:
                self.is_replayable = False
                self._kept.clear()
            elif chunk and self.is_replayable:
                self._kept.append(chunk)
            return chunk


async def invite(request: web.BaseRequest) -> None:
    """Have a client send its body that waits for leave to."""
    expected = request.headers.get("Expect", "").strip().lower()
    waits = expected == "100-continue" and request.version >= HttpVersion11
    if waits and request.can_read_body:
        await request.writer.write(CONTINUE)
        # The answer itself has yet to begin.
        request.writer.output_size = 0
