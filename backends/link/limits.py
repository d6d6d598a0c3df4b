"""The limits of a lab; beyond them it is taken for a mistake."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.errors import UsageError
from backends.state import LAB_DELAY_MAX_MS, LAB_RATE_MAX_MB_S

if TYPE_CHECKING:
    from backends.state import Lab


def require_possible(lab: Lab) -> None:
    """Go on with a lab that the relay takes.

    Raises:
        UsageError: it is beyond what the relay takes.
    """
    delays_ms = (lab.latency_ms, lab.jitter_ms)
    if min(*delays_ms, lab.rate_mb_s, lab.seed) < 0:
        raise UsageError(
            "A link cannot be delayed or slowed by less than nothing",
            "Give latency, jitter, rate and seed as 0 or more.",
        )
    if max(delays_ms) > LAB_DELAY_MAX_MS:
        raise UsageError(
            f"The relay delays by {LAB_DELAY_MAX_MS / 1000:g} s at most",
            "Give less latency and less jitter.",
        )
    if lab.rate_mb_s > LAB_RATE_MAX_MB_S:
        raise UsageError(
            f"The relay limits a link to {LAB_RATE_MAX_MB_S / 1000:g} GB/s at most",
            "Give no rate where the link is to be as fast as it is.",
        )
