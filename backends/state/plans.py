"""Splits, plans, and the split that was measured."""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property

import msgspec

from backends.state.base import Value

NO_DRAFT = "none"
NGRAM_DRAFT = "ngram"
"""Drafts from earlier text, without a draft model."""
MTP_DRAFT = "mtp"
"""Drafts with layers of the model itself (multi-token prediction)."""
AUTO_DRAFT = "auto"
"""The fastest of these and the best draft model, as measured."""
DRAFT_MAX = 8
"""Tokens drafted at a time by default."""


class Objective(StrEnum):
    DECODE = "decode"
    """Most tokens per second for one client."""
    FIRST_TOKEN = "first-token"
    """Shortest wait for the first token of an answer."""
    THROUGHPUT = "throughput"
    """Most tokens per second for all slots together."""
    NETWORK = "network"
    """Fewest bytes over the network."""
    CONTEXT = "context"
    """Longest context that fits."""


AIMS = {
    Objective.DECODE: "most tok/s",
    Objective.FIRST_TOKEN: "first token",
    Objective.NETWORK: "least network",
    Objective.THROUGHPUT: "all slots",
    Objective.CONTEXT: "longest context",
}
"""Words for people."""


class MemorySource(StrEnum):
    """The sources of a figure, the least certain first."""

    PREDICTED = "predicted"
    """Our own arithmetic."""
    ENGINE = "engine"
    """llama.cpp's own, asked without loading anything; whole MiB."""
    MEASURED = "measured"
    """From llama-server's log after the load."""


class DeviceMemory(Value, frozen=True, kw_only=True):
    """Bytes of a plan on one device.

    The head's CPU has the token embedding, whether it holds layers or not. It also has
    the buffers that llama-server keeps beside its devices.
    """

    device: str
    model_bytes: int = 0
    kv_bytes: int = 0
    compute_bytes: int = 0
    source: MemorySource = MemorySource.PREDICTED

    @property
    def total_bytes(self) -> int:
        return self.model_bytes + self.kv_bytes + self.compute_bytes


class PlanMemory(Value, frozen=True, kw_only=True):
    """The memory of a plan's model, the head's CPU and every device with layers."""

    devices: tuple[DeviceMemory, ...]
    note: str = ""
    """Why the engine was not asked, in one sentence; empty when it was."""


class Share(Value, frozen=True, kw_only=True):
    """Whole layers on one device; the output counts as one more layer."""

    device: str
    layers: int


class Split(Value, frozen=True, kw_only=True):
    """The layers of each device, in order: layer 0 first, the output last.

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


class Fit(Value, frozen=True, kw_only=True):
    """The longest context with which a model fits, and split and speed it has then."""

    ctx_size: int = 0
    """In tokens; 0: it does not fit."""
    why: str = ""
    """Why it does not fit, in one sentence."""
    n_layer: int = 0
    layers: tuple[LayerRange, ...] = ()
    memory: tuple[DeviceMemory, ...] = ()
    """Per device of the split that holds something, in its order."""
    source: MemorySource = MemorySource.PREDICTED
    """``ENGINE`` where llama.cpp was asked."""
    note: str = ""
    """Why it was not asked."""
    tok_per_s: float | None = None
    """Predicted, for one client; None where it does not fit."""
    low: float = 0.0
    high: float = 0.0
    """Nine of ten runs are between these."""


class WorkerSpec(Value, frozen=True, kw_only=True, dict=True):
    name: str
    peer: str = "local"
    devices: tuple[str, ...] = ("CPU",)
    """Names of the devices it exposes, in its own order (``-d``)."""
    place: str = ""
    """The name of its devices in a split; empty: its own name."""
    threads: int | None = None
    cache: str = ""
    """The folder of its own cache (``rpc-server -c``); empty: it keeps none."""
    endpoint: str = ""
    """``host:port`` of an rpc-server somebody else started, as the head reaches it."""

    @cached_property
    def device_ids(self) -> tuple[str, ...]:
        """Its devices as a split names them: ``worker1/CPU``, ``mini/MTL0``."""
        return tuple(f"{self.place or self.name}/{name}" for name in self.devices)


class FlashAttention(StrEnum):
    """True if attention runs in one fused step, which keeps no table of all pairs."""

    AUTO = "auto"
    """If the devices can: llama.cpp decides while it loads."""
    ON = "on"
    OFF = "off"


class PairMode(StrEnum):
    """The workers that have a relay beside them too."""

    AUTO = "auto"
    """Beside every worker of ours on another machine than the head's."""
    ALWAYS = "always"
    """Beside those on the head's machine too."""
    NEVER = "never"


class ServerSettings(Value, frozen=True, kw_only=True):
    """Settings of llama-server, without the context and the placement."""

    cache_type_k: str = "f16"
    """The type of K in the KV cache; see ``split.buffers``."""
    cache_type_v: str = "f16"
    slots: int = 1
    """Requests answered at once; they share the context evenly."""
    flash_attention: FlashAttention = FlashAttention.AUTO
    threads: int | None = None
    """Threads of llama-server itself; None: as llama.cpp chooses."""
    draft: str = NO_DRAFT
    """A draft model's file, ``ngram``, ``mtp``, ``auto`` or ``none``."""
    draft_max: int = DRAFT_MAX
    """Tokens it drafts at a time."""


class Speculation(Value, frozen=True, kw_only=True):
    """A speculation method: it drafts tokens, and several share one round trip.

    It runs on the head, but MTP layers run on the device of the model's last layers.
    """

    type: str
    """As llama-server calls it: ``draft-simple``, ``ngram-map-k``."""
    model: str = ""
    """The draft model's file; empty with ``ngram`` and ``mtp``."""
    device: str = ""
    """The head's device with all of that model, or the device with the MTP layers;
    empty with ``ngram``."""
    n_layer: int = 0
    """The draft model's layers."""
    memory: tuple[DeviceMemory, ...] = ()
    """Its memory beside the model, for the plan's context and slots."""
    instead: tuple[Speculation, ...] = ()
    """The other methods that ``auto`` compares; there is room for all of them."""

    @property
    def draft(self) -> str:
        return self.model or (MTP_DRAFT if self.device else NGRAM_DRAFT)

    @property
    def methods(self) -> tuple[Speculation, ...]:
        """All methods that ``auto`` compares, else this one."""
        return (self, *self.instead)


class Ask(Value, frozen=True, kw_only=True):
    """A person's request; None is left to the configuration."""

    model: str
    workers: int | None = None
    """CPU workers on this machine, for trying things; 0: none, not even by default."""
    peers: tuple[str, ...] | None = None
    """Machines whose devices take part beside the head's; None: all that are ready."""
    head: str | None = None
    """The machine of llama-server; None: ours, or the only one with the model."""
    counts: tuple[int, ...] | None = None
    """Whole layers per device in the order of the plan, the output counted as one more.

    The head's CPU may be left out.
    """
    split: dict[str, int] | None = None
    """The same by the name of the device; those not named get none."""
    experts: tuple[LayerRange, ...] = ()
    """Layers whose experts are to be on another device, with a given split."""
    exclude: tuple[str, ...] = ()
    """Devices that take no part."""
    objective: Objective | None = None
    """The aim of a best split; None: layers by memory, or as told."""
    pins: tuple[str, ...] = ()
    """Conditions for a best split, as ``--pin`` takes them."""
    worker_threads: int | None = None
    """Threads of each CPU worker on this machine."""
    worker_cache: str = ""
    """The folder of the cache of each of these; empty: they keep none."""
    ctx_size: int | None = None
    depth: int | None = None
    """Tokens in context that the speed is predicted at; None: 512, or half of it."""
    server: ServerSettings = ServerSettings()
    api_port: int | None = None
    relay: bool = True
    pair: PairMode | None = None
    force: bool = False
    """Launch also what is predicted not to fit in a device's memory."""
    extra_args: tuple[str, ...] = ()
    directory: str = ""
    """The folder of relative paths in ``extra_args``, on this machine."""


class Plan(Value, frozen=True, kw_only=True, dict=True):
    """Everything a launch needs: split, order, context, flags."""

    model: str
    split: Split
    workers: tuple[WorkerSpec, ...] = ()
    head: str = "local"
    ctx_size: int = 4096
    server: ServerSettings = ServerSettings()
    speculation: Speculation | None = None
    """The method for the draft of ``server``; None without one."""
    api_port: int | None = None
    """None: the configured port, or the next free one."""
    engine: str | None = None
    """Engine directory; None: the one found first."""
    relay: bool = True
    """True if a metering relay stands before every worker."""
    pair: PairMode = PairMode.AUTO
    """True if another one stands beside it."""
    keep_awake: bool = False
    """True if its machines are held awake while it runs."""
    experts: tuple[LayerRange, ...] = ()
    """Layers whose experts are on another device than they are (``-ot``)."""
    extra_args: tuple[str, ...] = ()
    """Further arguments for llama-server, passed on as they are."""
    prompt_cache_mib: int | None = None
    """Prompts llama-server may keep in the head's memory; told when it is launched."""
    asked: Ask | None = None
    """The request behind it, for planning again on other facts."""

    @cached_property
    def worker_of(self) -> dict[str, WorkerSpec]:
        """The worker of each device that is not the head's own."""
        return {device: w for w in self.workers for device in w.device_ids}

    @property
    def gives_chat_template(self) -> bool:
        return any(arg.startswith("--chat-template") for arg in self.extra_args)


class Fallback(Value, frozen=True, kw_only=True):
    """The plan that a cluster would go on with if it lost something."""

    lost: str
    """A machine, or one of several workers on the same."""
    split: tuple[LayerRange, ...] = ()
    """Empty where what is left cannot do it."""
    ctx_size: int = 0
    memory: tuple[DeviceMemory, ...] = ()
    """Its memory; predicted until the engine was asked."""
    why: str = ""
    """Why what is left cannot do it, and what would do."""


class MeasuredSplit(Value, frozen=True, kw_only=True):
    """The split after the load: what the relays saw arrive, or llama-server's log says.

    The bytes per device are always those of the log.
    """

    layers: tuple[LayerRange, ...]
    in_part: tuple[LayerRange, ...] = ()
    """Layers of which a worker's device holds only some tensors (``-ot``)."""
    buffers: tuple[DeviceMemory, ...] = ()
    mismatches: tuple[str, ...] = ()
    """One sentence per difference from the plan; empty when they agree."""
