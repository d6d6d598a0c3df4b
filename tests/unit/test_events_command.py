"""``dllm-tui events``: what is shown of the story, and what is left out."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner

from backends.client.client import ControllerClient
from backends.state import Actor, Event, EventKind, EventTone
from tui.cli.logs import events

NOW = datetime.now(UTC)
ANNA = Actor(program="up", user="anna", host="studio", pid=47, tty="pts/3")
STORY = (
    Event(
        number=1,
        at=NOW - timedelta(days=2),
        kind=EventKind.LAUNCH,
        text="launched tiny",
        by=ANNA,
        cluster="second",
    ),
    Event(
        number=2,
        at=NOW - timedelta(minutes=5),
        kind=EventKind.DIED,
        text="worker1 was killed by SIGKILL (signal 9)",
        tone=EventTone.ERROR,
        hint="Launch again to restart it.",
        cluster="default",
        process="worker1",
        exit_signal=9,
        evidence=("load_tensors: \x1b]0;title\x07done",),
    ),
)


@pytest.fixture(autouse=True)
def story(monkeypatch: pytest.MonkeyPatch) -> None:
    async def told(self: ControllerClient, *, after: int = 0) -> tuple[Event, ...]:
        return tuple(event for event in STORY if event.number > after)

    monkeypatch.setattr(ControllerClient, "events", told)


def printed(*options: str) -> str:
    done = CliRunner().invoke(events, options)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_who_did_what_and_when() -> None:
    shown = printed()
    first = (NOW - timedelta(days=2)).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    assert f"{first}  · anna@studio launched tiny\n" in shown
    assert "up, pid 47 on pts/3 · cluster second" in shown
    assert "✗ worker1 was killed by SIGKILL (signal 9)" in shown
    assert "Launch again to restart it." in shown
    assert "load_tensors" not in shown


def test_the_evidence_is_shown_where_it_is_wanted_and_drives_nothing() -> None:
    assert "| load_tensors: done" in printed("--evidence")


def test_only_what_is_new_enough_and_of_one_cluster() -> None:
    assert "launched" not in printed("--since", "2h")
    assert "launched" in printed("--since", "3d")
    assert "SIGKILL" not in printed("--cluster", "second")


def test_json_is_the_whole_of_it() -> None:
    died = json.loads(printed("--since", "1h", "--json"))
    assert [event["kind"] for event in died] == ["died"]
    assert died[0]["exit_signal"] == 9
    assert datetime.fromisoformat(died[0]["at"]) == STORY[1].at


def test_an_age_that_is_none() -> None:
    done = CliRunner().invoke(events, ["--since", "yesterday"])
    assert "2h" in str(done.exception)
