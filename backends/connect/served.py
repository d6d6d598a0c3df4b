"""What a client is told: where the API is, what serves there, and with which key."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from backends.errors import DllmError, UsageError
from backends.gateway.access import is_loopback
from backends.planning.commands import model_alias
from backends.state import DEFAULT_CLUSTER, Value

if TYPE_CHECKING:
    from backends.state import ClusterSnapshot, Plan

VARIABLE = "DLLM_API_KEY"
"""Clients are told to find the key in it: a key is written into no file."""
NO_KEY = "none"
"""What clients send that insist on a key, where none is needed."""


class Served(Value, frozen=True, kw_only=True):
    """One cluster's API, as its clients see it."""

    url: str
    """With ``/v1``."""
    model: str
    ctx_size: int
    """Tokens that one request has room for."""
    provider: str = "dllm"
    """What clients call whoever serves it."""

    @property
    def needs_key(self) -> bool:
        """Whether clients are on another machine, or must speak as if they were."""
        host = urlsplit(self.url).hostname or ""
        return host != "localhost" and not is_loopback(host)


def served(snapshot: ClusterSnapshot, url: str | None) -> Served:
    """What a cluster serves; at ``url`` where clients find it elsewhere.

    Raises:
        DllmError: it serves nothing.
        UsageError: that is no URL.
    """
    plan = snapshot.plan
    if plan is None or snapshot.api_url is None:
        raise DllmError(
            f"Nothing serves (the cluster is {snapshot.state.value}), so there is no "
            "address and no model to tell a client",
            "Launch first: dllm-tui up --model m.gguf --detach.",
        )
    is_default = snapshot.cluster == DEFAULT_CLUSTER
    return Served(
        url=_whole(url) if url else snapshot.api_url,
        model=model_alias(plan),
        ctx_size=_room(snapshot, plan),
        provider="dllm" if is_default else f"dllm-{snapshot.cluster}",
    )


def _room(snapshot: ClusterSnapshot, plan: Plan) -> int:
    """Of the context, a slot's part; llama-server gives none more than was trained."""
    trained = snapshot.model.n_ctx_train if snapshot.model else 0
    part = plan.ctx_size // plan.server.slots
    return min(part, trained) if trained else part


def _whole(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_web = parts.scheme in ("http", "https") and parts.hostname
    except ValueError:
        is_web = None
    if not is_web or any(not c.isprintable() or c in " \"'\\" for c in url):
        raise UsageError(
            f"{url!r} is no URL", "Give one such as http://studio:8090/v1."
        )
    return url.rstrip("/").removesuffix("/v1") + "/v1"
