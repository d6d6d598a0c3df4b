"""What a draft adds to the memory of the head's devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from backends.state import MemorySource

if TYPE_CHECKING:
    from collections.abc import Iterable

    from backends.split.loads import DeviceLoad
    from backends.state import DeviceMemory, Speculation

_TRUST = tuple(MemorySource)
"""Whose word a figure is, least first."""


def with_draft(memory: DeviceMemory, draft: Speculation | None) -> DeviceMemory:
    """The memory of a device and what the draft takes of the same."""
    for one in draft.memory if draft else ():
        if one.device == memory.device:
            memory = replace(
                memory,
                model_bytes=memory.model_bytes + one.model_bytes,
                kv_bytes=memory.kv_bytes + one.kv_bytes,
                compute_bytes=memory.compute_bytes + one.compute_bytes,
                source=min(memory.source, one.source, key=_TRUST.index),
            )
    return memory


def loads_with_draft(
    loads: Iterable[DeviceLoad], draft: Speculation | None
) -> tuple[DeviceLoad, ...]:
    """The same of whole loads."""
    return tuple(load.as_told(with_draft(load.memory, draft)) for load in loads)
