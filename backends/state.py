"""Frozen values that cross every border: between the halves, over the socket, to disk.

The same structs are the JSON of the controller's API and of every ``--json`` option.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every value: frozen, compared by content, built by keyword."""


# --- machines ---------------------------------------------------------------


class DeviceKind(StrEnum):
    """What computes behind a device."""

    CPU = "cpu"
    CUDA = "cuda"
    METAL = "metal"
    VULKAN = "vulkan"
    HIP = "hip"
    OTHER = "other"


class Device(Value, frozen=True, kw_only=True):
    """Something that can hold layers."""

    id: str
    """``worker1/CPU``: unique in the cluster; what a split names."""
    name: str
    """``CPU``, ``CUDA0``, ``MTL0``: what the engine calls it on its own machine."""
    kind: DeviceKind = DeviceKind.OTHER
    description: str = ""
    total_bytes: int = 0
    free_bytes: int = 0
    budget_bytes: int | None = None
    """What the user allows; None means all that is free."""
    memory_pool: str = ""
    """Devices with the same pool draw on the same physical memory."""

    @property
    def usable_bytes(self) -> int:
        """Bytes a plan may put here: the user's budget, else what is free."""
        return self.free_bytes if self.budget_bytes is None else self.budget_bytes


class PeerRole(StrEnum):
    """What a peer does in the present plan."""

    HEAD = "head"
    WORKER = "worker"
    IDLE = "idle"


class PeerState(StrEnum):
    """How a peer is."""

    READY = "ready"
    STARTING = "starting"
    SERVING = "serving"
    FAILED = "failed"
    UNREACHABLE = "unreachable"


class Peer(Value, frozen=True, kw_only=True):
    """A machine (or a local worker standing for one) the console knows."""

    name: str
    role: PeerRole = PeerRole.IDLE
    state: PeerState = PeerState.READY
    transport: str = "local"
    rtt_ms: float | None = None
    devices: tuple[Device, ...] = ()
    note: str = ""


# --- models -----------------------------------------------------------------


class LayerBytes(Value, frozen=True, kw_only=True):
    """Bytes of one layer's weights by group."""

    attention: int = 0
    ffn: int = 0
    experts: int = 0
    recurrent: int = 0
    other: int = 0
    """Norms, scales and whatever else the layer holds."""


class Layer(Value, frozen=True, kw_only=True):
    """One transformer block of a GGUF."""

    index: int
    bytes: int
    groups: LayerBytes = LayerBytes()
    quants: dict[str, int] = {}
    """Quantisation type name to bytes, for example ``{"Q4_K": 1048576}``."""
    kv_bytes_per_token: int = 0
    """Bytes of f16 K and V one token adds; 0 for recurrent layers."""
    kv_window: int = 0
    """Tokens it keeps at most (sliding-window attention); 0: the whole context."""


class ModelInfo(Value, frozen=True, kw_only=True):
    """What a GGUF header tells: enough to plan, nothing of the weights."""

    path: str
    files: tuple[str, ...] = ()
    """All parts of a split GGUF in order; one path otherwise."""
    name: str = ""
    arch: str
    file_type: str = ""
    gguf_version: int = 3
    byte_order: str = "little"
    size_bytes: int = 0
    """Bytes of all files on disk."""
    n_tensors: int = 0
    n_layer: int
    n_embd: int
    n_vocab: int
    n_head: int = 0
    n_head_kv: int = 0
    n_expert: int = 0
    n_expert_used: int = 0
    n_ctx_train: int = 0
    has_chat_template: bool = False
    tied_output: bool = False
    """The output reuses the token embedding; ``output_bytes`` then counts it again."""
    layers: tuple[Layer, ...] = ()
    output_bytes: int = 0
    embedding_bytes: int = 0
    tensor_bytes: int = 0
    """All tensor bytes as stored, each once."""
    unknown_types: tuple[str, ...] = ()
    """Tensor types this version of ``gguf`` cannot size."""


class ModelFile(Value, frozen=True, kw_only=True):
    """One model found on disk."""

    path: str
    name: str
    size_bytes: int
    source: str
    """Where it was found: ``models``, ``huggingface``, ``lmstudio``, ``ollama``…"""
    arch: str = ""
    file_type: str = ""
    n_layer: int = 0
    n_ctx_train: int = 0
    problem: str = ""
    """Why it cannot be used; empty when it can."""


class ModelCatalogue(Value, frozen=True, kw_only=True):
    """All models found, and whether the search is still going on."""

    models: tuple[ModelFile, ...] = ()
    folders: tuple[str, ...] = ()
    scanning: bool = False
    scanned_at: float | None = None


# --- splits and plans -------------------------------------------------------


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


# --- what runs --------------------------------------------------------------


class ProcessRole(StrEnum):
    """What a process is for."""

    WORKER = "worker"
    SERVER = "server"
    RELAY = "relay"
    OTHER = "other"


class ProcessState(StrEnum):
    """Where in its life a process is."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    EXITED = "exited"


class ProcessInfo(Value, frozen=True, kw_only=True):
    """One process directory, as seen now."""

    name: str
    role: ProcessRole
    peer: str = "local"
    state: ProcessState
    pid: int | None = None
    port: int | None = None
    argv: tuple[str, ...] = ()
    started_at: float = 0.0
    """Unix seconds."""
    exit_code: int | None = None
    exit_signal: int | None = None
    log_path: str = ""
    rss_bytes: int | None = None


class Failure(Value, frozen=True, kw_only=True):
    """One thing that went wrong: what, where, what to do, and the evidence."""

    what: str
    hint: str = ""
    process: str = ""
    argv: tuple[str, ...] = ()
    exit_code: int | None = None
    exit_signal: int | None = None
    log_tail: tuple[str, ...] = ()
    at: float = 0.0

    @property
    def sentence(self) -> str:
        """What happened and what to do, on one line."""
        return f"{self.what}. {self.hint}".rstrip() if self.hint else self.what


class StepState(StrEnum):
    """Progress of one step of a launch."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class Step(Value, frozen=True, kw_only=True):
    """One step of a launch or a stop, with its time."""

    id: str
    title: str
    state: StepState = StepState.PENDING
    started_at: float | None = None
    seconds: float | None = None
    detail: str = ""
    progress: float | None = None
    """0…1 where known."""


class ClusterState(StrEnum):
    """What the cluster as a whole is doing."""

    IDLE = "idle"
    STARTING = "starting"
    LOADING = "loading"
    SERVING = "serving"
    STOPPING = "stopping"
    FAILED = "failed"


class Speed(Value, frozen=True, kw_only=True):
    """Live figures, measured by polling llama-server's slots."""

    tok_per_s: float | None = None
    """Tokens generated per second, now; None while nothing is generated."""
    last_tok_per_s: float | None = None
    """The figure of the last finished answer."""
    prompt_tok_per_s: float | None = None
    requests_active: int = 0
    ctx_used: int = 0
    """Tokens in the fullest slot's context."""


class EngineInfo(Value, frozen=True, kw_only=True):
    """One llama.cpp on this machine."""

    directory: str
    source: str
    """How it was found: ``config``, ``env``, ``cache`` or ``path``."""
    server_path: str
    worker_path: str
    version: str = ""
    """Build number and commit as llama-server prints them."""
    rpc_protocol: str = ""
    """``major.minor.patch``; empty when unknown."""
    backends: tuple[str, ...] = ()
    devices: tuple[Device, ...] = ()


class ClusterSnapshot(Value, frozen=True, kw_only=True):
    """Everything a screen shows, at one moment."""

    seq: int = 0
    at: float = 0.0
    """Unix seconds."""
    state: ClusterState = ClusterState.IDLE
    message: str = ""
    peers: tuple[Peer, ...] = ()
    plan: Plan | None = None
    """What is wanted to run; None when nothing is."""
    planned: tuple[LayerRange, ...] = ()
    measured: MeasuredSplit | None = None
    model: ModelInfo | None = None
    processes: tuple[ProcessInfo, ...] = ()
    steps: tuple[Step, ...] = ()
    failure: Failure | None = None
    api_url: str | None = None
    engine: EngineInfo | None = None
    speed: Speed = Speed()
    served_since: float | None = None
    controller_pid: int = 0


# --- chat -------------------------------------------------------------------


class ChatMessage(Value, frozen=True, kw_only=True):
    """One turn of a conversation."""

    role: str
    content: str


class Sampling(Value, frozen=True, kw_only=True):
    """How the next token is drawn; None leaves the server's default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    max_tokens: int | None = None
    seed: int | None = None


class ChatRequest(Value, frozen=True, kw_only=True):
    """What is asked of the model."""

    messages: tuple[ChatMessage, ...]
    sampling: Sampling = Sampling()


class ChatTimings(Value, frozen=True, kw_only=True):
    """Figures of one answer, as llama-server measured them."""

    prompt_tokens: int = 0
    prompt_ms: float = 0.0
    tokens: int = 0
    tok_per_s: float = 0.0
    first_token_s: float | None = None
    """Seconds from sending the request to its first token, measured by us."""


class ChatDelta(Value, frozen=True, kw_only=True):
    """One piece of a streamed answer; the last one has ``done``."""

    text: str = ""
    reasoning: str = ""
    done: bool = False
    finish_reason: str = ""
    prompt_progress: float | None = None
    """0…1 while the prompt is being read."""
    timings: ChatTimings | None = None
    failure: Failure | None = None


class LogChunk(Value, frozen=True, kw_only=True):
    """Text of a process log from byte ``offset`` to ``next_offset``."""

    name: str
    text: str
    offset: int
    next_offset: int
    restarted: bool = False
    """The log is shorter than it was: a new process of the same name."""


def to_json(value: Any, *, indent: int = 0) -> str:
    """Encode any value of this module as JSON text."""
    raw = msgspec.json.encode(value)
    return (msgspec.json.format(raw, indent=indent) if indent else raw).decode()
