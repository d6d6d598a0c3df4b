"""Whatever machines, files and models say, on the command line: data, not commands."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from backends.errors import DllmError
from backends.state import (
    ChatDelta,
    ClusterBrief,
    ClusterSnapshot,
    Failure,
    KnownMachine,
    Leftover,
    LogChunk,
    ModelCatalogue,
    ModelFile,
)
from tests.kit.hostile import HOSTILE, MARKUP, drives, filled, hostile, troubles
from tests.tui import peer_scenes as people
from tests.tui import scenes
from tests.unit.models.ggufs import write_gguf
from tui.cli.main import cli, guarded
from tui.cli.progress import StepPrinter


def snapshot() -> ClusterSnapshot:
    """A cluster that serves, on peers of every kind, and one that is left."""
    full = msgspec.structs.replace(
        scenes.homelab_serving(),
        peers=people.EVERY,
        clusters=(ClusterBrief(name="other", model="/m.gguf"),),
        leftovers=(Leftover(name="w", peer="mini", why="gone"),),
    )
    return filled(full)


class HostileClient:
    """A controller's client that is told nothing but attacks."""

    started_controller = False

    def __init__(self, *_: object, cluster: str = "default") -> None:
        self.cluster = cluster

    async def running(self) -> bool:
        return True

    async def snapshot(self) -> ClusterSnapshot:
        return snapshot()

    async def settled_peers(self) -> tuple[Any, ...]:
        return filled(people.EVERY)

    peers = settled_peers

    async def peers_to_pick(self) -> tuple[KnownMachine, ...]:
        return (filled(KnownMachine(name="m", address="ada@m", told_by="mac")),)

    async def probe_peer(self, name: str) -> None:
        raise DllmError(f"{name} {HOSTILE}", HOSTILE)

    async def catalogue(self, *, refresh: bool = False) -> ModelCatalogue:
        model = ModelFile(path="/m", name="m", size_bytes=1, source="s", held_by=("p",))
        broken = msgspec.structs.replace(model, problem="broken")
        return filled(ModelCatalogue(models=(model, broken)))

    async def read_log(self, name: str, offset: int, limit: int) -> LogChunk:
        text = "" if offset == 9 else f"line {HOSTILE}\n" * 9
        return LogChunk(name=name, text=text, offset=0, next_offset=9)

    async def chat(self, request: object) -> AsyncIterator[ChatDelta]:
        for letter in f"so {HOSTILE} done":
            yield ChatDelta(text=letter)
        yield ChatDelta(done=True, finish_reason=HOSTILE)


@pytest.fixture(autouse=True)
def _client(new_user: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backends.client.client.ControllerClient", HostileClient)


COMMANDS = [
    ("status",),
    ("peers", "list"),
    ("peers", "show"),
    ("models",),
    ("logs",),
    ("logs", hostile("mini")),
    ("links", "list"),
    ("chat", "hi"),
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_command_lets_it_through(words: tuple[str, ...]) -> None:
    # Colours are wanted: click itself takes escapes out where they are not.
    shown, told = (
        CliRunner().invoke(cli, [*words, *form], color=True, catch_exceptions=False)
        for form in ((), ("--json",))
    )
    assert MARKUP in shown.output
    assert not troubles(shown.output.replace("\t", ""))
    # JSON drives nothing and loses nothing.
    assert all(c.isprintable() or c == "\n" for c in told.output)
    assert MARKUP in str(json.loads(told.stdout))


def test_names_in_a_header_are_data(tmp_path: Path) -> None:
    metadata = {"general.name": HOSTILE, "general.architecture": "llama"}
    path = write_gguf(tmp_path / "m.gguf", metadata=metadata)
    result = CliRunner().invoke(cli, ["models", "show", str(path)], color=True)
    assert MARKUP in result.output
    assert not drives(result.output)


def test_errors_and_what_was_typed_are_data(capsys: pytest.CaptureFixture[str]) -> None:
    failure = filled(Failure(what="It broke", hint="Mend it", log_tail=("line",)))

    def fail() -> None:
        raise DllmError(failure.what, failure.hint)

    guarded(fail)
    guarded(lambda: cli([HOSTILE], standalone_mode=False))
    guarded(lambda: cli(["up", f"--{HOSTILE}"], standalone_mode=False))
    printed = capsys.readouterr().err
    assert MARKUP in printed
    assert not drives(printed)


def test_steps_are_data(capsys: pytest.CaptureFixture[str]) -> None:
    printer = StepPrinter()
    for at in range(7):
        step = filled(scenes.demo_steps(at, 0.5))
        printer.show(msgspec.structs.replace(snapshot(), steps=step))
    printed = capsys.readouterr().err
    assert MARKUP in printed
    assert not troubles(printed)
