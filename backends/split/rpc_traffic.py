"""Bytes of a pass at a worker's device, and trips where a layer is in parts.

What differs between versions of the RPC protocol stands in one table.
"""

from __future__ import annotations

from typing import NamedTuple

from backends.split import buffers
from backends.state import ModelInfo, Plan

# Bytes of commands around the tensors of one pass, per device of a worker; llama.cpp
# sends the mask as f16, as many cells as are in use.
_PASS_UP_BYTES = 1924
_OUTPUT_UP_BYTES = 318
_PASS_DOWN_BYTES = 8
_MASK_CELL_BYTES = 2
_REPLY_BYTES = 8
_GRAPH_LAYER_BYTES = 13_300
_GRAPH_EXPERTS_BYTES = 4_500
# Of a layer whose experts are elsewhere.
_TRIPS_TO_WORKER = 4
_TRIPS_TO_HEAD = 2
_TRIPS_WITHIN = 5
_GET_BYTES = 321
_SET_BYTES = 330
_COPY_BYTES = 601


class _Wire(NamedTuple):
    """Graphs on the wire of a protocol."""

    keeps_graphs: bool
    """A worker keeps several, so that none of the usual ones is sent twice."""
    experts_bytes: int
    """Of the commands for the experts of one layer."""
    part_bytes: tuple[int, int, int]
    """Of the commands with parts of each tensor, for two devices: always, for each
    layer, and for its square."""
    round_more: float
    """Part by which these grow for each doubling of the devices beyond two."""


_WIRES = {
    7: _Wire(False, 9_000, (7_322, 30_034, 18_352), 0.6),
    8: _Wire(True, 0, (6_136, 9_674, 9_176), 1.0),
}
"""By the protocol's first number; a later one is as the last of these."""


def _wire(rpc_protocol: str) -> _Wire:
    known = buffers.rpc_major(rpc_protocol)
    return _WIRES[max((one for one in _WIRES if one <= known), default=min(_WIRES))]


def graph_bytes(
    model: ModelInfo, rpc_protocol: str, *, resized: bool, in_parts: bool
) -> int:
    """Bytes up of one layer's graph in a pass; 0 if the device has it still.

    It is sent anew if the pass is ``resized``: of another size than the one before.
    Some protocols also do so if the device computes ``in_parts``, as by moved experts.
    """
    if not resized and (not in_parts or _wire(rpc_protocol).keeps_graphs):
        return 0
    return _GRAPH_LAYER_BYTES + (_GRAPH_EXPERTS_BYTES if model.n_expert else 0)


def stage_bytes(
    model: ModelInfo, depth: int, batch: int, *, rows: int, has_output: bool
) -> tuple[float, float]:
    """Bytes up and down of one pass at a worker's device."""
    hidden = _hidden(model, batch)
    up = _PASS_UP_BYTES + hidden + _mask(depth, batch)
    if not has_output:
        return up, _PASS_DOWN_BYTES + hidden
    words = buffers.F32_BYTES * model.n_vocab * rows
    return up + _OUTPUT_UP_BYTES, _PASS_DOWN_BYTES + words


def _hidden(model: ModelInfo, batch: int) -> float:
    return buffers.F32_BYTES * model.n_embd * batch


def _mask(depth: int, batch: int) -> float:
    return _MASK_CELL_BYTES * buffers.padded(max(depth, 1)) * batch


# --- a part of each tensor on every device -------------------------------------------


def tensor_trips(model: ModelInfo, n_devices: int) -> int:
    """Waited round trips of each device: attention and feed-forward part of each layer.

    Devices add up in pairs, then pairs of pairs.
    """
    return 2 * model.n_layer * (n_devices - 1).bit_length() + 1


class TensorStage(NamedTuple):
    """A pass through devices with a part of every tensor."""

    n_devices: int
    depth: int
    batch: int
    rows: int


def tensor_bytes(
    model: ModelInfo, stage: TensorStage, rpc_protocol: str
) -> tuple[float, float]:
    """Bytes up and down of one pass at each device with a part of every tensor."""
    hidden = _hidden(model, stage.batch)
    trips, layers = tensor_trips(model, stage.n_devices), model.n_layer
    wire = _wire(rpc_protocol)
    fixed, linear, square = wire.part_bytes
    more = 1 + wire.round_more * ((stage.n_devices - 1).bit_length() - 1)
    graphs = more * (fixed + linear * layers + square * layers**2)
    words = buffers.F32_BYTES * model.n_vocab * stage.rows / stage.n_devices
    return (
        graphs + trips * hidden + _mask(stage.depth, stage.batch),
        (trips - 1) * hidden + trips * _REPLY_BYTES + words,
    )


# --- experts elsewhere ---------------------------------------------------------------


class Handed(NamedTuple):
    """Trips and bytes at a device of a layer whose experts are elsewhere."""

    trips: int = 0
    up: float = 0.0
    down: float = 0.0

    def __add__(self, other: object) -> Handed:
        assert isinstance(other, Handed)
        trips = self.trips + other.trips
        return Handed(trips, self.up + other.up, self.down + other.down)


NOTHING_HANDED = Handed()


def handed_over(
    model: ModelInfo, plan: Plan, home: str, device: str, batch: int, rpc_protocol: str
) -> tuple[Handed, Handed]:
    """The cost of one layer on ``home`` with experts on ``device``, at each of them.

    Of two devices of one worker the trips are all counted at the first.
    """
    hidden, used = _hidden(model, batch), max(model.n_expert_used, 1)
    graph = _wire(rpc_protocol).experts_bytes
    at_home, there = plan.worker_of.get(home), plan.worker_of.get(device)
    if at_home is not None and at_home == there:
        copies = _TRIPS_WITHIN
        return Handed(copies, copies * _COPY_BYTES + graph, copies * 9), NOTHING_HANDED
    first = second = NOTHING_HANDED
    if at_home is not None and there is None:
        trips = _TRIPS_TO_HEAD
        # The head gives back each expert's result, and the home weighs them.
        up = trips * _GET_BYTES + _SET_BYTES + used * hidden + 2 * graph
        first = Handed(trips, up, hidden + trips * _REPLY_BYTES)
    elif at_home is not None:
        trips = _TRIPS_TO_WORKER
        up = trips * _GET_BYTES + _SET_BYTES + hidden
        first = Handed(trips, up, 2 * hidden + trips * _REPLY_BYTES)
    if there is not None:
        up = _GET_BYTES + 4 * _SET_BYTES + 2 * hidden + graph
        second = Handed(1, up, hidden + _REPLY_BYTES)
    return first, second
