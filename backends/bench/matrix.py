"""The cases of a benchmark: every combination of launches and simulated networks."""

from __future__ import annotations

from itertools import groupby, product
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from backends.split.flags import parse_split
from backends.state import NO_DRAFT, Ask, Lab, PairMode, ServerSettings, Value

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

NO_RELAY = "off"
PAIRS = {
    "auto": PairMode.AUTO,
    "pair": PairMode.ALWAYS,
    "single": PairMode.NEVER,
}
RELAYS = (*PAIRS, NO_RELAY)
# Answers of one length, and no prompt kept from an earlier request.
_SERVER_ARGS = ("--ignore-eos", "--cache-ram", "0")
LAYER, TENSOR = "layer", "tensor"
SPLIT_MODES = (LAYER, TENSOR)
"""Whole layers on each device, or a part of every tensor (``llama-server -sm``)."""
SEEDS_LATENCIES_MS = (0.0, 5.0, 10.0, 20.0, 30.0)
SEEDS_WORKERS = (2, 3, 4)
SEEDS_TOK_PER_S = {
    (2, 0): 60.2,
    (2, 5): 30.1,
    (2, 10): 21.4,
    (2, 20): 12.6,
    (2, 30): 9.4,
    (3, 0): 57.1,
    (3, 5): 21.8,
    (3, 10): 15.7,
    (3, 20): 8.0,
    (4, 0): 52.8,
    (4, 5): 18.4,
}
"""Published figures of a latency proxy, by workers beside the head and milliseconds.

The model was GLM-4.7-Flash Q4_K_M, the machine an Apple M4 Max.
"""


class Case(Value, frozen=True, kw_only=True):
    """One launch on one simulated network."""

    workers: int | None = None
    """CPU workers on this machine; None: as the settings say."""
    split: str = ""
    """As ``up --split`` takes it; empty: balanced by memory."""
    ctx_size: int | None = None
    slots: int = 1
    draft: str = NO_DRAFT
    relay: str = "auto"
    split_mode: str = LAYER
    latency_ms: float = 0.0
    """Added one-way latency."""
    rate_mb_s: float = 0.0
    """Bandwidth each way in 10⁶ bytes per second; 0: no limit."""

    @property
    def launch(self) -> Case:
        """The same without the network: cases with one launch share a cluster."""
        return replace(self, latency_ms=0.0, rate_mb_s=0.0)

    @property
    def lab(self) -> Lab | None:
        if not self.latency_ms and not self.rate_mb_s:
            return None
        return Lab(latency_ms=self.latency_ms, rate_mb_s=self.rate_mb_s)

    def ask(self, base: Ask) -> Ask:
        """The request for its launch; ``base`` has model and machines.

        Raises:
            UsageError: the split cannot be read.
        """
        found = parse_split(self.split) if self.split else None
        mode = () if self.split_mode == LAYER else ("-sm", self.split_mode)
        return Ask(
            model=base.model,
            peers=base.peers,
            head=base.head,
            directory=base.directory,
            workers=self.workers,
            ctx_size=self.ctx_size,
            server=ServerSettings(slots=self.slots, draft=self.draft),
            split=found if isinstance(found, dict) else None,
            counts=None if isinstance(found, dict) else found,
            relay=self.relay != NO_RELAY,
            pair=PAIRS.get(self.relay),
            extra_args=(*_SERVER_ARGS, *mode),
        )


def combined(axes: Mapping[str, Collection[Any]]) -> tuple[Case, ...]:
    """Every combination once, by the fields of a case; empty axes have the default.

    Those that share a launch stand together.
    """
    names = [name for name in Case.__struct_fields__ if axes.get(name)]
    rows = product(*(dict.fromkeys(axes[name]) for name in names))
    return tuple(Case(**dict(zip(names, row, strict=True))) for row in rows)


def by_launch(cases: Iterable[Case]) -> Iterator[tuple[Case, tuple[Case, ...]]]:
    """Each launch with its cases."""
    for launch, group in groupby(cases, key=lambda case: case.launch):
        yield launch, tuple(group)


def seeds_cases(n_layer: int) -> tuple[Case, ...]:
    """The latency table of the published proxy: 3 to 5 nodes, equal shares.

    The head computes too, so a cluster of N nodes has N - 1 workers.
    """
    return tuple(
        Case(workers=workers, split=_equal_split(n_layer + 1, workers), latency_ms=ms)
        for workers in SEEDS_WORKERS
        for ms in SEEDS_LATENCIES_MS
    )


def _equal_split(layers: int, workers: int) -> str:
    devices = ["local/CPU", *(f"worker{n}/CPU" for n in range(1, workers + 1))]
    each, rest = divmod(layers, len(devices))
    return ",".join(
        f"{device}={each + (at < rest)}" for at, device in enumerate(devices)
    )


def seeds_predicted(
    workers: int, latency_ms: float, added_ms: float
) -> tuple[float, float] | None:
    """Published tok/s, and tok/s there if their links cost a token what ours add.

    Their figures fit 2 W - 1 sleeps a token for W workers; a one-way delay of ours
    acts 2 W times. So our added time counts by that ratio, on top of their own time
    without latency. None for a row that they did not publish.
    """
    published = SEEDS_TOK_PER_S.get((workers, round(latency_ms)))
    if published is None:
        return None
    base_ms = 1000 / SEEDS_TOK_PER_S[workers, 0]
    there_ms = base_ms + added_ms * (2 * workers - 1) / (2 * workers)
    return published, 1000 / there_ms
