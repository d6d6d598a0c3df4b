"""What every value is built on."""

from __future__ import annotations

from typing import Any

import msgspec


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every value: frozen, compared by content, built by keyword."""


def to_json(value: Any, *, indent: int = 0) -> str:
    """Encode any value as JSON text."""
    raw = msgspec.json.encode(value)
    return (msgspec.json.format(raw, indent=indent) if indent else raw).decode()


NOT_JSON = (ValueError, RecursionError)
"""What msgspec raises for bytes that are no JSON of the kind wanted: its own
``DecodeError``, a ``UnicodeDecodeError`` within a string (both are ValueErrors), and
brackets nested too deep."""
