"""What is said when something of a cluster is not there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from backends.controller import watch
from backends.controller.watch import Expected, Watch
from backends.errors import HostError, ProcessFailed


async def test_a_lost_process_directory_is_told_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "SETTLE_S", 0.0)
    machine = SimpleNamespace(name="ada", host=SimpleNamespace(seen=()))
    machines: Any = SimpleNamespace(get=lambda _: machine)
    ways: Any = SimpleNamespace(require_open=lambda: None)
    looks = Watch(machines, ways, lambda: 5.0)
    looks.expected = (Expected(machine="ada", name="default/w", incarnation="7@1"),)
    with pytest.raises(ProcessFailed) as told:
        await looks.require()
    failure = told.value.failure()
    assert (failure.process, failure.at) == ("w", 5.0)
    assert failure.sentence == (
        "The process directory of w is gone. Something else on ada has deleted it; "
        "launch again to make it anew."
    )


async def test_what_was_reported_of_an_earlier_build_is_forgotten() -> None:
    machines: Any = SimpleNamespace(get=lambda _: None)
    ways: Any = SimpleNamespace(require_open=lambda: None)
    looks = Watch(machines, ways, lambda: 5.0)
    looks.report(HostError("the gateway cannot be started"))
    looks.forget()
    await looks.require()
    looks.report(HostError("nor can this one"))
    with pytest.raises(HostError, match="nor can this one"):
        await looks.require()
