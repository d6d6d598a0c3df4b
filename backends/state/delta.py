"""What changed between two snapshots: a stream of them sends that, not all of it.

A change is written as JSON values, each for a value as JSON knows it:

- ``[value]``: it is this instead; ``[]``: it is gone;
- ``{key: change, …}`` of an object, and by index of a list that keeps its length;
- ``{"drop": n, "add": [value, …]}`` of a list that goes on, its oldest falling off;
- ``{"order": [name, …], "of": {name: change, …}}`` of a list of named values; the order
  is left out where it stays.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec

from backends.state.base import Value
from backends.state.snapshots import ClusterSnapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

Change = list[Any] | dict[str, Any]

NAMED = {
    "clusters": ("name",),
    "peers": ("name",),
    "links": ("worker",),
    "processes": ("peer", "name"),
    "steps": ("id",),
}
"""Fields of a snapshot that are lists of named values, and what names one."""
_NAME_SEPARATOR = "\x1f"
_LISTS = (list, tuple)
GONE: Change = []


class Frame(Value, frozen=True, kw_only=True, omit_defaults=True):
    """One line of a stream of snapshots: the first is whole, the others are changes."""

    snapshot: ClusterSnapshot | None = None
    changes: dict[str, Change] | None = None
    """By field of the snapshot."""


def framed(new: ClusterSnapshot, old: ClusterSnapshot | None) -> Frame:
    """What to send of a snapshot to one who has the other (None: has nothing)."""
    if old is None:
        return Frame(snapshot=new)
    return Frame(changes=diff(old, new))


def applied(frame: Frame, old: ClusterSnapshot | None) -> ClusterSnapshot:
    """The snapshot a frame tells of, to one who has seen the one before.

    Raises:
        ValueError: the frame does not go with what was seen.
    """
    if frame.snapshot is not None:
        return frame.snapshot
    if old is None or frame.changes is None:
        raise ValueError("it does not begin with a whole snapshot")
    try:
        return apply(frame.changes, old)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"a change of something unknown: {error}") from error


def diff(old: ClusterSnapshot, new: ClusterSnapshot) -> dict[str, Change]:
    """The changes that make ``new`` of ``old``, by field."""
    changes: dict[str, Change] = {}
    for field in ClusterSnapshot.__struct_fields__:
        before, after = getattr(old, field), getattr(new, field)
        if before is after or before == after:
            continue
        keys = NAMED.get(field)
        if keys is None:
            changes[field] = _changed(_plain(before), _plain(after))
        else:
            changes[field] = _named_changed(before, after, keys)
    return changes


def apply(changes: dict[str, Change], old: ClusterSnapshot) -> ClusterSnapshot:
    """The snapshot that differs from ``old`` by these changes; the rest is shared."""
    types = _field_types()
    fields = {}
    for field, change in changes.items():
        before, keys = getattr(old, field), NAMED.get(field)
        if keys is None:
            value = _made(change, _plain(before))
            fields[field] = msgspec.convert(value, types[field])
        else:
            fields[field] = _named_made(change, before, keys, types[field])
    return msgspec.structs.replace(old, **fields)


# --- lists of named values ------------------------------------------------------


def _named_changed(
    before: tuple[Value, ...], after: tuple[Value, ...], keys: tuple[str, ...]
) -> Change:
    old, new = _by_name(before, keys), _by_name(after, keys)
    if len(old) != len(before) or len(new) != len(after):
        # A name twice: there is no telling which is meant.
        return [_plain(after)]
    of = {
        name: _changed(_plain(old.get(name)), _plain(value))
        for name, value in new.items()
        if old.get(name) != value
    }
    order = {} if list(old) == list(new) else {"order": list(new)}
    return {**order, "of": of}


def _named_made(
    change: Change, before: tuple[Value, ...], keys: tuple[str, ...], kind: Any
) -> tuple[Value, ...]:
    if isinstance(change, list):
        whole: tuple[Value, ...] = msgspec.convert(change[0], kind)
        return whole
    item = kind.__args__[0]
    old = _by_name(before, keys)
    new = {
        name: msgspec.convert(_made(part, _plain(old.get(name))), item)
        for name, part in change["of"].items()
    }
    names = change.get("order", list(old))
    return tuple(new[name] if name in new else old[name] for name in names)


def _by_name(values: tuple[Value, ...], keys: tuple[str, ...]) -> dict[str, Value]:
    return {
        _NAME_SEPARATOR.join(str(getattr(value, key)) for key in keys): value
        for value in values
    }


# --- any value, as JSON knows it ------------------------------------------------


def _changed(old: Any, new: Any) -> Change:
    """The shortest way to write a change."""
    ways: list[Change] = [[new]]
    if isinstance(old, dict) and isinstance(new, dict):
        ways.append(_dict_changed(old, new))
    elif isinstance(old, _LISTS) and isinstance(new, _LISTS):
        ways += _list_changed(old, new)
    return min(ways, key=lambda way: len(msgspec.json.encode(way)))


def _dict_changed(old: dict[str, Any], new: dict[str, Any]) -> Change:
    gone = {key: GONE for key in old if key not in new}
    changed = {
        key: _changed(old.get(key), value)
        for key, value in new.items()
        if key not in old or old[key] != value
    }
    return {**gone, **changed}


def _list_changed(old: Sequence[Any], new: Sequence[Any]) -> list[Change]:
    """By index, where the length is the same; by what is new at its end."""
    ways: list[Change] = []
    if len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        ways.append({str(i): _changed(a, b) for i, (a, b) in pairs if a != b})
    for drop in range(len(old)):
        kept = len(old) - drop
        if new[:kept] == old[drop:]:
            return [*ways, {"drop": drop, "add": new[kept:]}]
    return ways


def _made(change: Change, old: Any) -> Any:
    if isinstance(change, list):
        return change[0]
    if isinstance(old, dict):
        changed = {
            key: _made(part, old.get(key)) for key, part in change.items() if part
        }
        return {k: v for k, v in old.items() if change.get(k, True) != GONE} | changed
    if "add" in change:
        return [*old[change["drop"] :], *change["add"]]
    made = list(old)
    for index, part in change.items():
        made[int(index)] = _made(part, old[int(index)])
    return made


def _plain(value: Any) -> Any:
    """A value as JSON knows it."""
    return msgspec.to_builtins(value, builtin_types=())


@cache
def _field_types() -> dict[str, Any]:
    return get_type_hints(ClusterSnapshot)
