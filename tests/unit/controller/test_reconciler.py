"""The table of the reconciler; what it comes to is in ``test_scenarios``."""

from __future__ import annotations

from itertools import chain

from backends.controller.reconciler import (
    REQUESTS,
    TRANSITIONS,
    Phase,
    Trigger,
    next_phase,
)


def test_every_phase_has_a_row_and_can_be_reached() -> None:
    assert set(TRANSITIONS) == set(Phase)
    led_to = chain(REQUESTS.values(), *(row.values() for row in TRANSITIONS.values()))
    assert set(Phase) == set(led_to)


def test_a_request_holds_in_every_phase() -> None:
    for phase in Phase:
        assert next_phase(phase, Trigger.STOPPED) is Phase.STOPPING
        assert next_phase(phase, Trigger.LAUNCHED) is Phase.REACHING


def test_what_the_table_does_not_know_is_a_failure() -> None:
    assert next_phase(Phase.REACHING, Trigger.UNREACHABLE) is Phase.FAILED
    assert next_phase(Phase.WAITING, Trigger.FAULT) is Phase.FAILED
