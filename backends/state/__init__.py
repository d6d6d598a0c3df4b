"""Frozen values that cross every border: between the halves, over the socket, to disk.

The same structs are the JSON of the controller's API and of every ``--json`` option.
"""

from __future__ import annotations

from backends.state.base import NOT_JSON, Value, to_json
from backends.state.border import (
    ALIVE_EVERY_S,
    API_VERSION,
    SILENCE_MAX_S,
    ControllerInfo,
)
from backends.state.chat import (
    ChatDelta,
    ChatMessage,
    ChatRequest,
    ChatTimings,
    LogChunk,
    Sampling,
)
from backends.state.chats import (
    Answering,
    ChatBrief,
    ChatChange,
    ChatFrame,
    ChatListing,
    ChatQuestion,
    ChatState,
    Conversation,
    Reply,
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
from backends.state.memory import DeviceMemory, MemorySource, PlanMemory
from backends.state.models import (
    DraftCandidate,
    Drafts,
    DraftTrial,
    Layer,
    LayerBytes,
    ModelCatalogue,
    ModelFile,
    ModelInfo,
    ThinModel,
)
from backends.state.plans import (
    AUTO_DRAFT,
    DRAFT_MAX,
    MTP_DRAFT,
    NGRAM_DRAFT,
    NO_DRAFT,
    Ask,
    Fallback,
    FlashAttention,
    LayerRange,
    MeasuredSplit,
    PairMode,
    Plan,
    ServerSettings,
    Share,
    Speculation,
    Split,
    WorkerSpec,
)
from backends.state.previews import Command, Preview
from backends.state.snapshots import (
    CLUSTER_NAME,
    DEFAULT_CLUSTER,
    Acceptance,
    ClusterBrief,
    ClusterSnapshot,
    ClusterState,
    DraftNow,
    Failure,
    Leftover,
    ProcessInfo,
    ProcessRole,
    ProcessState,
    RolledBack,
    Speed,
    Step,
    StepState,
)
