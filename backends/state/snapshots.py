"""The running processes, the events, and the snapshot that every screen shows."""

from __future__ import annotations

import re
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from backends.state.base import Value
from backends.state.links import Link
from backends.state.machines import EngineInfo, Peer
from backends.state.models import DraftTrial, ModelInfo
from backends.state.plans import (
    NO_DRAFT,
    DeviceMemory,
    Fallback,
    LayerRange,
    MeasuredSplit,
    Plan,
)
from backends.state.speeds import Alternative, ClusterSpeeds, Forecast, LastRun


class EventKind(StrEnum):
    LAUNCH = "launch"
    """Somebody asked for a plan."""
    STOP = "stop"
    """Somebody asked for the end."""
    DRAIN = "drain"
    """Somebody let requests wait, or go on; or answers ended before a new split."""
    SERVING = "serving"
    TAKEN_UP = "taken up"
    """Another controller looks after what serves."""
    STOPPED = "stopped"
    DIED = "died"
    """A process ended by itself."""
    FAILED = "failed"
    """The goal is not reached, for another reason."""
    WAITING = "waiting"
    """The goal waits for a machine."""
    WAY = "way"
    """The way to a worker has something to know about."""
    MENDED = "mended"
    PROCESS = "process"
    """Somebody restarted or killed a process."""
    DRAFT = "draft"
    """A draft was measured, or took another's place."""
    PEER = "peer"
    """A machine came, went or fell silent."""
    PEERS = "peers"
    """Somebody added or removed a machine, or put something there."""
    LAB = "lab"
    ENGINE = "engine"
    SETTINGS = "settings"


class EventTone(StrEnum):
    INFORMATION = "information"
    WARNING = "warning"
    ERROR = "error"


class Actor(Value, frozen=True, kw_only=True):
    """The author of an event; without a program it is the controller."""

    program: str = ""
    """``console``, or the command: ``up``."""
    user: str = ""
    host: str = ""
    pid: int = 0
    tty: str = ""
    """Its terminal, without ``/dev/``; empty where it has none."""

    @property
    def person(self) -> str:
        """``anna@studio``; empty for the controller."""
        return f"{self.user}@{self.host}" if self.program else ""

    @property
    def details(self) -> str:
        """``console, pid 4711 on pts/3``."""
        if not self.program:
            return "controller"
        where = f" on {self.tty}" if self.tty else ""
        return f"{self.program}, pid {self.pid}{where}"


class Event(Value, frozen=True, kw_only=True, omit_defaults=True):
    number: int
    """Grows by one from event to event."""
    at: datetime
    """Wall time, with its offset from UTC."""
    kind: EventKind
    text: str
    """One sentence; what a person did stands without who it was."""
    tone: EventTone = EventTone.INFORMATION
    by: Actor = Actor()
    cluster: str = ""
    """Empty for what concerns all of them."""
    peer: str = ""
    process: str = ""
    exit_code: int | None = None
    exit_signal: int | None = None
    hint: str = ""
    """The way out."""
    evidence: tuple[str, ...] = ()
    """The last lines of the process's log."""

    @property
    def sentence(self) -> str:
        return f"{self.by.person} {self.text}" if self.by.program else self.text


class MarkKind(StrEnum):
    EVENT = "event"
    ANSWER = "answer"
    """An answer of the model ended."""
    FAULT = "fault"


class RecordMark(NamedTuple):
    """A moment of a record that one may look for."""

    at_s: float
    kind: MarkKind
    text: str


CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
"""The form of a cluster's name, which becomes part of files and sockets."""
DEFAULT_CLUSTER = "default"
"""The cluster that is meant where none is named."""


class ProcessRole(StrEnum):
    WORKER = "worker"
    WORKER_RELAY = "worker-relay"
    """The relay beside a worker."""
    SERVER = "server"
    RELAY = "relay"
    """The head's relay before a worker."""
    GATEWAY = "gateway"
    CONTROLLER = "controller"
    AGENT = "agent"
    OTHER = "other"


class ProcessState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    NOT_RESPONDING = "not responding"
    """A signal (SIGSTOP) holds it."""
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
    restarts: int = 0
    """Times that it was started again since its goal first served."""


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
    """True if it ended a cluster that served; else a launch, or something smaller."""

    @property
    def sentence(self) -> str:
        return f"{self.what}. {self.hint}".rstrip() if self.hint else self.what


class RolledBack(Value, frozen=True, kw_only=True):
    """A launch that failed, so that what served before it serves again."""

    generation: int
    """Of the launch."""
    failure: Failure


class StepState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class Step(Value, frozen=True, kw_only=True):
    id: str
    title: str
    state: StepState = StepState.PENDING
    started_at: float | None = None
    seconds: float | None = None
    detail: str = ""
    progress: float | None = None
    """0…1 where known."""


class ClusterState(StrEnum):
    IDLE = "idle"
    STARTING = "starting"
    LOADING = "loading"
    SERVING = "serving"
    STOPPING = "stopping"
    FAILED = "failed"


class Acceptance(Value, frozen=True, kw_only=True):
    """Drafted tokens since llama-server started, by its own count.

    It counts an answer when the answer ends.
    """

    drafted: int = 0
    accepted: int = 0
    passes: int = 0
    """Passes that checked drafted tokens."""
    by_position: tuple[int, ...] = ()
    """Accepted tokens by their position in the draft."""

    @property
    def rate(self) -> float | None:
        """The accepted part; None before anything was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def tokens_per_pass(self) -> float | None:
        """Tokens of a pass that checks a draft: the accepted ones, and one more."""
        return 1 + self.accepted / self.passes if self.passes else None


class Speed(Value, frozen=True, kw_only=True):
    """Live figures, measured by polling llama-server's slots."""

    tok_per_s: float | None = None
    """Tokens generated per second, now; None while nothing is generated."""
    last_tok_per_s: float | None = None
    """The mean of the last finished answer; None before one under the present labs."""
    prompt_tok_per_s: float | None = None
    prompt_tokens: int = 0
    """Tokens that were read at that speed, without those in the cache."""
    requests_active: int = 0
    slots: int = 0
    """Requests that are served at once, at most."""
    tokens: int = 0
    """Generated since llama-server started: its own count, then what relays see."""
    speculative: bool = False
    """True if tokens are drafted, with a draft model or otherwise."""
    acceptance: Acceptance | None = None
    """None if nothing is drafted, or if llama-server does not tell."""
    ctx_used: int = 0
    """Tokens in the fullest slot's context."""
    last_depth: int = 0
    """The same halfway through the last finished answer; 0: not known."""


class DraftNow(Value, frozen=True, kw_only=True):
    """The speculation method that runs, if the plan does not say it alone."""

    draft: str
    doing: str = ""
    """The present measurement, or the next; empty once the comparison is over."""
    why: str = ""
    """Why this method runs, with the figures."""
    trials: tuple[DraftTrial, ...] = ()
    """The measurements of this plan over this network."""


class ClusterBrief(Value, frozen=True, kw_only=True):
    """A cluster of a controller, in a line."""

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
    no_engine: bool = False
    """True if this machine has no llama.cpp that a launch could use."""
    peers: tuple[Peer, ...] = ()
    plan: Plan | None = None
    """The plan that is wanted to run; None if nothing is."""
    planned: tuple[LayerRange, ...] = ()
    fallbacks: tuple[Fallback, ...] = ()
    """The plans for losses, by the loss, when somebody last looked."""
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
    draft_now: DraftNow | None = None
    """The method that ``auto`` runs; None if the plan says the method."""
    last_run: LastRun | None = None
    """The last measured run of what serves; None before the first."""
    links: tuple[Link, ...] = ()
    """One per worker behind a relay."""
    requests: RequestCounts | None = None
    """Counts of the API's requests; None while no gateway counts."""
    served_since: float | None = None
    drained_since: float | None = None
    """Since when what comes to the API waits because a person said so."""
    controller_pid: int = 0
    last_event: int = 0
    """Number of the newest event of the controller's story; 0 before the first."""

    @property
    def drafts_with(self) -> tuple[str, int]:
        """The draft that runs, and the tokens it drafts at a time."""
        plan = self.plan
        draft = NO_DRAFT
        if self.draft_now is not None:
            draft = self.draft_now.draft
        elif plan is not None and plan.speculation is not None:
            draft = plan.server.draft
        return draft, plan.server.draft_max if plan and draft != NO_DRAFT else 0

    @property
    def wanted_generation(self) -> int:
        """Of the goal that a launch would replace; 0 where nothing is wanted."""
        pursued = (ClusterState.STARTING, ClusterState.LOADING, ClusterState.SERVING)
        return self.generation if self.state in pursued else 0

    @property
    def others_run(self) -> bool:
        return any(
            brief.name != self.cluster and brief.state is not ClusterState.IDLE
            for brief in self.clusters
        )


class KeyCounts(Value, frozen=True, kw_only=True):
    """Requests with one API key since the gateway began."""

    requests: int = 0
    in_flight: int = 0
    """At this moment."""
    limited: int = 0
    """Refused because the key allows no more at once, or in a minute."""


class RequestCounts(Value, frozen=True, kw_only=True):
    """Requests for work (whatever is sent by POST) since the gateway began."""

    waiting: int = 0
    """Held at this moment because nothing serves."""
    in_flight: int = 0
    """With llama-server at this moment, or next once a slot is free."""
    fragile: int = 0
    """Of these, answers that no other llama-server could go on with."""
    drains: bool = False
    """True if what comes waits until what is in flight has ended."""
    passed: int = 0
    """Answered to the end, by whatever status. This and the next two leave out requests
    that only count tokens."""
    failed: int = 0
    """Answered by the gateway with an error, or cut."""
    left: int = 0
    """Ended by their clients before the answer was whole."""
    replayed: int = 0
    """Asked again, of another llama-server, before anything had been answered."""
    continued: int = 0
    """Streams that another llama-server went on with after they had broken off."""
    refused: int = 0
    """Not let in: without a key, too long, no JSON, or for a page of another site."""
    held: int = 0
    """Requests that waited and then went on to llama-server."""
    held_longest_s: float = 0.0
    """Longest wait of those that were held last."""
    keys: dict[str, KeyCounts] = {}
    """By the name of the key."""


class ProcessCommand(Value, frozen=True, kw_only=True):
    """One process a launch starts, and where."""

    machine: str
    name: str
    role: ProcessRole
    argv: tuple[str, ...]


class Preview(Value, frozen=True, kw_only=True):
    """The effects of launching a plan; nothing of it has been started."""

    plan: Plan
    layers: tuple[LayerRange, ...]
    memory: tuple[DeviceMemory, ...]
    """Per device of the split, in its order."""
    available_bytes: dict[str, int]
    """The room of each of them, if it is known."""
    commands: tuple[ProcessCommand, ...]
    """In the order in which they start; a port not yet chosen is ``<port>``."""
    notes: tuple[str, ...] = ()
    """Remarks before a launch: one sentence each."""
    refusal: Failure | None = None
    """Why it would not be launched: a device is too small for its share."""
    forecast: Forecast | None = None
    """Its predicted speed; None without any known device."""
    undrafted: Forecast | None = None
    """The same without its draft; None if it has none."""
    speeds: ClusterSpeeds | None = None
    """The speeds that it was predicted with, for predicting other splits."""
    why: str = ""
    """The reasons for its split, in one sentence each."""
    is_exact: bool = True
    """False if a best split was sought and not every set of devices was tried."""
    alternatives: tuple[Alternative, ...] = ()
    """Other plans, if they were asked for."""
    token: str = ""
    """A launch with it uses what was found out for this; good for a minute."""
