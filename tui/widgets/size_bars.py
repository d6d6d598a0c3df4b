"""Bytes by name, each with a bar of its part of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from textual.content import Content

from backends.state import Layer
from backends.units import format_bytes
from tui.widgets.safe_text import safe_line

LABEL_CELLS = 11
BAR_CELLS = 10
GROUPS = ("attention", "ffn", "experts", "recurrent", "other")
"""Fields of ``LayerBytes``."""


def group_bytes(layers: Iterable[Layer]) -> dict[str, int]:
    sizes = dict.fromkeys(GROUPS, 0)
    for layer in layers:
        named = {name: getattr(layer.groups, name) for name in GROUPS}
        named["other"] += layer.bytes - sum(named.values())
        for name, size in named.items():
            sizes[name] += size
    return sizes


def quant_bytes(layers: Iterable[Layer]) -> Counter[str]:
    """Bytes of some layers by quantisation type."""
    sizes: Counter[str] = Counter()
    for layer in layers:
        sizes.update(layer.quants)
    return sizes


def size_bars(sizes: Mapping[str, int]) -> list[Content]:
    """A line for each name that has bytes."""
    total = max(sum(sizes.values()), 1)
    return [_bar(name, size, total) for name, size in sizes.items() if size > 0]


def fact(label: str, value: str) -> Content:
    return Content.assemble((f"{label:<{LABEL_CELLS}}", "$dim"), safe_line(value))


def _bar(name: str, size: int, total: int) -> Content:
    full = round(size / total * BAR_CELLS)
    return Content.assemble(
        (f"{name:<{LABEL_CELLS}}", "$dim"),
        ("▇" * full, "$primary"),
        ("▁" * (BAR_CELLS - full), "$track"),
        f" {format_bytes(size):>9}",
    )
