"""The phases of a cluster, and the table of what leads from one to another.

The reconciler does the work of a phase, which ends with a trigger.
"""

from __future__ import annotations

from enum import StrEnum

from backends.errors import DllmError, NeedsAnswer, PeerUnreachable, ProcessFailed


class Phase(StrEnum):
    REACHING = "reaching"
    """Wait for the machines of a launch."""
    ADOPTING = "adopting"
    """Look what became of what an earlier controller left."""
    DRAINING = "draining"
    """Let answers end that the plan would break."""
    STARTING = "starting"
    """Start what the plan lacks, and stop what it does not want."""
    LOADING = "loading"
    """Wait for llama-server to load the model."""
    SERVING = "serving"
    """Wait for trouble, or for something better to run."""
    WAITING = "waiting"
    """A machine is away: wait for it a while, then take the degraded plan."""
    RECOVERING = "recovering"
    """Something ended or was refused: find the plan to go on with."""
    PAUSING = "pausing"
    """The controller failed, and what serves goes on: look after it a little later."""
    FAILED = "failed"
    """Stop everything. Wait for a request, or for the machine that is missing."""
    STOPPING = "stopping"
    """Stop everything, because a person said so."""
    IDLE = "idle"
    """No plan is wanted, and no process runs."""
    LEFT_ALONE = "left alone"
    """The journal or the machines are not known: touch nothing."""


class Trigger(StrEnum):
    LAUNCHED = "launched"
    STOPPED = "stopped"
    FOUND = "found"
    """The journal of an earlier controller wants a plan."""
    FOUND_FAILED = "found failed"
    """It says that nothing more is tried."""
    UNKNOWN = "unknown"
    """It, or the settings, cannot be read."""

    DONE = "done"
    BACK = "back"
    """All is there again, and nobody has looked at it since."""
    ALL_BACK = "all back"
    """The full plan can run in place of the degraded one."""
    OTHER_DRAFT = "other draft"
    """``--draft auto`` wants to run another draft."""
    LATE = "late"
    """A process came that nothing wants."""

    UNREACHABLE = "unreachable"
    ENDED = "ended"
    """A process ended that should not have."""
    REFUSED = "refused"
    """Any other error that is expected."""
    ASKED = "asked"
    """A machine asks the user something."""
    FAULT = "fault"
    """An error that nobody thought of."""


REQUESTS = {
    Trigger.LAUNCHED: Phase.REACHING,
    Trigger.STOPPED: Phase.STOPPING,
    Trigger.FOUND: Phase.ADOPTING,
    Trigger.FOUND_FAILED: Phase.FAILED,
    Trigger.UNKNOWN: Phase.LEFT_ALONE,
}
"""From every phase."""

TROUBLE = {
    Trigger.UNREACHABLE: Phase.WAITING,
    Trigger.ENDED: Phase.RECOVERING,
    Trigger.REFUSED: Phase.RECOVERING,
    Trigger.FAULT: Phase.PAUSING,
}

TRANSITIONS: dict[Phase, dict[Trigger, Phase]] = {
    Phase.REACHING: {Trigger.DONE: Phase.DRAINING},
    Phase.ADOPTING: {Trigger.DONE: Phase.DRAINING, **TROUBLE},
    Phase.DRAINING: {Trigger.DONE: Phase.STARTING, **TROUBLE},
    Phase.STARTING: {Trigger.DONE: Phase.LOADING, **TROUBLE},
    Phase.LOADING: {Trigger.DONE: Phase.SERVING, **TROUBLE},
    Phase.SERVING: {
        Trigger.ALL_BACK: Phase.DRAINING,
        Trigger.OTHER_DRAFT: Phase.DRAINING,
        **TROUBLE,
    },
    Phase.WAITING: {Trigger.DONE: Phase.DRAINING, Trigger.BACK: Phase.ADOPTING},
    Phase.RECOVERING: {Trigger.DONE: Phase.DRAINING},
    Phase.PAUSING: {Trigger.DONE: Phase.DRAINING, Trigger.BACK: Phase.ADOPTING},
    Phase.STOPPING: {Trigger.DONE: Phase.IDLE},
    Phase.IDLE: {Trigger.LATE: Phase.STOPPING},
    Phase.FAILED: {Trigger.LATE: Phase.FAILED, Trigger.FAULT: Phase.LEFT_ALONE},
    Phase.LEFT_ALONE: {},
}
"""Whatever is not in a row leads to ``FAILED``."""

WITH_LINKS = (Phase.LOADING, Phase.SERVING)
AT_REST = (Phase.FAILED, Phase.STOPPING, Phase.IDLE, Phase.LEFT_ALONE)


def next_phase(phase: Phase, trigger: Trigger) -> Phase:
    return REQUESTS.get(trigger) or TRANSITIONS[phase].get(trigger, Phase.FAILED)


def trigger_of(error: Exception) -> Trigger:
    match error:
        case NeedsAnswer():
            return Trigger.ASKED
        case PeerUnreachable():
            return Trigger.UNREACHABLE
        case ProcessFailed():
            return Trigger.ENDED
        case DllmError():
            return Trigger.REFUSED
        case _:
            return Trigger.FAULT
