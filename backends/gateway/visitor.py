"""Who sends a request: from this machine or another, with which key, out of a page."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from backends.gateway.access import address_of, is_loopback, own_addresses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aiohttp import web
    from multidict import CIMultiDict

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
"""What a proxy on this machine adds for a client that may be anywhere; of ``-For``,
``-Host`` and ``-Proto`` some add only one."""
LOCAL_NAMES = (".localhost", ".internal")
"""Names below these are never given out on the internet; containers use the latter."""
_WEB = ("http", "https")


def is_from_here(request: web.BaseRequest) -> bool:
    """Whether the client is a program on this machine, and speaks for itself."""
    # Not the transport's word: uvloop's knows no peer once that has left.
    peer = request.remote
    if not peer or any(map(_is_of_proxy, request.headers)):
        return False
    return is_loopback(peer)


def _is_of_proxy(name: str) -> bool:
    name = name.lower()
    return name in FORWARDED or name.startswith(X_FORWARDED)


def keys_in(request: web.BaseRequest) -> Iterator[str]:
    """What may be a key, as OpenAI's clients and as Anthropic's send it."""
    for name, value in request.headers.items():
        if secret := _secret(name, value):
            yield secret


def _secret(name: str, value: str) -> str:
    if name.lower() == X_API_KEY:
        return value.strip()
    if name.lower() == AUTHORIZATION.lower() and value[:7].lower() == BEARER:
        return value[7:].strip()
    return ""


def without_keys(
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
    """Whether a name leads here whoever answers for the internet's names."""
    name = name.rstrip(".")
    if name == "localhost" or name.endswith(LOCAL_NAMES) or is_address(name):
        return True
    return name == socket.gethostname().lower()


def _is_address(name: str) -> bool:
    return address_of(name) is not None


def _is_near(name: str) -> bool:
    """Whether it is an address of this machine or of a private network."""
    address = address_of(name)
    if address is None:
        return False
    return address.is_private or address.is_loopback or str(address) in own_addresses()
