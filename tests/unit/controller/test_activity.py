"""Whether llama-server did anything, without a question in its log."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from backends.controller.serving import LOOK_S, SPEED_IDLE_S, Activity, quiet
from backends.errors import HostError
from backends.state import LogChunk

if TYPE_CHECKING:
    from backends.machines.host import AgentHost

IDLE = "0.01.000.000 I srv  update_slots: all slots are idle\n"
BUSY = "0.01.000.000 I slot launch_slot_: id  0 | task 10 | processing task\n"


class LogHost:
    """A host with one log."""

    def __init__(self) -> None:
        self.log = IDLE
        self.gone = False

    async def read_log(self, name: str, offset: int, limit_bytes: int) -> LogChunk:
        if self.gone:
            raise HostError("gone")
        start = len(self.log) + offset if offset < 0 else offset
        text = self.log[start : start + limit_bytes]
        end = start + len(text)
        return LogChunk(name=name, text=text, offset=start, next_offset=end)


def movement(host: LogHost, carried: dict[str, int]) -> Activity:
    return Activity(
        lambda: dict(carried), cast("AgentHost", host), "default/llama-server"
    )


async def test_bytes_on_the_links() -> None:
    carried = {"worker1": 5, "worker2": 7}
    moves = movement(LogHost(), carried)
    await moves.since()
    assert not await moves.since()
    carried["worker2"] = 8
    assert await moves.since()
    assert not await moves.since()


async def test_without_links_lines_that_are_not_answers_to_us() -> None:
    host = LogHost()
    moves = movement(host, {})
    assert not await moves.since()
    host.log += IDLE
    assert not await moves.since()
    host.log += BUSY + IDLE
    assert await moves.since()
    assert not await moves.since()
    host.gone = True
    assert not await moves.since()


async def test_it_is_asked_anew_when_something_moved_or_after_a_while() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def still() -> bool:
        return False

    async def moved() -> bool:
        return len(slept) == 3

    await quiet(still, sleep)
    assert sum(slept) == SPEED_IDLE_S
    slept.clear()
    await quiet(moved, sleep)
    assert slept == [LOOK_S] * 3
