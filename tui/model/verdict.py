"""The line under the split: what stands between what is shown and what runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from backends.split.layout import counts
from backends.state import ClusterState
from backends.units import format_bytes
from tui.model.editing import same_plan
from tui.model.launch_settings import differences

if TYPE_CHECKING:
    from backends.state import ClusterSnapshot, Plan
    from tui.model.draft import Draft

Tone = Literal["ok", "warn", "bad", "dim"]

NEAR_BYTES = 16 << 20
"""Memory as near as this to what the engine said is as it said."""
RUNS = frozenset({ClusterState.STARTING, ClusterState.LOADING, ClusterState.SERVING})


class Verdict(NamedTuple):
    """One sentence and how it is meant."""

    text: str
    tone: Tone


def runs_now(snapshot: ClusterSnapshot | None) -> Plan | None:
    """The plan that runs or is being started."""
    return snapshot.plan if snapshot and snapshot.state in RUNS else None


LAUNCHES = "{cluster.launch} launches"
UNDOES = "{split.undo} undoes"


def verdict(
    draft: Draft | None, plan: Plan | None, snapshot: ClusterSnapshot | None
) -> Verdict:
    """The line under the split that is shown now."""
    if draft is None or plan is None:
        return Verdict("No model yet: {cluster.model} picks one", "dim")
    if draft.misfits:
        return _misfit(draft)
    running = runs_now(snapshot)
    if running is None or snapshot is None:
        return Verdict(f"not running yet: {LAUNCHES}{_said(draft)}", "warn")
    if running.model != plan.model:
        return Verdict(f"another model runs now: {LAUNCHES} this one instead", "warn")
    if running.split != draft.split:
        now = " | ".join(map(str, counts(running.split)))
        return Verdict(f"changed: {LAUNCHES} it, {UNDOES} · runs now {now}", "warn")
    if not same_plan(running, plan):
        what = differences(plan, running) or "other machines"
        return Verdict(
            f"changed: {{cluster.launch}} relaunches, {UNDOES} · {what}", "warn"
        )
    return _measured(draft, snapshot)


def _said(draft: Draft) -> str:
    if draft.is_settled:
        return " · memory estimated by the engine"
    why = f" ({draft.note})" if draft.note else ""
    return f" · memory predicted{why}"


def _misfit(draft: Draft) -> Verdict:
    names = ", ".join(
        load.device for load in draft.loads if load.device in draft.misfits
    )
    holds = "hold" if len(draft.misfits) > 1 else "holds"
    return Verdict(f"does not fit: {names} {holds} over the memory limit", "bad")


def _measured(draft: Draft, snapshot: ClusterSnapshot) -> Verdict:
    """The report of llama-server's own log on the running split."""
    if snapshot.measured is None:
        return Verdict("launching: the split is checked after the load", "dim")
    if snapshot.measured.mismatches:
        return Verdict("✗ " + "; ".join(snapshot.measured.mismatches), "bad")
    if not draft.is_settled:
        return Verdict("✓ layers as planned · memory as measured", "ok")
    if off := _off_bytes(draft):
        by = format_bytes(off)
        text = f"✓ layers as planned · memory is {by} off the engine's estimate"
        return Verdict(text, "warn")
    return Verdict("✓ layers and memory as planned", "ok")


def _off_bytes(draft: Draft) -> int:
    """The engine's worst error against the log; 0 within 1 % or 16 MiB."""
    pairs = zip(draft.settled, draft.loads, strict=True)
    gaps = (
        (abs(told.total_bytes - measured.total_bytes), measured.total_bytes)
        for told, measured in pairs
    )
    return max(
        (gap for gap, whole in gaps if gap > max(NEAR_BYTES, whole // 100)), default=0
    )
