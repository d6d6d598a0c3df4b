"""The answers to requests that are not let in, in the shape of each API."""

from __future__ import annotations

import math
from http import HTTPStatus

from aiohttp import web

from backends.gateway.apis import error_body


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
            body=error_body(request.path, self.message, self.status),
            content_type="application/json",
            charset="utf-8",
        )
        if self.status is HTTPStatus.UNAUTHORIZED:
            response.headers["WWW-Authenticate"] = "Bearer"
        if self.retry_after_s is not None:
            response.headers["Retry-After"] = str(math.ceil(self.retry_after_s))
        response.force_close()
        return response
