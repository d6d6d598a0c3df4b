"""What runs, and the snapshot every screen shows."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated

import msgspec

from backends.state.base import Value
from backends.state.links import Link
from backends.state.machines import EngineInfo, Peer
from backends.state.models import ModelInfo
from backends.state.plans import NO_DRAFT, Fallback, LayerRange, MeasuredSplit, Plan
from backends.state.requests import RequestCounts

CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
"""What a cluster may be called: the name becomes part of files and sockets."""
DEFAULT_CLUSTER = "default"
"""The cluster that is meant where none is named."""


class ProcessRole(StrEnum):
    """What a process is for."""

    WORKER = "worker"
    WORKER_RELAY = "worker-relay"
    """The relay beside a worker."""
    SERVER = "server"
    RELAY = "relay"
    """That of the head before a worker."""
    GATEWAY = "gateway"
    OTHER = "other"


class ProcessState(StrEnum):
    """Where in its life a process is."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    EXITED = "exited"
    UNKNOWN = "unknown"
    """It ran when its machine was last heard of."""


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
    cpu_cores: float | None = None
    """Cores kept busy, the mean of the last seconds; None before there are two
    readings."""


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
    served: bool = False
    """Whether it ended a cluster that served; else a launch, or something smaller."""

    @property
    def sentence(self) -> str:
        """What happened and what to do, on one line."""
        return f"{self.what}. {self.hint}".rstrip() if self.hint else self.what


class RolledBack(Value, frozen=True, kw_only=True):
    """A launch that failed, so that what served before it serves again."""

    generation: int
    """Of the launch."""
    failure: Failure


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


class Guesses(Value, frozen=True, kw_only=True):
    """What became of a draft's guesses, since llama-server started: its own count.

    An answer is counted once it has ended.
    """

    guessed: int = 0
    """Tokens that were guessed."""
    accepted: int = 0
    """Those that were right, and so cost no pass of their own."""
    passes: int = 0
    """Passes that looked at guesses."""
    by_position: tuple[int, ...] = ()
    """How often the first guess of a pass was right, the second, and so on."""

    @property
    def acceptance(self) -> float | None:
        """The part that was right; None before anything was guessed."""
        return self.accepted / self.guessed if self.guessed else None

    @property
    def tokens_per_pass(self) -> float | None:
        """Of a pass that looks at guesses: those that were right, and one more."""
        return 1 + self.accepted / self.passes if self.passes else None


class Speed(Value, frozen=True, kw_only=True):
    """Live figures, measured by polling llama-server's slots."""

    tok_per_s: float | None = None
    """Tokens generated per second, now; None while nothing is generated."""
    last_tok_per_s: float | None = None
    """The figure of the last finished answer."""
    prompt_tok_per_s: float | None = None
    requests_active: int = 0
    slots: int = 0
    """Requests that are served at once, at most."""
    tokens: int = 0
    """Generated since llama-server started: its own count, then what relays see."""
    speculative: bool = False
    """Whether it guesses ahead, with a draft model or otherwise."""
    guesses: Guesses | None = None
    """What became of its guesses; None where it does not guess, or does not tell."""
    ctx_used: int = 0
    """Tokens in the fullest slot's context."""


class Pace(Value, frozen=True, kw_only=True):
    """How fast one way to guess was for so many clients, all else being as it is now:
    the network too.
    """

    draft: str
    """``none``, ``ngram``, ``mtp``, or the draft model's file."""
    draft_max: int = 0
    """Tokens it guessed at a time; 0 without a draft."""
    clients: int = 1
    """Answered at once, in slots of their own."""
    tok_per_s: float
    """All of them together; the median of the latest measurements."""
    count: int
    """How many of these."""
    at: float
    """Unix seconds of the newest."""


class DraftTrial(Value, frozen=True, kw_only=True):
    """What one way to guess was measured to bring, all else being as it is now."""

    model: str = ""
    """What it guessed for."""
    draft: str
    """``none``, ``ngram``, ``mtp``, or the draft model's file."""
    draft_max: int = 0
    """Tokens it guessed at a time; 0 without a draft."""
    tok_per_s: Annotated[float, msgspec.Meta(gt=0)]
    """Of all slots together."""
    tokens: int
    guesses: Guesses = Guesses()
    """What became of them in the trial."""
    cluster: str = ""
    """In which it was made; empty for one of an earlier release, as the next two."""
    network: str = ""
    """Over which, in words: ``ada 2 to 8 ms``."""
    slots: int = 0
    """That answered at once."""
    live_tokens: int = 0
    """Made for clients since, in this way."""
    live_guesses: Guesses | None = None
    """What became of the guesses in the latest of these; None before there are enough.
    """
    live_at: float = 0.0
    """Unix seconds of that."""
    at: float
    """Unix seconds of the trial."""
    speedup: float | None = None
    """Times as fast as none, by the latest that is known; None before both were tried.
    """


class DraftMeasuring(Value, frozen=True, kw_only=True):
    """How far measuring has come; what is measured is ``DraftNow``'s own way."""

    way: int
    """Which of the ways to guess, from 1."""
    ways: int
    """All that are known to be worth it; what they show may add a shorter one."""
    round_number: int = 0
    """Of its questions, from 1; 0 while it is warmed up."""
    rounds_max: int = 0
    """Fewer do where answers take long."""


class DraftNow(Value, frozen=True, kw_only=True):
    """How it guesses now, where that is not simply what the plan says."""

    draft: str
    draft_max: int = 0
    doing: str = ""
    """What is being measured; empty once that has settled."""
    measuring: DraftMeasuring | None = None
    """While a trial runs."""
    why: str = ""
    """Why it guesses so, with the figures."""
    chosen: str = ""
    """What was chosen last, and what before, as an event told it; empty before that."""
    trials: tuple[DraftTrial, ...] = ()


class ClusterBrief(Value, frozen=True, kw_only=True):
    """One of the clusters of a controller, in a line."""

    name: str
    state: ClusterState = ClusterState.IDLE
    model: str = ""
    api_url: str | None = None
    generation: int = 0


class Leftover(Value, frozen=True, kw_only=True):
    """A process that no goal wants and that could not be stopped yet.

    It is ended as soon as its machine can be reached.
    """

    name: str
    peer: str
    why: str = ""


class ClusterSnapshot(Value, frozen=True, kw_only=True):
    """Everything a screen shows, at one moment."""

    seq: int = 0
    at: float = 0.0
    """Unix seconds."""
    cluster: str = DEFAULT_CLUSTER
    """The name of the cluster this is about."""
    generation: int = 0
    """Of the goal this is about; 0 before there was one. Each launch or stop is one."""
    clusters: tuple[ClusterBrief, ...] = ()
    """All clusters of this controller, this one included."""
    leftovers: tuple[Leftover, ...] = ()
    state: ClusterState = ClusterState.IDLE
    message: str = ""
    peers: tuple[Peer, ...] = ()
    plan: Plan | None = None
    """What is wanted to run; None when nothing is."""
    planned: tuple[LayerRange, ...] = ()
    fallbacks: tuple[Fallback, ...] = ()
    """What it would go on with, by what it would lose; ready while it serves."""
    measured: MeasuredSplit | None = None
    model: ModelInfo | None = None
    processes: tuple[ProcessInfo, ...] = ()
    steps: tuple[Step, ...] = ()
    failure: Failure | None = None
    rolled_back: RolledBack | None = None
    """Why this is what served before the last launch, until somebody says otherwise."""
    api_url: str | None = None
    engine: EngineInfo | None = None
    speed: Speed = Speed()
    paces: tuple[Pace, ...] = ()
    """How fast each way to guess was that was measured for this plan and network."""
    draft_now: DraftNow | None = None
    """How it guesses, where that was chosen for the plan; None where the plan says."""
    links: tuple[Link, ...] = ()
    """One per worker behind a relay."""
    requests: RequestCounts | None = None
    """What clients asked of the API; None while no gateway counts."""
    served_since: float | None = None
    drained_since: float | None = None
    """Since when what comes to the API waits because a person said so."""
    controller_pid: int = 0
    last_event: int = 0
    """Number of the newest event of the controller's story; 0 before the first."""

    @property
    def guesses_with(self) -> tuple[str, int]:
        """What guesses now, and how many tokens at a time."""
        if self.draft_now is not None:
            return self.draft_now.draft, self.draft_now.draft_max
        if self.plan is None or self.plan.speculation is None:
            return NO_DRAFT, 0
        return self.plan.server.draft, self.plan.server.draft_max

    @property
    def wanted_generation(self) -> int:
        """Of the goal that a launch would replace; 0 where nothing is wanted."""
        pursued = (ClusterState.STARTING, ClusterState.LOADING, ClusterState.SERVING)
        return self.generation if self.state in pursued else 0

    @property
    def others_run(self) -> bool:
        """Whether another cluster of this controller runs something."""
        return any(
            brief.name != self.cluster and brief.state is not ClusterState.IDLE
            for brief in self.clusters
        )
