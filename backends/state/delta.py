"""Snapshots as a stream: the first whole, then JSON merge patches (RFC 7386).

A list of named values is patched as an object by name, as long as its names stay.
Another list of the same length is patched by index. One that lost its first items and
got others is patched as ``{"": [how many, others]}``. Any other list is sent whole.
"""

from __future__ import annotations

from functools import cache
from typing import Any, get_type_hints

import msgspec

from backends.state.base import Value
from backends.state.snapshots import ClusterSnapshot

NAMED = {
    "clusters": ("name",),
    "peers": ("name",),
    "links": ("worker",),
    "processes": ("peer", "name"),
    "steps": ("id",),
}
"""Lists of named values among a snapshot's fields, with the fields of the name."""
_SEPARATOR = "\x1f"


class Frame(Value, frozen=True, kw_only=True, omit_defaults=True):
    """One line of a stream of snapshots."""

    snapshot: ClusterSnapshot | None = None
    patch: dict[str, Any] | None = None


def framed(new: ClusterSnapshot, old: ClusterSnapshot | None) -> Frame:
    if old is None:
        return Frame(snapshot=new)
    return Frame(patch=diff(old, new))


def applied(frame: Frame, old: ClusterSnapshot | None) -> ClusterSnapshot:
    if frame.snapshot is not None:
        return frame.snapshot
    if old is None or frame.patch is None:
        raise ValueError("it does not begin with a whole snapshot")
    try:
        changed = {field: _merged(old, field, p) for field, p in frame.patch.items()}
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"a patch of something unknown: {error}") from error
    return msgspec.structs.replace(old, **changed)


def diff(old: ClusterSnapshot, new: ClusterSnapshot) -> dict[str, Any]:
    patches: dict[str, Any] = {}
    for field in ClusterSnapshot.__struct_fields__:
        before, after = getattr(old, field), getattr(new, field)
        if before is after or before == after:
            continue
        names = _names(field, after)
        if names and names == _names(field, before):
            pairs = zip(names, before, after, strict=True)
            patches[field] = {
                name: _patch(_plain(old_one), _plain(new_one))
                for name, old_one, new_one in pairs
                if old_one != new_one
            }
        elif field in NAMED:
            patches[field] = _plain(after)
        else:
            patches[field] = _patch(_plain(before), _plain(after))
    return patches


def _merged(old: ClusterSnapshot, field: str, patch: Any) -> Any:
    kind, before = _types()[field], getattr(old, field)
    names = _names(field, before)
    if not names or not isinstance(patch, dict):
        return msgspec.convert(_merge(_plain(before), patch), kind)
    if unknown := patch.keys() - set(names):
        raise KeyError(*unknown)
    (of, _) = kind.__args__
    return tuple(
        msgspec.convert(_merge(_plain(one), patch[name]), of) if name in patch else one
        for name, one in zip(names, before, strict=True)
    )


def _names(field: str, values: Any) -> list[str]:
    keys = NAMED.get(field)
    if keys is None:
        return []
    names = [_SEPARATOR.join(str(getattr(one, key)) for key in keys) for one in values]
    return names if len(set(names)) == len(names) else []


def _patch(old: Any, new: Any) -> Any:
    if isinstance(old, tuple) and isinstance(new, tuple):
        return _list_patch(old, new)
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    changed = {k: _patch(old.get(k), v) for k, v in new.items() if old.get(k) != v}
    return {**{key: None for key in old if key not in new}, **changed}


def _list_patch(old: tuple[Any, ...], new: tuple[Any, ...]) -> Any:
    for gone in range(len(old)):
        kept = len(old) - gone
        if old[gone:] == new[:kept]:
            return {"": [gone, new[kept:]]}
    changed = {str(i): one for i, one in enumerate(new) if one not in old[i : i + 1]}
    return changed if len(old) == len(new) > 2 * len(changed) else new


def _merge(old: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    if isinstance(old, tuple):
        if unknown := patch.keys() - {"", *map(str, range(len(old)))}:
            raise KeyError(*unknown)
        gone, others = patch.get("", (0, ()))
        kept = [patch.get(str(i), one) for i, one in enumerate(old)][gone:]
        return (*kept, *others)
    merged = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge(merged.get(key), value)
    return merged


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value, builtin_types=())


@cache
def _types() -> dict[str, Any]:
    return get_type_hints(ClusterSnapshot)
