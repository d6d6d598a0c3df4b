"""The warnings beside the figures of every screen; the figures do not show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.state import ClusterState
from tui.model.quantities import silence_text

if TYPE_CHECKING:
    from backends.state import ClusterSnapshot, Lab, Link

SILENT_FROM_MS = 2000.0
"""A worker that says nothing for so long makes the figures old."""


def is_off(lab: Lab | None) -> bool:
    """True if a lab changes nothing."""
    return lab is None or not (lab.latency_ms or lab.jitter_ms or lab.rate_mb_s)


def lab_text(snapshot: ClusterSnapshot | None, *, short: bool = False) -> str:
    """``lab on mini``, ``lab on 2 links``: figures are those of a pretended network."""
    if snapshot is None or snapshot.state is not ClusterState.SERVING:
        return ""
    slowed = [link.worker for link in snapshot.links if not is_off(link.lab)]
    if not slowed:
        return ""
    where = slowed[0] if len(slowed) == 1 else f"{len(slowed)} links"
    return "lab" if short else f"lab on {where}"


def silent_text(snapshot: ClusterSnapshot | None, *, short: bool = False) -> str:
    """``mini silent 12 s``: what is shown of a token is as old; empty for news."""
    if snapshot is None or snapshot.state is not ClusterState.SERVING:
        return ""
    worst = max(snapshot.links, key=_unanswered_ms, default=None)
    if worst is None or _unanswered_ms(worst) < SILENT_FROM_MS:
        return ""
    text = silence_text(worst)
    return text if short else f"{worst.worker} {text}"


def drained_text(snapshot: ClusterSnapshot | None, *, short: bool = False) -> str:
    """``drained``: what comes to the API waits because somebody said so."""
    is_drained = snapshot is not None and snapshot.drained_since is not None
    return "drained" if is_drained else ""


def held_text(snapshot: ClusterSnapshot | None, *, short: bool = False) -> str:
    """``2 requests wait``: for a llama-server; empty where none does."""
    waiting = snapshot.requests.waiting if snapshot and snapshot.requests else 0
    if not waiting:
        return ""
    words = "request waits" if waiting == 1 else "requests wait"
    return f"{waiting} {'wait' if short else words}"


def _unanswered_ms(link: Link) -> float:
    return link.unanswered_ms or 0.0
