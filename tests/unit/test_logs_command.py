"""``dllm-tui logs``: the end of a log, and only what is serious enough."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from backends.client.client import ControllerClient
from backends.state import (
    Actor,
    ClusterSnapshot,
    Event,
    EventKind,
    EventTone,
    LogChunk,
    ProcessInfo,
    ProcessRole,
    ProcessState,
)
from tui.cli import logs as module
from tui.cli.logs import events

LOG = "".join(
    f"0.00.{n % 60:03d}.000 {'E' if n % 1000 == 5 else 'I'} line {n}\n"
    for n in range(20_000)
)


@pytest.fixture(autouse=True)
def server_log(monkeypatch: pytest.MonkeyPatch) -> None:
    async def names(cluster: str) -> list[str]:
        return ["llama-server"]

    async def read_log(
        self: ControllerClient, name: str, offset: int, limit_bytes: int
    ) -> LogChunk:
        start = max(len(LOG) + offset, 0) if offset < 0 else offset
        text = LOG[start : start + limit_bytes]
        end = start + len(text)
        return LogChunk(name=name, text=text, offset=start, next_offset=end)

    monkeypatch.setattr(module, "_names", names)
    monkeypatch.setattr(ControllerClient, "read_log", read_log)


def printed(*options: str) -> list[str]:
    done = CliRunner().invoke(module.logs, ["llama-server", *options])
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


def test_the_last_lines() -> None:
    shown = printed("-n", "3")
    assert [line[-10:] for line in shown] == [f"line {n}" for n in range(19997, 20000)]


def test_errors_from_anywhere_in_the_log() -> None:
    assert [line.split()[-1] for line in printed("-n", "4", "--level", "error")] == [
        *("16005", "17005", "18005", "19005")
    ]
    assert len(printed("--level", "warning")) == 20
    assert printed("-n", "0", "--level", "error") in ([], [""])


def test_where_nothing_was_started_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_names(cluster: str) -> list[str]:
        return []

    monkeypatch.setattr(module, "_names", no_names)
    done = CliRunner().invoke(module.logs, [])
    assert (done.stdout, done.stderr) == ("", "No process has been started.\n")
    assert CliRunner().invoke(module.logs, ["--json"]).stdout == "[]\n"


# --- several logs as one ---

AT = datetime(2026, 11, 27, 12, 0, tzinfo=UTC)


@pytest.fixture
def two_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {
        "controller": f"{_stamp(AT)} I serves\n",
        "worker1": f"{_stamp(AT - timedelta(hours=3))} W old\n"
        f"{_stamp(AT + timedelta(seconds=1))} E \x1b[31mno room\nand more",
    }
    started = ProcessInfo(
        name="worker1", role=ProcessRole.WORKER, state=ProcessState.RUNNING
    )

    async def snapshot(self: ControllerClient) -> ClusterSnapshot:
        return ClusterSnapshot(processes=(started,))

    async def names(cluster: str) -> list[str]:
        return ["worker1"]

    async def read_log(
        self: ControllerClient, name: str, offset: int, limit_bytes: int
    ) -> LogChunk:
        text = texts[name]
        return LogChunk(name=name, text=text, offset=0, next_offset=len(text))

    monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: AT.timestamp()))
    monkeypatch.setattr(module, "_names", names)
    monkeypatch.setattr(ControllerClient, "snapshot", snapshot)
    monkeypatch.setattr(ControllerClient, "read_log", read_log)


def _stamp(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.000Z")


@pytest.mark.usefixtures("two_logs")
def test_all_logs_are_one_in_the_order_of_time() -> None:
    def merged(*options: str) -> list[str]:
        done = CliRunner().invoke(module.logs, options)
        assert done.exit_code == 0, done.output
        return done.stdout.splitlines()

    noon = AT.astimezone().strftime("%H:%M")
    assert merged("--all", "--since", "1h") == [
        f" {noon}:00.000 controller    │ I serves",
        f" {noon}:01.000 worker1       │ E no room",
        f"~{noon}:01.000 worker1       │ and more",
    ]
    of_one = merged("worker1", "--since", "1d", "-n", "2")
    assert [line[30:] for line in of_one] == ["E no room", "and more"]
    assert len(merged("worker1", "controller", "--level", "warning")) == 2
    told = json.loads("\n".join(merged("--all", "--json", "-n", "1")))
    assert told[0]["process"] == "worker1"
    done = CliRunner().invoke(module.logs, ["--all", "worker9"])
    assert "There is no process worker9" in str(done.exception or done.output)


# --- ``dllm-tui events``: what is shown of the story, and what is left out ---

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
        text="worker1 was killed by SIGKILL",
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


def told(*options: str) -> str:
    done = CliRunner().invoke(events, options)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_who_did_what_and_when() -> None:
    shown = told()
    first = (NOW - timedelta(days=2)).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    assert f"{first}  · anna@studio launched tiny\n" in shown
    assert "up, pid 47 on pts/3 · cluster second" in shown
    assert "✗ worker1 was killed by SIGKILL" in shown
    assert "Launch again to restart it." in shown
    assert "load_tensors" not in shown


def test_the_evidence_is_shown_where_it_is_wanted_and_drives_nothing() -> None:
    assert "| load_tensors: done" in told("--evidence")


def test_only_what_is_new_enough_and_of_one_cluster() -> None:
    assert "launched" not in told("--since", "2h")
    assert "launched" in told("--since", "3d")
    assert "SIGKILL" not in told("--cluster", "second")


def test_json_is_the_whole_of_it() -> None:
    died = json.loads(told("--since", "1h", "--json"))
    assert [event["kind"] for event in died] == ["died"]
    assert died[0]["exit_signal"] == 9
    assert datetime.fromisoformat(died[0]["at"]) == STORY[1].at


def test_an_age_that_is_none() -> None:
    done = CliRunner().invoke(events, ["--since", "yesterday"])
    assert "2h" in str(done.exception)
