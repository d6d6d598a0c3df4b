"""What a plan takes of each device's memory, and who says so."""

from __future__ import annotations

from enum import StrEnum

from backends.state.base import Value


class MemorySource(StrEnum):
    """How far a figure can be trusted, least first."""

    PREDICTED = "predicted"
    """Our own arithmetic."""
    ENGINE = "engine"
    """llama.cpp's own, asked without loading anything; whole MiB."""
    MEASURED = "measured"
    """What llama-server's log said after the load."""


class DeviceMemory(Value, frozen=True, kw_only=True):
    """Bytes of a plan on one device.

    The head's CPU has the token embedding and the buffers llama-server keeps beside
    its devices, whether it holds layers or not.
    """

    device: str
    model_bytes: int = 0
    kv_bytes: int = 0
    compute_bytes: int = 0
    source: MemorySource = MemorySource.PREDICTED

    @property
    def total_bytes(self) -> int:
        """Weights, KV cache and compute buffers."""
        return self.model_bytes + self.kv_bytes + self.compute_bytes


class PlanMemory(Value, frozen=True, kw_only=True):
    """The memory of a plan's model, the head's CPU and every device with layers."""

    devices: tuple[DeviceMemory, ...]
    note: str = ""
    """Why the engine was not asked, in one sentence; empty when it was."""
