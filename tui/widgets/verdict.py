"""The line under the split: what stands between what is shown and what runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from backends.split.layout import counts
from backends.state import ClusterState

if TYPE_CHECKING:
    from backends.state import ClusterSnapshot, Plan
    from tui.widgets.draft import Draft

Tone = Literal["ok", "warn", "bad", "dim"]

RUNS = frozenset({ClusterState.STARTING, ClusterState.LOADING, ClusterState.SERVING})


class Verdict(NamedTuple):
    """One sentence and how it is meant."""

    text: str
    tone: Tone


def runs_now(snapshot: ClusterSnapshot | None) -> Plan | None:
    """The plan that runs or is being started."""
    return snapshot.plan if snapshot and snapshot.state in RUNS else None


def same_work(one: Plan, other: Plan) -> bool:
    """Whether launching one changes nothing while the other runs."""
    return (one.model, one.split, one.ctx_size, one.workers, one.head) == (
        other.model,
        other.split,
        other.ctx_size,
        other.workers,
        other.head,
    )


def verdict(
    draft: Draft | None, plan: Plan | None, snapshot: ClusterSnapshot | None
) -> Verdict:
    """What to say under the split as it is shown now."""
    if draft is None or plan is None:
        return Verdict("No model yet: m picks one", "dim")
    if draft.misfits:
        return _misfit(draft)
    running = runs_now(snapshot)
    if running is None or snapshot is None:
        return Verdict("not running yet: l launches", "warn")
    if running.model != plan.model:
        return Verdict("another model runs now: l launches this one instead", "warn")
    if running.split != draft.split or not same_work(running, plan):
        now = " | ".join(map(str, counts(running.split)))
        return Verdict(f"changed: l launches it, u undoes · runs now {now}", "warn")
    return _measured(snapshot)


def _misfit(draft: Draft) -> Verdict:
    names = ", ".join(
        load.device for load in draft.loads if load.device in draft.misfits
    )
    holds = "hold" if len(draft.misfits) > 1 else "holds"
    return Verdict(f"does not fit: {names} {holds} more than there is room for", "bad")


def _measured(snapshot: ClusterSnapshot) -> Verdict:
    """What llama-server's own log says about the split that runs."""
    if snapshot.measured is None:
        return Verdict("launching: the split is checked after the load", "dim")
    if snapshot.measured.mismatches:
        return Verdict("✗ " + "; ".join(snapshot.measured.mismatches), "bad")
    return Verdict("✓ as planned: layers and bytes as in llama-server's log", "ok")
