"""Splits, plans, and the split that was measured."""

from __future__ import annotations

import msgspec

from backends.state.base import Value


class Share(Value, frozen=True, kw_only=True):
    """Whole layers on one device; the output counts as one more layer."""

    device: str
    layers: int


class Split(Value, frozen=True, kw_only=True):
    """Which device holds which layers, in order: layer 0 first, the output last.

    ``shares`` sum to ``n_layer + 1``. A device may hold none. The head's CPU, where it
    appears, is first: llama.cpp offloads from the end.
    """

    n_layer: int
    shares: tuple[Share, ...]


class LayerRange(msgspec.Struct, frozen=True, array_like=True):
    """``[device, first, last]``, both ends held; ``last == n_layer`` is the output."""

    device: str
    first: int
    last: int


class WorkerSpec(Value, frozen=True, kw_only=True):
    """One rpc-server of a plan."""

    name: str
    peer: str = "local"
    device: str = "CPU"
    """Name of the device it exposes, as the engine calls it (``-d``)."""
    threads: int | None = None
    endpoint: str = ""
    """``host:port`` of an rpc-server somebody else started, as the head reaches it."""


class Plan(Value, frozen=True, kw_only=True):
    """Everything a launch needs: split, order, context, flags."""

    model: str
    split: Split
    workers: tuple[WorkerSpec, ...] = ()
    head: str = "local"
    ctx_size: int = 4096
    parallel: int = 1
    api_port: int | None = None
    """None: the configured port, or the next free one."""
    engine: str | None = None
    """Engine directory; None: the one found first."""
    relay: bool = True
    """Whether a metering relay stands before every worker."""
    extra_args: tuple[str, ...] = ()
    """Further arguments for llama-server, passed on as they are."""


class DeviceBuffers(Value, frozen=True, kw_only=True):
    """Bytes llama-server's log says it put on one device."""

    device: str
    model_bytes: int = 0
    kv_bytes: int = 0
    compute_bytes: int = 0


class MeasuredSplit(Value, frozen=True, kw_only=True):
    """The split llama-server's own log reports after the load."""

    layers: tuple[LayerRange, ...]
    buffers: tuple[DeviceBuffers, ...] = ()
    mismatches: tuple[str, ...] = ()
    """One sentence per difference from the plan; empty when they agree."""
