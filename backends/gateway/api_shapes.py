"""Answers of the gateway itself, in the shape of each API."""

from __future__ import annotations

import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy

from backends.engine.sse import LineFeeds
from backends.gateway.control_messages import Mode, Target

HOP_BY_HOP = frozenset(
    {
        *("connection", "keep-alive", "proxy-connection", "proxy-authenticate"),
        *("proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade"),
        # Answered by whoever accepts the upload: us.
        "expect",
    }
)
RETRY_AFTER_S = 5
UNAVAILABLE = HTTPStatus.SERVICE_UNAVAILABLE
KEEP_ALIVE = b": keep-alive\n\n"
EVENTS = "text/event-stream"
_KINDS = {
    UNAVAILABLE: ("unavailable_error", "overloaded_error"),
    HTTPStatus.BAD_REQUEST: ("invalid_request_error", "invalid_request_error"),
    HTTPStatus.UNAUTHORIZED: ("authentication_error", "authentication_error"),
    HTTPStatus.FORBIDDEN: ("permission_error", "permission_error"),
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: ("invalid_request_error", "request_too_large"),
    HTTPStatus.TOO_MANY_REQUESTS: ("rate_limit_error", "rate_limit_error"),
}
"""By status: OpenAI's word for the kind of error, and Anthropic's."""
_MODELS = ("/v1/models", "/models")
_ENDS = {
    "/v1/chat/completions": b"\ndata: [DONE]",
    "/chat/completions": b"\ndata: [DONE]",
    "/v1/completions": b"\ndata: [DONE]",
    "/v1/messages": b'"type":"message_stop"',
    "/v1/responses": b'"type":"response.completed"',
    "/responses": b'"type":"response.completed"',
}
"""By path: what is in a stream that came to its end. Inside of a text the quotation
marks and line ends would be escaped."""
_ERRORS = (b'\ndata: {"error"', b"\nevent: error\n")
"""Events by which llama-server itself ends a stream."""
_GOES_ON = b'"stop":false'
"""In every event but the last of llama-server's own APIs; what the last one has is for
the client to choose (``response_fields``)."""
_NATIVE = ("/completion", "/completions", "/infill")
_BETWEEN_EVENTS = b"\n\n"


def passed_on(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """The fields of a request or an answer that are for the other end, in order."""
    named = ",".join(headers.getall("Connection", ()))
    dropped = HOP_BY_HOP | {name.strip().lower() for name in named.split(",")}
    return CIMultiDict((k, v) for k, v in headers.items() if k.lower() not in dropped)


def is_anthropic(path: str) -> bool:
    return path.startswith("/v1/messages")


def error_body(path: str, message: str, status: HTTPStatus = UNAVAILABLE) -> bytes:
    # A header it tells of may hold bytes that are no text.
    message = message.encode(errors="replace").decode()
    openai, anthropic = _KINDS[status]
    if is_anthropic(path):
        error = {"type": anthropic, "message": message}
        return msgspec.json.encode({"type": "error", "error": error})
    told = {"code": int(status), "message": message, "type": openai}
    return msgspec.json.encode({"error": told})


def error_event(path: str, body: bytes) -> bytes:
    data = b"data: " + body.replace(b"\n", b" ") + b"\n\n"
    return b"event: error\n" + data if is_anthropic(path) else data


def cross_origin(request: web.BaseRequest) -> dict[str, str]:
    """Headers for browsers, as llama-server gives them."""
    return {"Access-Control-Allow-Origin": request.headers.get("Origin", "")}


def unavailable(request: web.BaseRequest, message: str) -> web.Response:
    response = _error_response(request, message, UNAVAILABLE, RETRY_AFTER_S)
    response.headers.update(cross_origin(request))
    return response


def _error_response(
    request: web.BaseRequest,
    message: str,
    status: HTTPStatus,
    retry_after_s: float | None,
) -> web.Response:
    response = web.Response(
        status=status,
        body=error_body(request.path, message, status),
        content_type="application/json",
        charset="utf-8",
    )
    if retry_after_s is not None:
        response.headers["Retry-After"] = str(math.ceil(retry_after_s))
    return response


def meanwhile(request: web.BaseRequest, target: Target) -> web.Response | None:
    """The answer to what can be answered while nothing serves; None for work."""
    if request.method == "OPTIONS":
        return web.Response(
            content_type="text/html",
            headers={
                **cross_origin(request),
                "Access-Control-Allow-Credentials": "true",
                "Access-Control-Allow-Methods": "GET, POST, DELETE, OPTIONS",
                "Access-Control-Allow-Headers": "*",
            },
        )
    if request.method not in ("GET", "HEAD"):
        return None
    if request.path in _MODELS:
        body = msgspec.json.encode(models(target))
        headers = cross_origin(request)
        return web.Response(body=body, content_type="application/json", headers=headers)
    return unavailable(request, target.why or "Loading model")


def models(target: Target) -> Mapping[str, Any]:
    """The list of models, as llama-server gives it of models that are not loaded."""
    if not target.model:
        return {"object": "list", "data": []}
    entry = {
        "id": target.model,
        "aliases": [target.model],
        "object": "model",
        "created": 0,
        "owned_by": "llamacpp",
        "status": {"value": "loading" if target.mode is Mode.HOLD else "unloaded"},
    }
    return {"object": "list", "data": [entry]}


class Refusal(Exception):
    def __init__(
        self, status: HTTPStatus, message: str, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after_s = retry_after_s

    def response(self, request: web.BaseRequest) -> web.Response:
        """The answer; the connection ends with it, for its body was not read."""
        response = _error_response(
            request, self.message, self.status, self.retry_after_s
        )
        if self.status is HTTPStatus.UNAUTHORIZED:
            response.headers["WWW-Authenticate"] = "Bearer"
        response.force_close()
        return response


def has_known_end(path: str) -> bool:
    """Return true if a stream at this path tells by its events that it is whole."""
    return path in _NATIVE or path in _ENDS


class EndMark:
    """Looks for the end in a stream that is passed on as it comes."""

    def __init__(self, path: str) -> None:
        self._is_native = path in _NATIVE
        self._is_known = has_known_end(path)
        end = _ENDS.get(path)
        self._marks = (end, *_ERRORS) if end else ()
        self._kept = max(map(len, (_GOES_ON, *self._marks)))
        self._lines = LineFeeds()
        self._tail = b"\n\n"
        self._is_seen = False
        self._goes_on: bool | None = None
        """True if the last event, as far as it has come, is not the end; None before
        the first."""

    @property
    def is_between_events(self) -> bool:
        return self._tail.endswith(_BETWEEN_EVENTS)

    @property
    def is_missing(self) -> bool:
        """True if the stream has an end that is known, and it did not come."""
        return self._is_known and not (self._is_seen and self.is_between_events)

    def look_at(self, chunk: bytes) -> None:
        joined = self._tail + self._lines.take(chunk)
        if self._is_native:
            self._goes_on = self._still_goes_on(joined)
            self._is_seen = self._goes_on is False
        else:
            self._is_seen = self._is_seen or any(m in joined for m in self._marks)
        self._tail = joined[-self._kept :]

    def _still_goes_on(self, joined: bytes) -> bool | None:
        rest, *events = joined.rstrip(b"\n").split(b"\n\n")
        told = [event for event in events if event and not event.startswith(b":")]
        if told:
            return _GOES_ON in told[-1]
        return _GOES_ON in rest if self._goes_on is False else self._goes_on
