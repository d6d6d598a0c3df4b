"""Numbers with units, as people type them after an option."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from backends.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
"""In the units of a duration."""


def quantity(text: str, units: Mapping[str, float], example: str) -> float:
    """A number with its unit, in the base unit of ``units``.

    Raises:
        UsageError: it is not one.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z/]*)\s*", text.lower())
    if match is None or match[2] not in units:
        raise UsageError(f"{text!r} is not understood", f"Write it like {example}.")
    return float(match[1]) * units[match[2]]
