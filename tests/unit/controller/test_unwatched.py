"""What a controller blames that takes over a cluster nobody watched for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from backends.controller import unwatched
from backends.controller.breaker import DEATHS_MAX, Breaker
from backends.controller.journal import Journal, Record
from backends.controller.unwatched import UnwatchedDeaths, ended_unwatched
from backends.errors import HostError, ProcessFailed
from backends.machines.host import ProcessRecord
from backends.planning.blueprint import needed_names
from backends.split.layout import make_split
from backends.state import Failure, Plan, ProcessRole, ProcessState, WorkerSpec
from tests.kit.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

PLAN = Plan(
    model="/m.gguf",
    split=make_split(12, ["bob/CPU"], [13]),
    workers=(WorkerSpec(name="bob", peer="bob"),),
)


class Everywhere:
    """Machines on which all of a plan was started, and some of it ended."""

    def __init__(self, *ended: str) -> None:
        self.ended = ended

    def get(self, name: str) -> Everywhere:
        return self

    @property
    def host(self) -> Everywhere:
        return self

    async def record(self, name: str) -> ProcessRecord:
        ended = name.removeprefix("default/") in self.ended
        return ProcessRecord(
            name=name,
            role=ProcessRole.OTHER,
            state=ProcessState.EXITED if ended else ProcessState.RUNNING,
            pid=1,
            argv=(),
            exit_signal=9 if ended else None,
        )

    async def read_log(self, *_: object) -> None:
        raise HostError("There is none")


async def blamed(*ended: str) -> Failure | None:
    machines = cast("Any", Everywhere(*ended))
    return await ended_unwatched("default", PLAN, machines, 1.0)


@pytest.mark.parametrize("name", ["worker-relay-bob", "relay-bob", "llama-server"])
async def test_what_is_started_again_with_the_tunnels_is_not_to_blame(
    name: str,
) -> None:
    assert name in needed_names(PLAN)
    assert await blamed(name) is None


async def test_a_worker_is_to_blame_before_its_relay() -> None:
    failure = await blamed("bob", "worker-relay-bob")
    assert failure is not None
    assert failure.process == "bob"


def at_every_boot(folder: Path, failure: Failure, boots: int) -> list[bool]:
    """Whether each controller of so many gives up what it finds ended."""
    given_up = []
    for _ in range(boots):
        journal = Journal(folder / "default.json")
        journal.load()
        breaker = Breaker(lambda: 0.0)
        try:
            UnwatchedDeaths(journal, breaker).add(failure)
            given_up.append(breaker.trips(failure.process))
        except ProcessFailed as error:
            given_up.append("5 times before it served" in error.what)
    return given_up


@pytest.mark.parametrize("server", ["", "one"])
async def test_what_ends_at_every_boot_is_given_up(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    died = Failure(what="worker1 is gone", process="worker1", argv=("rpc-server",))
    journal = Journal(tmp_path / "default.json")
    journal.save(Record(server=server))
    kept = [False] * (DEATHS_MAX - 1)
    assert at_every_boot(tmp_path, died, DEATHS_MAX) == [*kept, True]
    # It served for long, or somebody launched it anew.
    journal.load()
    monkeypatch.setattr(unwatched, "WINDOW_S", 0.01)
    with UnwatchedDeaths(journal, Breaker(lambda: 0.0)).serving():
        await until(lambda: not journal.record.unwatched_deaths)
    assert at_every_boot(tmp_path, died, DEATHS_MAX) == [*kept, True]


def test_what_was_never_started_is_no_death(tmp_path: Path) -> None:
    Journal(tmp_path / "default.json").save(Record())
    missing = Failure(what="worker1 is gone with its directory", process="worker1")
    journal = Journal(tmp_path / "default.json")
    for _ in range(DEATHS_MAX):
        UnwatchedDeaths(journal, Breaker(lambda: 0.0)).add(missing)
    assert journal.load().unwatched_deaths == 0
