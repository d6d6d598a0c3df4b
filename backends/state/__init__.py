"""Frozen values that cross every border: between the halves, over the socket, to disk.

The same structs are the JSON of the controller's API and of every ``--json`` option.
"""

from __future__ import annotations

from backends.state.base import Value, to_json
from backends.state.chat import (
    ChatDelta,
    ChatMessage,
    ChatRequest,
    ChatTimings,
    LogChunk,
    Sampling,
)
from backends.state.cluster import (
    ClusterSnapshot,
    ClusterState,
    EngineInfo,
    Failure,
    ProcessInfo,
    ProcessRole,
    ProcessState,
    Speed,
    Step,
    StepState,
)
from backends.state.links import Lab, Link, LinkCommand, Pass
from backends.state.machines import (
    Device,
    DeviceKind,
    Peer,
    PeerAnswer,
    PeerEngine,
    PeerFacts,
    PeerModel,
    PeerQuestion,
    PeerRole,
    PeerState,
    PeerWork,
    ProvisionMode,
    QuestionKind,
    Transport,
)
from backends.state.models import (
    Layer,
    LayerBytes,
    ModelCatalogue,
    ModelFile,
    ModelInfo,
)
from backends.state.plans import (
    DeviceBuffers,
    LayerRange,
    MeasuredSplit,
    Plan,
    Share,
    Split,
    WorkerSpec,
)

__all__ = [
    "ChatDelta",
    "ChatMessage",
    "ChatRequest",
    "ChatTimings",
    "ClusterSnapshot",
    "ClusterState",
    "Device",
    "DeviceBuffers",
    "DeviceKind",
    "EngineInfo",
    "Failure",
    "Lab",
    "Layer",
    "LayerBytes",
    "LayerRange",
    "Link",
    "LinkCommand",
    "LogChunk",
    "MeasuredSplit",
    "ModelCatalogue",
    "ModelFile",
    "ModelInfo",
    "Pass",
    "Peer",
    "PeerAnswer",
    "PeerEngine",
    "PeerFacts",
    "PeerModel",
    "PeerQuestion",
    "PeerRole",
    "PeerState",
    "PeerWork",
    "Plan",
    "ProcessInfo",
    "ProcessRole",
    "ProcessState",
    "ProvisionMode",
    "QuestionKind",
    "Sampling",
    "Share",
    "Speed",
    "Split",
    "Step",
    "StepState",
    "Transport",
    "Value",
    "WorkerSpec",
    "to_json",
]
