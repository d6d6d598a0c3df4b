"""How every part of the API reads requests and answers them."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, TypeVar

import msgspec
from aiohttp import web

from backends.errors import DllmError
from backends.state import Failure

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

T = TypeVar("T")


def json_response(value: object, status: int = 200) -> web.Response:
    """Any value of ``backends.state`` as a JSON answer."""
    return web.Response(
        body=msgspec.json.encode(value), status=status, content_type="application/json"
    )


async def body(request: web.Request, kind: type[T]) -> T:
    """What a request carries; an empty body is an empty object.

    Raises:
        msgspec.ValidationError: it is not of that kind.
    """
    return msgspec.json.decode(await request.read() or b"{}", type=kind)


async def start_stream(request: web.Request) -> web.StreamResponse:
    """Begin an answer of one JSON value a line."""
    response = web.StreamResponse()
    response.content_type = "application/x-ndjson"
    await response.prepare(request)
    return response


@web.middleware
async def errors_as_values(
    request: web.Request,
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> web.StreamResponse:
    """Expected errors become ``Failure`` answers; others too, and are logged."""
    try:
        return await handler(request)
    except DllmError as error:
        return json_response(error.failure(), status=409)
    except msgspec.ValidationError as error:
        return json_response(Failure(what=f"Bad request: {error}"), status=400)
    except web.HTTPException as error:
        return json_response(Failure(what=f"{request.path}: {error}"), error.status)
    except (ConnectionResetError, asyncio.CancelledError):
        raise
    except Exception as error:
        log.exception("request %s failed", request.path)
        what = f"The controller failed: {type(error).__name__}: {error}"
        return json_response(
            Failure(what=what, hint="Its log (controller.log) has the details."), 500
        )
