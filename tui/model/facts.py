"""The figures of a snapshot that several panes show, and its warnings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from backends.link.figures import TokenTotals, token_totals
from backends.state import ClusterState
from tui.model.edit import ALIVE, marks_for
from tui.model.quantities import silence_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from backends.state import ClusterSnapshot, Lab, Link, Plan

SILENT_FROM_MS = 2000.0
"""A worker that says nothing for so long makes the figures old."""


@dataclass(frozen=True)
class LiveFacts:
    """A snapshot and what is computed of it once, for all panes."""

    snapshot: ClusterSnapshot
    marks: tuple[str, ...]
    """Devices in the order of their letters in the edit."""
    totals: TokenTotals
    devices: Mapping[str, int]
    """The letter of each worker's device, of the head's own under the empty name."""

    @classmethod
    def of(cls, snapshot: ClusterSnapshot, marks: tuple[str, ...] = ()) -> LiveFacts:
        totals = token_totals(snapshot.links)
        return cls(snapshot, marks, totals, device_marks(snapshot.plan, marks))

    @property
    def view(self) -> str:
        """The state in one of four: serving, busy, failed or idle."""
        if self.snapshot.state is ClusterState.SERVING:
            return "serving"
        if self.snapshot.state in ALIVE:
            return "busy"
        return "failed" if self.snapshot.failure else "idle"


def device_marks(plan: Plan | None, marks: Sequence[str]) -> dict[str, int]:
    """The letter of each worker's device, of the head's own under the empty name."""
    if plan is None:
        return {}
    order = marks_for(marks, plan.split)
    found = {
        worker.name: order.index(device)
        for worker in plan.workers
        for device in reversed(worker.device_ids)
        if device in order
    }
    own = [
        share.device
        for share in sorted(plan.split.shares, key=lambda share: -share.layers)
        if share.device.startswith(f"{plan.head}/")
    ]
    return found | ({"": order.index(own[0])} if own else {})


# --- warnings that the figures do not show --------------------------------------------


def is_off(lab: Lab | None) -> bool:
    """True if a lab changes nothing."""
    return lab is None or not (lab.latency_ms or lab.jitter_ms or lab.rate_mb_s)


def warnings(snapshot: ClusterSnapshot | None, *, short: bool = False) -> list[str]:
    """``lab on mini``, ``mini silent 12 s``, ``drained``, ``2 requests wait``."""
    if snapshot is None:
        return []
    texts = []
    if snapshot.state is ClusterState.SERVING:
        texts += [_lab_text(snapshot, short), _silent_text(snapshot, short)]
    texts += ["drained" if snapshot.drained_since is not None else ""]
    if waiting := snapshot.requests.waiting if snapshot.requests else 0:
        words = "request waits" if waiting == 1 else "requests wait"
        texts.append(f"{waiting} {'wait' if short else words}")
    return [text for text in texts if text]


def _lab_text(snapshot: ClusterSnapshot, short: bool) -> str:
    slowed = [link.worker for link in snapshot.links if not is_off(link.lab)]
    if not slowed:
        return ""
    where = slowed[0] if len(slowed) == 1 else f"{len(slowed)} links"
    return "lab" if short else f"lab on {where}"


def _silent_text(snapshot: ClusterSnapshot, short: bool) -> str:
    worst = max(snapshot.links, key=_unanswered_ms, default=None)
    if worst is None or _unanswered_ms(worst) < SILENT_FROM_MS:
        return ""
    text = silence_text(worst)
    return text if short else f"{worst.worker} {text}"


def _unanswered_ms(link: Link) -> float:
    return link.unanswered_ms or 0.0
