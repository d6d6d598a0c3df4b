"""The weights a worker got, as its relay saw them go there."""

from __future__ import annotations

import msgspec

from backends.state.base import Value


class Held(msgspec.Struct, frozen=True, array_like=True):
    """``[tensors, bytes]`` of one part of a model."""

    tensors: int = 0
    bytes: int = 0


class LayersHeld(msgspec.Struct, frozen=True, array_like=True):
    """``[first, last, tensors, bytes]``: both ends held, the figures of each layer."""

    first: int
    last: int
    tensors: int
    bytes: int


class DeviceWeights(Value, frozen=True, kw_only=True):
    """What one device of a worker holds of the model."""

    device: int
    """Its number within the rpc-server."""
    layers: tuple[LayersHeld, ...] = ()
    embedding: Held = Held()
    """The token embedding; where it is tied, the device of the output has it too."""
    output: Held = Held()


class WorkerWeights(Value, frozen=True, kw_only=True):
    """What a worker holds, of the first model loaded; it ends with the connection."""

    complete: bool
    """False where the relay could not follow the stream, or not keep all of it."""
    devices: tuple[DeviceWeights, ...] = ()
