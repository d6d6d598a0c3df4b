"""The figures of a snapshot that several panes show, and its warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from backends.link.figures import TokenTotals, token_totals
from backends.state import ClusterSnapshot, ClusterState, Lab, Plan
from tui.model.edit import ALIVE, marks_for
from tui.model.quantities import silence_text

SILENT_FROM_MS = 2000.0
"""A worker that says nothing for so long makes the figures old."""


class LiveFacts(msgspec.Struct, frozen=True):
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
    return lab is None or not lab.is_on


def warnings(snapshot: ClusterSnapshot | None, *, short: bool = False) -> list[str]:
    """``lab on mini``, ``mini silent 12 s``, ``drained``, ``2 requests wait``."""
    if snapshot is None:
        return []
    texts = []
    links = snapshot.links if snapshot.state is ClusterState.SERVING else ()
    if slowed := [link.worker for link in links if not is_off(link.lab)]:
        where = slowed[0] if len(slowed) == 1 else f"{len(slowed)} links"
        texts.append("lab" if short else f"lab on {where}")
    silent = [link for link in links if (link.unanswered_ms or 0.0) >= SILENT_FROM_MS]
    if silent:
        worst = max(silent, key=lambda link: link.unanswered_ms or 0.0)
        text = silence_text(worst)
        texts.append(text if short else f"{worst.worker} {text}")
    if snapshot.drained_since is not None:
        texts.append("drained")
    if waiting := snapshot.requests.waiting if snapshot.requests else 0:
        words = "request waits" if waiting == 1 else "requests wait"
        texts.append(f"{waiting} {'wait' if short else words}")
    return texts
