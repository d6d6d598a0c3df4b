"""What dies again and again is given up; what dies now and then is not."""

from __future__ import annotations

from backends.controller.breaker import DEATHS_MAX, WINDOW_S, Breaker


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def died(breaker: Breaker, clock: Clock, after_s: float, kind: str = "worker1") -> bool:
    """Serve so long, then die."""
    with breaker.serving():
        clock.now += after_s
    return breaker.trips(kind)


def test_the_fifth_death_within_the_window_is_one_too_many() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    assert [died(breaker, clock, 1) for _ in range(DEATHS_MAX)] == [
        *[False] * (DEATHS_MAX - 1),
        True,
    ]


def test_other_deaths_are_counted_for_themselves() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    kinds = ("worker1", "worker2") * (DEATHS_MAX - 1)
    assert not any(died(breaker, clock, 1, kind) for kind in kinds)


def test_what_serves_for_long_between_deaths_is_never_given_up() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    pause_s = WINDOW_S / (DEATHS_MAX - 2)
    assert not any(died(breaker, clock, pause_s) for _ in range(50))


def test_time_that_is_spent_loading_does_not_count() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    for _ in range(DEATHS_MAX - 1):
        assert not died(breaker, clock, 1)
        clock.now += 10 * WINDOW_S
    assert died(breaker, clock, 1)


def test_a_word_of_somebody_begins_anew() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    for _ in range(DEATHS_MAX - 1):
        died(breaker, clock, 1)
    breaker.reset()
    assert not died(breaker, clock, 1)
