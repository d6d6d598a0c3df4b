"""The cases of a benchmark: every combination of launches and simulated networks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import groupby, product
from typing import Any

from msgspec.structs import replace

from backends.split.flags import parse_split
from backends.state import NO_DRAFT, Ask, Lab, PairMode, ServerSettings, Value

NO_RELAY = "off"
PAIRS = {"auto": PairMode.AUTO, "pair": PairMode.ALWAYS, "single": PairMode.NEVER}
RELAYS = (*PAIRS, NO_RELAY)
# Answers of one length, and no prompt kept from an earlier request.
_SERVER_ARGS = ("--ignore-eos", "--cache-ram", "0")
LAYER, TENSOR = "layer", "tensor"
SPLIT_MODES = (LAYER, TENSOR)
"""Whole layers on each device, or a part of every tensor (``llama-server -sm``)."""
STOCK, CACHED, HOME = "stock", "cached", "home"
WEIGHTS = {STOCK: PairMode.NEVER, CACHED: PairMode.NEVER, HOME: PairMode.ALWAYS}
"""The ways of weights to a worker, with the relays for each.

They all cross at each start. Or the large ones are in the worker's own cache
(``rpc-server -c``). Or a pair of relays reads them from the worker's own disk.
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
    weights: str = ""
    """The way of the weights, one of ``WEIGHTS``, over the network of the case.

    Empty: they come by the way of ``relay``, before that network is simulated.
    """

    @property
    def launch(self) -> Case:
        """The same without the network: cases with one launch share a cluster."""
        if self.weights:
            return self
        return replace(self, latency_ms=0.0, rate_mb_s=0.0)

    @property
    def lab(self) -> Lab | None:
        if not self.latency_ms and not self.rate_mb_s:
            return None
        return Lab(latency_ms=self.latency_ms, rate_mb_s=self.rate_mb_s)

    def ask(self, base: Ask, worker_cache: str = "") -> Ask:
        """The request for its launch; ``base`` has model and machines.

        The folder of a ``worker_cache`` is used where weights are ``CACHED``.
        """
        found = parse_split(self.split) if self.split else None
        mode = () if self.split_mode == LAYER else ("-sm", self.split_mode)
        return Ask(
            model=base.model,
            peers=base.peers,
            head=base.head,
            directory=base.directory,
            workers=self.workers,
            worker_cache=worker_cache if self.weights == CACHED else "",
            ctx_size=self.ctx_size,
            server=ServerSettings(slots=self.slots, draft=self.draft),
            split=found if isinstance(found, dict) else None,
            counts=None if isinstance(found, dict) else found,
            relay=self.relay != NO_RELAY,
            pair=WEIGHTS.get(self.weights, PAIRS.get(self.relay)),
            extra_args=(*_SERVER_ARGS, *mode),
        )


def combined(axes: Mapping[str, Collection[Any]]) -> tuple[Case, ...]:
    """Every combination once, by the fields of a case; empty axes have the default."""
    names = [name for name in Case.__struct_fields__ if axes.get(name)]
    rows = product(*(dict.fromkeys(axes[name]) for name in names))
    return tuple(Case(**dict(zip(names, row, strict=True))) for row in rows)


def by_launch(cases: Iterable[Case]) -> Iterator[tuple[Case, tuple[Case, ...]]]:
    for launch, group in groupby(cases, key=lambda case: case.launch):
        yield launch, tuple(group)
