"""The answers to requests that are not let in, in the shape of each API."""

from __future__ import annotations

import math
from http import HTTPStatus

import msgspec
from aiohttp import web

from backends.gateway.apis import is_anthropic

_KINDS = {
    HTTPStatus.UNAUTHORIZED: ("authentication_error", "authentication_error"),
    HTTPStatus.FORBIDDEN: ("permission_error", "permission_error"),
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: ("invalid_request_error", "request_too_large"),
    HTTPStatus.TOO_MANY_REQUESTS: ("rate_limit_error", "rate_limit_error"),
}
"""By status: OpenAI's word for the kind of error, and Anthropic's."""


class Refusal(Exception):
    """A request is not let in."""

    def __init__(
        self, status: HTTPStatus, message: str, retry_after_s: float | None = None
    ) -> None:
        """``message`` is for whoever reads the client's log."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after_s = retry_after_s

    def response(self, request: web.BaseRequest) -> web.Response:
        """The answer; the connection ends with it, for its body was not read."""
        response = web.Response(
            status=self.status,
            body=self._body(request.path),
            content_type="application/json",
            charset="utf-8",
        )
        if self.status is HTTPStatus.UNAUTHORIZED:
            response.headers["WWW-Authenticate"] = "Bearer"
        if self.retry_after_s is not None:
            response.headers["Retry-After"] = str(math.ceil(self.retry_after_s))
        response.force_close()
        return response

    def _body(self, path: str) -> bytes:
        openai, anthropic = _KINDS[self.status]
        if is_anthropic(path):
            error = {"type": anthropic, "message": self.message}
            return msgspec.json.encode({"type": "error", "error": error})
        told = {"code": int(self.status), "message": self.message, "type": openai}
        return msgspec.json.encode({"error": told})
