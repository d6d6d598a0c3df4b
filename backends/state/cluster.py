"""What runs, and the snapshot every screen shows."""

from __future__ import annotations

from enum import StrEnum

from backends.state.base import Value
from backends.state.links import Link
from backends.state.machines import Device, Peer
from backends.state.models import ModelInfo
from backends.state.plans import LayerRange, MeasuredSplit, Plan


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
    links: tuple[Link, ...] = ()
    """One per worker behind a relay."""
    served_since: float | None = None
    controller_pid: int = 0
