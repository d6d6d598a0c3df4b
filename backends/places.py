"""Which machine is meant: ours by its name, and a peer before a path."""

from __future__ import annotations

LOCAL = "local"
"""The name of the machine we run on."""


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
