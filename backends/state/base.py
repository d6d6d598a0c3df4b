"""The base of every value, and the words of the controller's API."""

from __future__ import annotations

from typing import Any

import msgspec


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every value: frozen, compared by content, built by keyword."""


def json_bytes(value: Any) -> bytes:
    """Encode any value as JSON; what is no Unicode of other machines' text is replaced.

    Names of files may hold bytes that are no text, as lone surrogates (PEP 383).
    """
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_as_text(msgspec.to_builtins(value)))


def _as_text(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {_as_text(key): _as_text(of_key) for key, of_key in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_text(one) for one in value]
    return value


def to_json(value: Any, *, indent: int = 0) -> str:
    raw = json_bytes(value)
    return (msgspec.json.format(raw, indent=indent) if indent else raw).decode()


NOT_JSON = (ValueError, RecursionError)
"""Errors of msgspec for bytes that are not the JSON wanted: its own
``DecodeError``, a ``UnicodeDecodeError`` within a string (both are ValueErrors), and
brackets nested too deep."""


PROGRAM_HEADER = "Dllm-Program"
"""The header of a request's program: ``console``, or the name of a command."""
AGENT_HEADER = "Ssh-Auth-Sock"
"""The header of the client's ssh-agent; the controller may be older than that."""
API_VERSION = 17
"""Grows with every change that an older client or controller would misread."""
ALIVE_EVERY_S = 1.0
"""A controller that works on a request says so at least this often."""
SILENCE_MAX_S = 5.0
"""A client waits no longer for the next word of a controller; of one that runs, on a
machine that is busy with other work, six times as long."""


class ControllerInfo(Value, frozen=True, kw_only=True):
    """A controller's answer to ``/v1/version``, and the content of its lock."""

    api: int
    """``API_VERSION`` of its release."""
    version: str = ""
    """Of the release."""
    pid: int
    socket: str = ""
    """The path of its socket."""
