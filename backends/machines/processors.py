"""Which cores of a machine do the work: physical, allowed, not the efficient ones."""

from __future__ import annotations

import math

from backends.state import Value

_BIG_SHARE = 0.6
"""Cores with this part of the largest capacity count as performance cores."""


class Processors(Value, frozen=True, kw_only=True):
    """What a system tells about its CPUs (logical ones, by number)."""

    online: int = 0
    physical: int = 0
    """Physical cores, where the system counts them itself (macOS)."""
    first_level: int = 0
    """Physical cores of the fastest kind, on Apple silicon."""
    allowed: frozenset[int] = frozenset()
    """Those this user's processes may run on; empty when unknown."""
    big: frozenset[int] = frozenset()
    """Performance cores of a hybrid x86; empty on all others."""
    siblings: dict[int, frozenset[int]] = {}
    """For each CPU, those on the same physical core."""
    capacities: dict[int, int] = {}
    """Relative speed, 1024 for the fastest; empty where all are alike."""
    quotas: tuple[float, ...] = ()
    """CPUs a container may use at a time, for each limit that applies."""

    @property
    def usable(self) -> int:
        """Logical CPUs that may be used."""
        return len(self.allowed) or self.online

    @property
    def performance(self) -> int:
        """Physical performance cores that may be used: a worker's threads."""
        counted = self.first_level or self.physical or self._physical_cores()
        limits = [math.ceil(quota) for quota in self.quotas]
        return max(min([counted or self.usable, *limits]), 1)

    def _physical_cores(self) -> int:
        chosen = {n for n in self.siblings if not self.allowed or n in self.allowed}
        chosen = chosen & self.big or chosen
        fastest = max(self.capacities.values(), default=0)
        slow = {n for n, c in self.capacities.items() if c < _BIG_SHARE * fastest}
        return len({self.siblings[n] for n in chosen - slow})


def cpu_set(text: str) -> frozenset[int]:
    """The numbers in ``0-3,8``; what cannot be understood is left out."""
    found: set[int] = set()
    for piece in text.strip().split(","):
        first, _, last = piece.partition("-")
        if first.isdigit() and (not last or last.isdigit()):
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)
