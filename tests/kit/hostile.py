"""Values whose every text tries to drive the terminal that shows it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

MARKUP = "[red][@click=app.bell]"
"""Markup that must be shown letter by letter; without a slash, which parts names."""
HOSTILE = (
    "\x1b]0;OWNED\x07"  # the window's title
    "\x1b]52;c;T1dORUQ=\x1b\\"  # the clipboard
    "\x1b]8;;http:OWNED\x1b\\\x1b[2J\x1b[31;1m\x1bP1;OWNED\x1b\\"
    "\x9b5m\x9d0;OWNED\x9c"  # the same in 8 bits
    "\u202e\u2066\u200b\x07\x08\r"
    f"{MARKUP}"
)
TRACES = ("OWNED", "T1dO", "[2J", "[31", "5m\ufffd", "52;c")
"""Parts of it that are left if only the escape character was taken out."""
DRIVES = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]"
)
# What our own code decides, or has checked letter by letter.
OURS = {
    "ClusterSnapshot.cluster",
    "ClusterBrief.name",
    "Step.id",
    "Peer.transport",
    "Link.mode",
    "ModelInfo.byte_order",
    "WorkerSpec.endpoint",
    "Ask.head",
    "Plan.head",
}


def hostile(text: str) -> str:
    if text.count("/") == 1 and not text.startswith("/"):
        return "/".join(map(_named, text.split("/")))
    return _named(text)


def _named(text: str) -> str:
    return text if text == "local" else text + HOSTILE


def filled(value: T) -> T:
    made: Any = _filled(value, ())
    return made  # type: ignore[no-any-return]


def _filled(value: object, kind: object) -> object:
    if isinstance(value, Enum):
        return value
    if isinstance(value, str):
        return hostile(value)
    if isinstance(value, msgspec.Struct):
        return _filled_struct(value)
    if isinstance(value, tuple):
        texts = value or (("",) if "tuple[str, ...]" in str(kind) else ())
        return tuple(_filled(one, ()) for one in texts)
    if isinstance(value, dict):
        return _filled_mapping(value)
    return value


def _filled_struct(value: msgspec.Struct) -> msgspec.Struct:
    name = type(value).__name__
    changes = {
        field.name: _filled(getattr(value, field.name), field.type)
        for field in msgspec.structs.fields(value)
        if f"{name}.{field.name}" not in OURS
    }
    return msgspec.structs.replace(value, **changes)


def _filled_mapping(value: Mapping[object, object]) -> dict[object, object]:
    return {_filled(key, ()): _filled(one, ()) for key, one in value.items()}


def drives(shown: str) -> list[str]:
    return [repr(found) for found in DRIVES.findall(shown)]


def troubles(shown: str) -> list[str]:
    return drives(shown) + [trace for trace in TRACES if trace in shown]
