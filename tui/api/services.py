"""The controller's services, as the console calls them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from typing import Protocol

from backends.state import (
    Alternative,
    Ask,
    Bottleneck,
    ChatChange,
    ChatListing,
    ChatState,
    ClusterSnapshot,
    ClusterSpeeds,
    EngineProgress,
    Event,
    FoundWorkers,
    KnownMachine,
    Lab,
    LogChunk,
    ModelCatalogue,
    ModelInfo,
    Pass,
    Peer,
    PeerAnswer,
    PeerPairing,
    Plan,
    PlanMemory,
    PromptCount,
    ProvisionMode,
    RecordMark,
    UsageReport,
)
from backends.state.models import Delivered, Download, RemoteModel, Removal
from backends.state.races import Race, RaceRequest
from backends.state.sweeps import Sweep, SweepRequest


class ChatService(Protocol):
    """Conversations are the controller's; every call may raise ``DllmError``."""

    async def listing(self) -> ChatListing: ...
    async def get(self, chat: str) -> ChatState: ...
    def states(self, model: str) -> AsyncIterator[ChatState]: ...
    async def begin(self, model: str) -> ChatState: ...
    async def open(self, chat: str, model: str) -> ChatState: ...
    async def ask(
        self, chat: str, question: str | None, *, turns: int, again: int | None = None
    ) -> ChatState: ...
    async def stop(self, chat: str) -> ChatState: ...
    async def count(
        self, chat: str, question: str, *, again: int | None = None
    ) -> PromptCount:
        """The tokens of the prompt that a question would be."""

    async def change(self, chat: str, change: ChatChange) -> ChatState: ...
    async def delete(self, chat: str) -> ChatListing: ...
    async def restore(self, chat: str) -> ChatState: ...


class ChatSession(Protocol):
    """The conversation that the chat pane shows, and what a person does with it."""

    async def ask(self, question: str | None, again: int | None = None) -> None: ...
    async def choose(self, turn: int, shown: int) -> None: ...
    async def stop(self) -> None: ...
    async def count(self, question: str, again: int | None) -> PromptCount | None:
        """The tokens of the prompt that a question would be; None if nobody tells."""


class RecordService(Protocol):
    """Writing what the console receives to a file, from which it can be replayed."""

    @property
    def file(self) -> str:
        """The file that is being written; empty while nothing is recorded."""

    def begin(self, *, size: tuple[int, int], words: bool) -> None: ...
    async def follow(self) -> str:
        """Ask for what no pane asks for; returns once the record ended, with why."""

    async def end(self) -> str:
        """End the record; its file, its time and its size in words."""


class ReplayService(Protocol):
    """A record that is shown, and the moment of it that is now."""

    @property
    def began_at(self) -> float:
        """Unix seconds."""

    @property
    def duration_s(self) -> float: ...
    @property
    def marks(self) -> Sequence[RecordMark]: ...
    @property
    def position_s(self) -> float: ...
    @property
    def playing(self) -> bool: ...
    @property
    def speed(self) -> float: ...
    def play(self, on: bool) -> None: ...
    def seek(self, at_s: float) -> None: ...
    def run_at(self, speed: float) -> None: ...
    def snapshot(self) -> ClusterSnapshot | None:
        """The snapshot of now; None while there was no controller."""

    def snapshots(self, after_s: float, to_s: float) -> Iterator[ClusterSnapshot]: ...


class ClusterService(Protocol):
    """Everything the console may ask; every call may raise ``DllmError``."""

    @property
    def cluster(self) -> str: ...
    @property
    def chats(self) -> ChatService: ...
    def use(self, cluster: str) -> None:
        """Talk about another cluster from here on; streams begun stay as they are."""

    def snapshots(self) -> AsyncIterator[ClusterSnapshot]:
        """Snapshots as they change, at most four a second.

        Ends when the controller goes away; calling it again starts a controller.
        """

    async def propose(self, ask: Ask) -> Plan:
        """A plan for a model, balanced by memory if ``ask`` names no layers.

        Paths among the arguments for llama-server must be whole.
        """

    async def launch(
        self, plan: Plan, *, replaces: int | None = None
    ) -> ClusterSnapshot:
        """Make the cluster run this plan; progress arrives as snapshots.

        ``replaces`` is the generation that is meant to be replaced: 0 for none, None
        for any.
        """

    async def stop(self) -> ClusterSnapshot: ...
    async def shutdown(self, *, only_if_idle: bool = False) -> None:
        """End the controller and, unless ``only_if_idle``, all it runs."""

    async def inspect(self, path: str) -> ModelInfo: ...
    async def catalogue(self, *, refresh: bool = False) -> ModelCatalogue: ...
    def get_model(self, source: str) -> AsyncGenerator[Download, None]: ...
    async def removal(self, path: str, *, machine: str) -> Removal: ...
    async def remove_model(self, path: str, *, machine: str) -> Removal: ...
    def get_engine(self) -> AsyncGenerator[EngineProgress, None]: ...
    def remote_models(
        self, source: str, peers: Sequence[str] | None = None
    ) -> AsyncGenerator[RemoteModel, None]: ...
    async def names_after(self, path: str) -> tuple[str, ...]: ...
    async def read_log(
        self, name: str, offset: int, limit_bytes: int = 65536
    ) -> LogChunk:
        """Part of a process log; a negative offset counts from the end."""

    def usages(self) -> AsyncIterator[UsageReport]:
        """Report the usage of machines and processes, every second."""

    async def restart_process(self, name: str, machine: str) -> ClusterSnapshot: ...
    async def kill_process(
        self, name: str, machine: str, pid: int | None = None
    ) -> ClusterSnapshot: ...
    async def set_lab(self, worker: str | None, lab: Lab | None) -> ClusterSnapshot: ...
    def race(self, asked: RaceRequest) -> AsyncGenerator[Race, None]:
        """Race two plans; closing it goes back to what served before."""

    def sweep(self, asked: SweepRequest) -> AsyncGenerator[Sweep, None]:
        """Slow links step by step and measure; closing it puts the lab back."""

    async def events(self, *, after: int = 0) -> tuple[Event, ...]: ...
    async def settings_taken(self) -> None: ...
    async def memory(self, plan: Plan) -> PlanMemory: ...
    async def speeds(self, plan: Plan) -> ClusterSpeeds: ...
    async def best(self, plan: Plan) -> tuple[Alternative, ...]: ...
    async def why(self) -> Bottleneck: ...
    async def passes(self) -> dict[str, tuple[Pass, ...]]: ...
    async def peers_to_pick(self) -> tuple[KnownMachine, ...]: ...
    async def add_peer(
        self,
        name: str,
        *,
        ssh: str | None = None,
        bare: str | None = None,
        token: str | None = None,
        trusted: Sequence[str] = (),
    ) -> Peer:
        """Make a machine known: by what one gives to ssh, a bare ``host:port``, or a
        token of its ``dllm-tui worker``. Host keys of ``trusted`` fingerprints need no
        answer.

        Returns at once; what becomes of it (a question, a failure) comes as snapshots.
        """

    async def found_workers(self) -> FoundWorkers:
        """The workers that announce themselves on this network, as far as is known."""

    async def begin_pairing(self, name: str, place: str) -> PeerPairing:
        """Agree on digits with the worker at a place; without where there is none."""

    async def decide_pairing(self, digits: str, *, agrees: bool) -> None:
        """Tell whether both screens show the same digits."""

    async def pairing_outcome(self, digits: str) -> Peer:
        """The new peer, once both sides have agreed."""

    async def remove_peer(self, name: str) -> None: ...
    async def probe_peer(self, name: str) -> Peer: ...
    async def answer_peer(self, name: str, answer: PeerAnswer) -> Peer: ...
    async def provision_peer(
        self, name: str, mode: ProvisionMode = ProvisionMode.AUTO
    ) -> Peer: ...
    async def clean_peer(self, name: str) -> int: ...
    async def deliver(self, name: str, source: str) -> Delivered: ...
    async def cancel_work(self, name: str) -> Peer: ...
