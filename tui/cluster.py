"""The one seam between the console and the controller, as the console needs it.

``backends.controller.client.ControllerClient`` is the real one; tests script their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from backends.state import (
        ChatDelta,
        ChatRequest,
        ClusterSnapshot,
        Lab,
        LogChunk,
        ModelCatalogue,
        ModelInfo,
        Pass,
        Plan,
    )


class Cluster(Protocol):
    """Everything the console may ask; every call may raise ``DllmError``."""

    def snapshots(self) -> AsyncIterator[ClusterSnapshot]:
        """Snapshots as they change, at most four a second, newest first to arrive.

        Ends when the controller goes away; calling it again starts a controller.
        """
        ...

    async def propose(
        self,
        model: str,
        *,
        workers: int | None = None,
        counts: Sequence[int] | None = None,
        ctx_size: int | None = None,
    ) -> Plan:
        """A plan for a model on this machine's workers, balanced by memory.

        ``counts`` are whole layers per worker (output counted), else balanced;
        ``None`` elsewhere means what the configuration says.
        """
        ...

    async def launch(self, plan: Plan) -> None:
        """Make the cluster run this plan; progress arrives as snapshots."""
        ...

    async def stop(self) -> None:
        """Stop the cluster; returns once it has begun."""
        ...

    async def shutdown(self, *, only_if_idle: bool = False) -> None:
        """End the controller (and, unless only_if_idle, all it runs)."""
        ...

    async def inspect(self, path: str) -> ModelInfo:
        """Read a model's header."""
        ...

    async def catalogue(self, *, refresh: bool = False) -> ModelCatalogue:
        """Models found on disk; a search goes on in the background."""
        ...

    async def read_log(
        self, name: str, offset: int, limit_bytes: int = 65536
    ) -> LogChunk:
        """Part of a process log; a negative offset counts from the end."""
        ...

    async def set_lab(self, worker: str | None, lab: Lab | None) -> ClusterSnapshot:
        """Put a worse network on one link (None: on all), or take it away."""
        ...

    async def passes(self) -> dict[str, tuple[Pass, ...]]:
        """Every forward pass still remembered, by worker, oldest first."""
        ...

    def chat(self, request: ChatRequest) -> AsyncIterator[ChatDelta]:
        """Stream an answer; closing the iterator stops the generation."""
        ...
