"""What a dialog says would end: what runs, not what ran."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from backends.state import ProcessState
from tests.tui import scenes
from tui.flows.plans import _what_ends


@pytest.mark.parametrize(
    ("n_alive", "said"),
    [(3, "3 processes."), (1, "1 process."), (0, "No process yet.")],
)
def test_only_living_processes_are_counted(n_alive: int, said: str) -> None:
    scene = scenes.homelab_serving()
    ended = [replace(p, state=ProcessState.EXITED) for p in scene.processes[n_alive:]]
    processes = (*scene.processes[:n_alive], *ended)
    lines = _what_ends(replace(scene, processes=processes)).splitlines()
    assert lines[1:] == [said, "1 request is being answered."]
