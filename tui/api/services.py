"""The controller's services, as the console calls them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Protocol

from backends.state import (
    Alternative,
    Ask,
    ChatChange,
    ChatListing,
    ChatState,
    ClusterSnapshot,
    ClusterSpeeds,
    EngineProgress,
    Event,
    Lab,
    LogChunk,
    ModelCatalogue,
    ModelInfo,
    Pass,
    Peer,
    PeerAnswer,
    Plan,
    PlanMemory,
    ProvisionMode,
)
from backends.state.models import Delivered, Download, RemoteModel, Removal


class ChatService(Protocol):
    """Conversations are the controller's; every call may raise ``DllmError``."""

    async def listing(self) -> ChatListing:
        """Every conversation, the one changed last first."""

    async def get(self, chat: str) -> ChatState:
        """One conversation by its id."""

    def states(self, model: str) -> AsyncIterator[ChatState]:
        """The current conversation with a model, as it changes."""

    async def begin(self, model: str) -> ChatState:
        """Another conversation with a model becomes the current one."""

    async def open(self, chat: str, model: str) -> ChatState:
        """Make a conversation the current one with a model."""

    async def ask(
        self, chat: str, question: str | None, *, turns: int, again: int | None = None
    ) -> ChatState:
        """Ask in a conversation of so many turns; ``again`` the question of that index.

        None asks it in the same words.
        """

    async def stop(self, chat: str) -> ChatState:
        """End the answer that comes; what came stays."""

    async def change(self, chat: str, change: ChatChange) -> ChatState:
        """Name it, set what answers are made with, or go on from another."""

    async def delete(self, chat: str) -> ChatListing:
        """Remove a conversation, from disk too; those that are left."""

    async def restore(self, chat: str) -> ChatState:
        """Bring back one that this controller has deleted."""


class ChatSession(Protocol):
    """The conversation that the chat pane shows, and what a person does with it."""

    async def ask(self, question: str | None, again: int | None = None) -> None:
        """Ask; ``again`` in place of the question of that index, None: its words."""

    async def choose(self, turn: int, shown: int) -> None:
        """Go on from another answer to a question."""

    async def stop(self) -> None: ...


class ClusterService(Protocol):
    """Everything the console may ask; every call may raise ``DllmError``."""

    @property
    def cluster(self) -> str:
        """The name of the cluster that calls are about."""

    @property
    def chats(self) -> ChatService:
        """The conversations."""

    def use(self, cluster: str) -> None:
        """Talk about another cluster from here on; streams begun stay what they are."""

    def snapshots(self) -> AsyncIterator[ClusterSnapshot]:
        """Snapshots as they change, at most four a second, newest first to arrive.

        Ends when the controller goes away; calling it again starts a controller.
        """

    async def propose(self, ask: Ask) -> Plan:
        """A plan for a model, balanced by memory where ``ask`` names no layers.

        Paths among the arguments for llama-server must be whole.
        """

    async def launch(
        self, plan: Plan, *, replaces: int | None = None
    ) -> ClusterSnapshot:
        """Make the cluster run this plan; progress arrives as snapshots.

        ``replaces`` is the generation that is meant to be replaced: 0 for none, None
        for whatever is there.
        """

    async def stop(self) -> ClusterSnapshot:
        """Stop the cluster; returns once it has begun."""

    async def shutdown(self, *, only_if_idle: bool = False) -> None:
        """End the controller (and, unless only_if_idle, all it runs)."""

    async def inspect(self, path: str) -> ModelInfo:
        """Read a model's header."""

    async def catalogue(self, *, refresh: bool = False) -> ModelCatalogue:
        """Models found on disk; a search goes on in the background."""

    def get_model(self, source: str) -> AsyncGenerator[Download, None]:
        """Get a model; the last value has its path. Closing the stream ends it."""

    async def removal(self, path: str, *, machine: str) -> Removal:
        """The files that deleting a model on a machine would delete."""

    async def remove_model(self, path: str, *, machine: str) -> Removal:
        """Delete a model; what was deleted."""

    def get_engine(self) -> AsyncGenerator[EngineProgress, None]:
        """Get llama.cpp for this machine; the last value has it. Closing ends it."""

    def remote_models(
        self, source: str, peers: Sequence[str] | None = None
    ) -> AsyncGenerator[RemoteModel, None]:
        """The models of a repository: first their sizes, then what would fit."""

    async def names_after(self, path: str) -> tuple[str, ...]:
        """The folders and models that may continue the last part of a whole path."""

    async def read_log(
        self, name: str, offset: int, limit_bytes: int = 65536
    ) -> LogChunk:
        """Part of a process log; a negative offset counts from the end."""

    async def set_lab(self, worker: str | None, lab: Lab | None) -> ClusterSnapshot:
        """Put a worse network on one link (None: on all), or take it away."""

    async def events(self, *, after: int = 0) -> tuple[Event, ...]:
        """The events of the last days after an event's number, oldest first."""

    async def settings_taken(self) -> None:
        """Wait until a running controller goes by what ``config.toml`` says now."""

    async def memory(self, plan: Plan) -> PlanMemory:
        """The memory a plan takes of each device, by the engine if it can answer."""

    async def speeds(self, plan: Plan) -> ClusterSpeeds:
        """The speeds that predict a plan, and any other split of its devices."""

    async def best(self, plan: Plan) -> tuple[Alternative, ...]:
        """A plan as it is, the best ones of its devices for all aims, and others."""

    async def passes(self) -> dict[str, tuple[Pass, ...]]:
        """Every forward pass still remembered, by worker, oldest first."""

    async def peers_to_pick(self) -> tuple[str, ...]:
        """Host names in the user's SSH configuration that are no peers yet."""

    async def add_peer(
        self,
        name: str,
        *,
        ssh: str | None = None,
        bare: str | None = None,
        token: str | None = None,
    ) -> Peer:
        """Make a machine known: by what one gives to ssh, a bare ``host:port``, or a
        token of its ``dllm-tui worker``.

        Returns at once; what becomes of it (a question, a failure) comes as snapshots.
        """

    async def remove_peer(self, name: str) -> None:
        """Forget a machine."""

    async def probe_peer(self, name: str) -> Peer:
        """Look at a machine now."""

    async def answer_peer(self, name: str, answer: PeerAnswer) -> Peer:
        """Answer what the connection to a machine asks."""

    async def provision_peer(
        self, name: str, mode: ProvisionMode = ProvisionMode.AUTO
    ) -> Peer:
        """Install engine and helper there; returns when done, progress in snapshots."""

    async def clean_peer(self, name: str) -> int:
        """Remove what was installed there; the bytes freed."""

    async def deliver(self, name: str, source: str) -> Delivered:
        """Have a peer get a model, which may be a file here; returns when done."""

    async def cancel_work(self, name: str) -> Peer:
        """End what goes on at a machine; the next time it resumes."""
