"""Frozen values that cross every border: between the halves, over the socket, to disk.

The same structs are the JSON of the controller's API and of every ``--json`` option.
"""

from __future__ import annotations

from backends.state.base import (
    ALIVE_EVERY_S,
    API_VERSION,
    NOT_JSON,
    SILENCE_MAX_S,
    ControllerInfo,
    Value,
    to_json,
)
from backends.state.chats import (
    Answering,
    ChatBrief,
    ChatChange,
    ChatDelta,
    ChatFrame,
    ChatListing,
    ChatMessage,
    ChatQuestion,
    ChatRequest,
    ChatState,
    ChatTimings,
    Conversation,
    LogChunk,
    Reply,
    Sampling,
    Turn,
)
from backends.state.events import Actor, Event, EventKind, EventTone
from backends.state.links import (
    LAB_DELAY_MAX_MS,
    LAB_RATE_MAX_MB_S,
    Generation,
    Lab,
    Link,
    LinkCommand,
    Pass,
)
from backends.state.machines import (
    Device,
    DeviceKind,
    EngineInfo,
    EngineSource,
    Peer,
    PeerAnswer,
    PeerData,
    PeerFacts,
    PeerQuestion,
    PeerRole,
    PeerState,
    PeerWork,
    ProvisionMode,
    QuestionKind,
    Transport,
)
from backends.state.models import (
    DraftCandidate,
    Drafts,
    DraftTrial,
    Layer,
    LayerBytes,
    ModelCatalogue,
    ModelFile,
    ModelInfo,
    SparseModel,
)
from backends.state.plans import (
    AUTO_DRAFT,
    DRAFT_MAX,
    MTP_DRAFT,
    NGRAM_DRAFT,
    NO_DRAFT,
    Ask,
    DeviceMemory,
    Fallback,
    FlashAttention,
    LayerRange,
    MeasuredSplit,
    MemorySource,
    PairMode,
    Plan,
    PlanMemory,
    ServerSettings,
    Share,
    Speculation,
    Split,
    WorkerSpec,
)
from backends.state.snapshots import (
    CLUSTER_NAME,
    DEFAULT_CLUSTER,
    Acceptance,
    ClusterBrief,
    ClusterSnapshot,
    ClusterState,
    Command,
    DraftNow,
    Failure,
    Leftover,
    Preview,
    ProcessInfo,
    ProcessRole,
    ProcessState,
    RolledBack,
    Speed,
    Step,
    StepState,
)
