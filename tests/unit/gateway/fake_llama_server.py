"""A llama-server of our own making that answers like the real one, and can break off.

Its vocabulary is letters, the halves of one character, and an end; after the prompt it
always says the same.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

from tests.unit.gateway.gateway_fixture import abort, stream_of

PIECES = [b"a", b"b", b"\xc3", b"\xa4", b"c", b"\n", b"d", b"", b"ef"]
END = 7
ANSWER = [0, 1, 2, 3, 4, 5, 6, 0, 1, END]
TEXT = "abäc\ndab"
PROMPT = 4
"""So many tokens has every prompt."""
TIMINGS = {"cache_n": 1, "prompt_n": 3, "prompt_ms": 2.0, "predicted_ms": 1.0}


def tokenized(text: str) -> list[int]:
    return [PIECES.index(bytes([byte])) for byte in text.encode()]


class FakeLlamaServer:
    """Answers; ``breaks_at`` events it breaks off, where that is told."""

    def __init__(
        self, breaks_at: int | None = None, number: int = 1, end: bytes = b"\n"
    ) -> None:
        self.end = end
        self.asked: list[tuple[str, Any]] = []
        self.breaks_at = breaks_at
        self.number = number
        self.tokenized = tokenized
        self.answer = ANSWER

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.json()
        self.asked.append((request.path, body))
        if request.path == "/tokenize":
            return web.json_response({"tokens": self.tokenized(body["content"])})
        if request.path == "/detokenize":
            raw = b"".join(PIECES[token] for token in body["tokens"])
            return web.json_response({"content": raw.decode()})
        if request.path == "/apply-template":
            return web.json_response({"prompt": "asked"})
        response = await stream_of(request)
        sent = 0
        async for event in self._events(request.path, body):
            if sent == self.breaks_at:
                # What was written must be on its way.
                await asyncio.sleep(0.02)
                abort(request)
                return response
            await response.write(event.replace(b"\n", self.end))
            sent += 1
        return response

    async def _events(self, path: str, body: dict[str, Any]) -> AsyncIterator[bytes]:
        known = body["prompt"][1:] if isinstance(body.get("prompt"), list) else []
        limits = ("n_predict", "max_completion_tokens", "max_tokens")
        limit = next((body[name] for name in limits if name in body), 100)
        rest = self.answer[len(known) :][:limit]
        say = {"/completion": self._native, "/v1/completions": self._completion}
        say_one = say.get(path, self._chat)
        stops = body.get("stop", [])
        held, count, found = b"", 0, False
        for count, token in enumerate(rest, 1):
            held += PIECES[token]
            if held.endswith(b"\xc3"):
                continue
            text, found = held.decode(), any(stop in held.decode() for stop in stops)
            for stop in stops:
                text = text.partition(stop)[0]
            if not found and token != END and _may_begin(stops, text):
                text = ""
            else:
                held = b""
            for event in say_one(text, token, count, len(known), body):
                said = {**event, "timings": {**TIMINGS, "predicted_n": count}}
                yield _line(said if found else event)
            if found:
                break
        is_eos = found or END in rest
        for event in self._ends(path, count, len(known), body, is_eos=is_eos):
            yield _line(event)
        if path != "/completion":
            yield b"data: [DONE]\n\n"

    def _native(
        self, text: str, token: int, count: int, known: int, body: dict[str, Any]
    ) -> list[dict[str, Any]]:
        return [
            {
                "content": text,
                "tokens": [token],
                "stop": False,
                "tokens_predicted": count,
                "tokens_evaluated": PROMPT + known,
            }
        ]

    def _completion(
        self, text: str, token: int, count: int, known: int, body: dict[str, Any]
    ) -> list[dict[str, Any]]:
        choice = {"text": text, "index": 0, "logprobs": None, "finish_reason": None}
        if "n_probs" in body:
            choice["logprobs"] = _probability(text, token)
        return [self._marked(choice, body, count)]

    def _chat(
        self, text: str, token: int, count: int, known: int, body: dict[str, Any]
    ) -> list[dict[str, Any]]:
        empty: list[Any] = [{"role": "assistant", "content": None}] * (count == 1)
        deltas = [*empty, *([{"content": text}] if text else [])]
        choices = [
            {"finish_reason": None, "index": 0, "delta": delta} for delta in deltas
        ]
        if choices and "n_probs" in body:
            choices[-1]["logprobs"] = _probability(text, token)
        return [self._marked(choice, body, count) for choice in choices]

    def _marked(
        self, choice: dict[str, Any], body: dict[str, Any], count: int
    ) -> dict[str, Any]:
        event = {"choices": [choice], "created": 1, "id": f"x-{self.number}"}
        has_timings = "timings_per_token" in body and choice.get("delta") != {
            "role": "assistant",
            "content": None,
        }
        timings = {**TIMINGS, "predicted_n": count}
        return {**event, "timings": timings} if has_timings else event

    def _ends(
        self, path: str, count: int, known: int, body: dict[str, Any], *, is_eos: bool
    ) -> list[dict[str, Any]]:
        timings = {**TIMINGS, "predicted_n": count}
        if path == "/completion":
            said = {
                "content": "",
                "tokens": [],
                "stop": True,
                "tokens_predicted": count,
                "tokens_evaluated": PROMPT + known,
                "generation_settings": {"n_predict": body.get("n_predict", -1)},
                "prompt": "asked"
                + b"".join(PIECES[i] for i in self.answer[:known]).decode(),
                "has_new_line": False,
                "stop_type": "eos" if is_eos else "limit",
                "timings": timings,
            }
            return [said]
        reason = "stop" if is_eos else "length"
        marks = {"created": 1, "id": f"x-{self.number}"}
        usage = {"completion_tokens": count, "prompt_tokens": PROMPT}
        if path == "/v1/completions":
            choice = {"text": "", "index": 0, "logprobs": None, "finish_reason": reason}
            return [{"choices": [choice], **marks, "usage": usage, "timings": timings}]
        finish = {"choices": [{"finish_reason": reason, "index": 0, "delta": {}}]}
        if not body.get("stream_options"):
            return [{**finish, **marks, "timings": timings}]
        last = {"choices": [], **marks, "usage": usage, "timings": timings}
        return [{**finish, **marks}, last]


def _may_begin(stops: list[str], text: str) -> bool:
    beginnings = (stop[:n] for stop in stops for n in range(1, len(stop)))
    return any(map(text.endswith, beginnings))


def _probability(text: str, token: int) -> dict[str, Any]:
    return {"content": [{"id": token, "token": text, "bytes": list(text.encode())}]}


def _line(event: dict[str, Any]) -> bytes:
    text = json.dumps(event, separators=(",", ":"), ensure_ascii=False)
    return b"data: " + text.encode() + b"\n\n"
