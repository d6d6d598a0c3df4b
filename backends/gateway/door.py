"""What every request passes before it is anybody's work: who comes, and with how much.

A program on this machine needs no key, but must not speak for a page of another site.
Everybody else needs one.
"""

from __future__ import annotations

from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import web
from aiohttp.streams import StreamReader
from multidict import CIMultiDict

from backends.gateway.asked import CONTINUE, awaits
from backends.gateway.figures import METRICS, metrics
from backends.gateway.keys import KeyRing
from backends.gateway.limits import Allowances
from backends.gateway.refusals import Refusal
from backends.gateway.visitor import (
    foreign_page,
    is_from_here,
    keys_in,
    without_keys,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backends.gateway.access import Access
    from backends.gateway.keys import Key
    from backends.gateway.proxy import Proxy

NO_KEY = "This API needs a key: send it as Authorization: Bearer or as x-api-key"
FOREIGN = (
    "Not answered without a key: {page} is not this machine. A page of another site "
    "could reach a program here through your browser"
)
TOO_LONG = "The request is longer than {mib} MiB (api_request_mib)"
TOO_OFTEN = "The key {name} has used up its requests; try again later"


class Door:
    """Lets requests in to a proxy."""

    def __init__(self, proxy: Proxy, access: Access) -> None:
        """Let in whom ``access`` lets in."""
        self._proxy = proxy
        self._tally = proxy.tally
        self._access = access
        self._ring = KeyRing(Path(access.keys))
        self._allowances = Allowances()

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; being cancelled means that its client left."""
        try:
            key, request = self._let_in(request)
            self._require_short(request.content_length or 0)
            with self._counted(key):
                return await self._answer(await self._bounded(request))
        except Refusal as refusal:
            if refusal.status is not HTTPStatus.TOO_MANY_REQUESTS:
                self._tally.add("refused")
            return refusal.response(request)
        except aiohttp.ClientPayloadError:
            # What it sent is no request, or ended in the middle.
            return web.Response(status=HTTPStatus.BAD_REQUEST)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "GET" and request.path == METRICS:
            return await metrics(self._proxy, request)
        return await self._proxy.answer(request)

    def _let_in(self, request: web.BaseRequest) -> tuple[Key | None, web.BaseRequest]:
        """Whose request it is, and the request as llama-server may see it.

        Raises:
            Refusal: it is not let in.
        """
        given = frozenset(keys_in(request))
        key = self._ring.holder(given) if given else None
        if key is None:
            if not is_from_here(request):
                raise Refusal(HTTPStatus.UNAUTHORIZED, NO_KEY)
            if request.method != "OPTIONS" and (page := foreign_page(request)):
                raise Refusal(HTTPStatus.FORBIDDEN, FOREIGN.format(page=page))
            return None, request
        ours = frozenset(one for one in given if self._ring.holder([one]))
        headers = without_keys(CIMultiDict(request.headers), ours)
        return key, request.clone(headers=headers)

    @contextmanager
    def _counted(self, key: Key | None) -> Iterator[None]:
        """Count a request with its key, within what the key allows.

        Raises:
            Refusal: it allows no more for now.
        """
        if key is None:
            yield
            return
        allowance = self._allowances.of(key)
        if wait_s := allowance.wait_s(key):
            self._tally.add_of_key(key.name, limited=1)
            message = TOO_OFTEN.format(name=key.name)
            raise Refusal(HTTPStatus.TOO_MANY_REQUESTS, message, wait_s)
        allowance.begin()
        self._tally.add_of_key(key.name, requests=1, in_flight=1)
        try:
            yield
        finally:
            allowance.end()
            self._tally.add_of_key(key.name, in_flight=-1)

    def _require_short(self, n_bytes: int) -> None:
        """See that a body is not longer than any may be.

        Raises:
            Refusal: it is.
        """
        if n_bytes > self._access.body_bytes_max:
            mib = self._access.body_bytes_max >> 20
            message = TOO_LONG.format(mib=mib)
            raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)

    async def _bounded(self, request: web.BaseRequest) -> web.BaseRequest:
        """The request, its body read where it does not say how long that is.

        Raises:
            Refusal: it turns out to be too long.
        """
        if request.content_length is not None or not request.can_read_body:
            return request
        if awaits(request):
            await request.writer.write(CONTINUE)
            # The answer itself has yet to begin.
            request.writer.output_size = 0
        body = bytearray()
        while chunk := await request.content.readany():
            body += chunk
            self._require_short(len(body))
        return _with_body(request, bytes(body))


def _with_body(request: web.BaseRequest, body: bytes) -> web.BaseRequest:
    """The same request, and this is what it says how long it is."""
    headers = CIMultiDict(request.headers)
    headers.popall("Transfer-Encoding", None)
    headers.popall("Expect", None)
    headers["Content-Length"] = str(len(body))
    whole = StreamReader(request.protocol, len(body) or 1, loop=request.task.get_loop())
    whole.feed_data(body)
    whole.feed_eof()
    known = request.clone(headers=headers)
    # Nothing else gives a request another body.
    known._payload = whole
    return known
