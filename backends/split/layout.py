"""Moving layers between devices: pure functions on ``Split``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise

from backends.errors import PlanError
from backends.state import LayerRange, Share, Split
from backends.units import format_count


def make_split(
    n_layer: int, devices: Sequence[str], counts: Sequence[int], *, typed: str = ""
) -> Split:
    """A checked split of ``n_layer`` layers and the output.

    ``typed`` is how a person wrote it, for errors; else the counts alone.
    """
    if len(devices) != len(counts):
        raise PlanError(
            f"The split names {format_count(len(counts), 'share')} for "
            f"{format_count(len(devices), 'device')}",
            f"Give one number of layers for each of {', '.join(devices)}.",
        )
    if len(set(devices)) != len(devices):
        raise PlanError("The split names a device twice", "Name each device once.")
    if any(count < 0 for count in counts):
        raise PlanError(
            "The split has a negative share", "Use whole layers, 0 or more."
        )
    if sum(counts) != n_layer + 1:
        raise PlanError(
            f"The split {typed or ','.join(map(str, counts))} sums to {sum(counts)}, "
            f"but the model has {n_layer} layers and the output",
            f"Make the shares sum to {n_layer + 1} (the output counts as one layer).",
        )
    shares = tuple(
        Share(device=device, layers=count)
        for device, count in zip(devices, counts, strict=True)
    )
    return Split(n_layer=n_layer, shares=shares)


def counts(split: Split) -> tuple[int, ...]:
    return tuple(share.layers for share in split.shares)


def devices(split: Split) -> tuple[str, ...]:
    return tuple(share.device for share in split.shares)


def with_counts(split: Split, new_counts: Sequence[int]) -> Split:
    return make_split(split.n_layer, devices(split), new_counts)


def with_idle(split: Split, names: Iterable[str]) -> Split:
    """The split with those of the devices that it lacks, which hold no layers."""
    known = set(devices(split))
    more = tuple(Share(device=name, layers=0) for name in names if name not in known)
    return Split(n_layer=split.n_layer, shares=(*split.shares, *more))


def ranges(split: Split) -> tuple[LayerRange, ...]:
    ends = accumulate(counts(split))
    return tuple(
        LayerRange(share.device, end - share.layers, end - 1)
        for share, end in zip(split.shares, ends, strict=True)
        if share.layers
    )


def runs_of(device: str, layers: Iterable[int]) -> list[LayerRange]:
    runs: list[LayerRange] = []
    for layer in layers:
        if runs and runs[-1].last + 1 == layer:
            runs[-1] = LayerRange(device, runs[-1].first, layer)
        else:
            runs.append(LayerRange(device, layer, layer))
    return runs


def ranges_text(held: Collection[LayerRange]) -> str:
    sizes = " | ".join(str(each.last - each.first + 1) for each in held)
    return f"{sizes} on {', '.join(each.device for each in held)}"


def shares_text(layers: Mapping[str, int]) -> str:
    """``studio/MTL0 38 | mini/MTL0 10``: those that hold any, with their layers."""
    return " | ".join(f"{name} {count}" for name, count in layers.items() if count)


def counted_text(split: Split) -> str:
    """The same of a split."""
    return shares_text({share.device: share.layers for share in split.shares})


def boundaries(split: Split) -> tuple[int, ...]:
    return tuple(accumulate(counts(split)))[:-1]


def move_boundary(split: Split, index: int, position: int) -> Split:
    edges = [0, *boundaries(split), split.n_layer + 1]
    edges[index + 1] = min(max(position, edges[index]), edges[index + 2])
    return with_counts(split, [high - low for low, high in pairwise(edges)])


def move_layers(split: Split, first: int, last: int, device: str) -> Split:
    """Give layers to a device; layers between them and its own go there too."""
    index = devices(split).index(device)
    edges = [0, *boundaries(split), split.n_layer + 1]
    low, high = min(edges[index], first), max(edges[index + 1], last + 1)
    below = [min(edge, low) for edge in edges[: index + 1]]
    above = [max(edge, high) for edge in edges[index + 1 :]]
    return with_counts(split, [b - a for a, b in pairwise((*below, *above))])


def is_head_cpu(device: str, head: str) -> bool:
    """True if a device is the head's CPU, which llama.cpp always fills first."""
    return device == f"{head}/CPU"


def reorder(split: Split, index: int, by: int, *, head: str = "local") -> Split:
    other = index + by
    shares = list(split.shares)
    if not 0 <= index < len(shares) or not 0 <= other < len(shares):
        return split
    if any(is_head_cpu(shares[i].device, head) for i in (index, other)):
        return split
    shares[index], shares[other] = shares[other], shares[index]
    return Split(n_layer=split.n_layer, shares=tuple(shares))


def even_counts(n_layer: int, n_devices: int) -> tuple[int, ...]:
    each, rest = divmod(n_layer + 1, n_devices)
    return tuple(each + (index < rest) for index in range(n_devices))


def format_layers(layers: Iterable[LayerRange], n_layer: int) -> str:
    """``worker1/CPU 0–5 · worker2/CPU 6–11 + output``, for people."""
    return " · ".join(f"{r.device} {format_range(r, n_layer)}" for r in layers)


def format_range(layer_range: LayerRange, n_layer: int) -> str:
    first, last = layer_range.first, min(layer_range.last, n_layer - 1)
    output = "output" if layer_range.last == n_layer else ""
    if first > last:
        return output
    span = str(first) if first == last else f"{first}–{last}"
    return f"{span} + {output}" if output else span
