"""The names of machines: ours, and a peer before a path."""

from __future__ import annotations

import re
from collections.abc import Collection

LOCAL = "local"
"""The name of the machine we run on."""
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_TAKEN = re.compile(
    r"(worker|relay-).*|local|llama-server|api-gateway|controller|all|demo"
)
_PLACE = re.compile(r"(\[[0-9A-Fa-f:.%\w]+\]|[^\s@/:\[\]]+):\d{1,5}")
NAME_MAX = 32
TOKEN = re.compile(r"dllm(\d{1,4})-")
"""The beginning of an invitation, with its version."""


def at_peer(path: str) -> tuple[str, str] | None:
    """Peer and path of ``peer:/path``; None for a path of ours."""
    name, colon, rest = path.partition(":")
    return (name, rest) if colon and name and rest.startswith("/") else None


def beside_a_peer(path: str) -> tuple[str, str] | None:
    """Peer and path of ``peer:some/path``, which leaves open where that begins.

    ``llama3:8b`` is none: a model may be called so.
    """
    name, _, rest = path.partition(":")
    is_path = "/" in rest or rest.endswith(".gguf")
    return (name, rest) if is_path and name and "/" not in name else None


def is_token(text: str) -> bool:
    return bool(TOKEN.match(text.strip()))


def is_place(text: str) -> bool:
    """True for ``HOST:PORT``, where no user is named."""
    return bool(_PLACE.fullmatch(text.strip()))


def bracketed(host: str) -> str:
    """The host as it stands before a port: an address of IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def is_taken(name: str) -> bool:
    """True if a process or a choice of ours has the name, so that no peer can."""
    return bool(_TAKEN.fullmatch(name))


def suggested_name(address: str, taken: Collection[str] = ()) -> str:
    """Name a peer by what one gives to ssh: ``ada@mini.lan:2222`` is ``mini``."""
    place = address.strip().rpartition("@")[2].removeprefix("ssh://")
    host = _host(place)
    if not re.fullmatch(r"[\d.]+|.*:.*", host):
        host = host.partition(".")[0]
    name = _NO_NAME.sub("-", host).strip("-._")[: NAME_MAX - 3]
    if is_taken(name):
        name = f"my-{name}"[: NAME_MAX - 3]
    numbered = (f"{name}-{number}" for number in range(2, len(taken) + 3))
    return name if name not in taken else next(n for n in numbered if n not in taken)


def _host(place: str) -> str:
    if place.startswith("["):
        return place[1:].partition("]")[0]
    return place.partition(":")[0] if place.count(":") == 1 else place
