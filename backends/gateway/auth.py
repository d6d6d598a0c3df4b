"""Authentication: who sends a request, with which key, and how much that allows.

A program on this machine needs no key, but must not speak for a page of another site.
Everybody else needs one.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web
from aiohttp.streams import StreamReader
from multidict import CIMultiDict

from backends.gateway.api_shapes import Refusal
from backends.gateway.counters import METRICS, metrics
from backends.gateway.keys import Key, KeyRing
from backends.gateway.listen_settings import (
    ListenSettings,
    address_of,
    is_loopback,
    own_addresses,
)
from backends.gateway.proxy import Proxy
from backends.gateway.request import invite

BEARER = "bearer "
AUTHORIZATION = "Authorization"
X_API_KEY = "x-api-key"
FORWARDED = frozenset(
    {
        *("forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip"),
        *("cf-connecting-ip", "fastly-client-ip", "fly-client-ip"),
    }
)
X_FORWARDED = "x-forwarded-"
"""Begins the headers of a proxy on this machine, whose client may be anywhere. Of
``-For``, ``-Host`` and ``-Proto`` some proxies add only one."""
LOCAL_NAMES = (".localhost", ".internal")
"""Names below these are never given out on the internet; containers use the latter."""
_WEB = ("http", "https")
SOON_S = 1.0
"""When to come again where only the end of another request makes room."""
MINUTE_S = 60.0
NO_KEY = "This API needs a key: send it as Authorization: Bearer or as x-api-key"
FOREIGN = (
    "Not answered without a key: {page} is not this machine. A page of another site "
    "could reach a program here through your browser"
)
TOO_LONG = "The request is longer than {mib} MiB (api_request_mib)"
TOO_OFTEN = "The key {name} has used up its requests; try again later"


def is_from_here(request: web.BaseRequest) -> bool:
    """Return true for a program on this machine that speaks for itself."""
    # Not the transport's word: uvloop's knows no peer once that has left.
    peer = request.remote
    names = [name.lower() for name in request.headers]
    is_proxied = any(n in FORWARDED or n.startswith(X_FORWARDED) for n in names)
    return not is_proxied and is_loopback(peer or "")


def keys_in(request: web.BaseRequest) -> Iterator[str]:
    """Possible keys, as OpenAI's clients and as Anthropic's send them."""
    for name, value in request.headers.items():
        if secret := _secret(name, value):
            yield secret


def _secret(name: str, value: str) -> str:
    if name.lower() == X_API_KEY:
        return value.strip()
    if name.lower() == AUTHORIZATION.lower() and value[:7].lower() == BEARER:
        return value[7:].strip()
    return ""


def without_our_keys(
    headers: CIMultiDict[str], is_ours: frozenset[str]
) -> CIMultiDict[str]:
    """The header fields for llama-server, which needs to know no key of ours."""
    kept = headers.copy()
    kept.clear()
    for name, value in headers.items():
        if _secret(name, value) not in is_ours:
            kept.add(name, value)
    return kept


def foreign_page(request: web.BaseRequest) -> str:
    """The page of another site that a browser on this machine sends this for.

    It is empty if there is none. ``Origin`` tells of a page that asks across sites.
    ``Host`` betrays one whose name was made to lead here (DNS rebinding): any address
    may stand there, for no name leads to it. A page at an address of the internet is
    as foreign as one with a name.
    """
    host = request.headers.get("Host", "")
    if host and not _is_local(_name(f"//{host}"), _is_address):
        return host
    origin = request.headers.get("Origin", "")
    if origin == "null":
        return "a page of unknown origin"
    is_web = origin.partition(":")[0].lower() in _WEB
    return origin if is_web and not _is_local(_name(origin), _is_near) else ""


def _name(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _is_local(name: str, is_address: Callable[[str], bool]) -> bool:
    name = name.rstrip(".")
    if name == "localhost" or name.endswith(LOCAL_NAMES) or is_address(name):
        return True
    return name == socket.gethostname().lower()


def _is_address(name: str) -> bool:
    return address_of(name) is not None


def _is_near(name: str) -> bool:
    address = address_of(name)
    if address is None:
        return False
    return address.is_private or address.is_loopback or str(address) in own_addresses()


class Allowance:
    """The rest of one key's allowance.

    A minute's worth may come at once; from there on one at a time as it grows back.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._used = 0.0
        self._at = clock()
        self.in_flight = 0

    def wait_s(self, key: Key) -> float:
        """Seconds until the next request may come; 0 if it may come now."""
        if key.requests_at_once and self.in_flight >= key.requests_at_once:
            return SOON_S
        rate = key.requests_per_minute / MINUTE_S
        if not rate:
            return 0.0
        now = self._clock()
        self._used = max(0.0, self._used - (now - self._at) * rate)
        self._at = now
        over = self._used + 1 - key.requests_per_minute
        return max(0.0, over / rate)

    def begin(self) -> None:
        self._used += 1
        self.in_flight += 1

    def end(self) -> None:
        self.in_flight -= 1


class Auth:
    """Lets requests in to a proxy."""

    def __init__(self, proxy: Proxy, access: ListenSettings) -> None:
        self._proxy = proxy
        self._counters = proxy.counters
        self._access = access
        self._ring = KeyRing(Path(access.keys))
        self._allowances: dict[str, Allowance] = {}

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; being cancelled means that its client left."""
        try:
            key, request = self._let_in(request)
            self._require_short(request.content_length or 0)
            with self._counted(key):
                request = await self._bounded(request)
                if request.method == "GET" and request.path == METRICS:
                    of_server = await self._proxy.peek(METRICS)
                    return metrics(self._proxy.counts, of_server)
                return await self._proxy.answer(request)
        except Refusal as refusal:
            if refusal.status is not HTTPStatus.TOO_MANY_REQUESTS:
                self._counters.add("refused")
            return refusal.response(request)
        except aiohttp.ClientPayloadError:
            # What it sent is no request, or ended in the middle.
            return web.Response(status=HTTPStatus.BAD_REQUEST)

    def _let_in(self, request: web.BaseRequest) -> tuple[Key | None, web.BaseRequest]:
        given = frozenset(keys_in(request))
        key = self._ring.holder(given) if given else None
        if key is None:
            if not is_from_here(request):
                raise Refusal(HTTPStatus.UNAUTHORIZED, NO_KEY)
            if request.method != "OPTIONS" and (page := foreign_page(request)):
                raise Refusal(HTTPStatus.FORBIDDEN, FOREIGN.format(page=page))
            return None, request
        ours = frozenset(one for one in given if self._ring.holder([one]))
        headers = without_our_keys(CIMultiDict(request.headers), ours)
        return key, request.clone(headers=headers)

    @contextmanager
    def _counted(self, key: Key | None) -> Iterator[None]:
        if key is None:
            yield
            return
        allowance = self._allowances.setdefault(key.name, Allowance(time.monotonic))
        if wait_s := allowance.wait_s(key):
            self._counters.add_of_key(key.name, limited=1)
            message = TOO_OFTEN.format(name=key.name)
            raise Refusal(HTTPStatus.TOO_MANY_REQUESTS, message, wait_s)
        allowance.begin()
        self._counters.add_of_key(key.name, requests=1, in_flight=1)
        try:
            yield
        finally:
            allowance.end()
            self._counters.add_of_key(key.name, in_flight=-1)

    def _require_short(self, n_bytes: int) -> None:
        if n_bytes > self._access.body_bytes_max:
            mib = self._access.body_bytes_max >> 20
            message = TOO_LONG.format(mib=mib)
            raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)

    async def _bounded(self, request: web.BaseRequest) -> web.BaseRequest:
        """The request, its body read where it does not say how long that is."""
        if request.content_length is not None or not request.can_read_body:
            return request
        await invite(request)
        body = bytearray()
        while chunk := await request.content.readany():
            body += chunk
            self._require_short(len(body))
        return _with_body(request, bytes(body))


def _with_body(request: web.BaseRequest, body: bytes) -> web.BaseRequest:
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
