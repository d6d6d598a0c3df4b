"""The story in the console: toasts for what others did, and all of it to read."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from msgspec.structs import replace
from textual.pilot import Pilot

from backends.errors import ControllerError
from backends.state import Actor, Event, EventKind, EventTone
from tests.kit.console import Started
from tests.tui import scenes
from tests.tui.helpers import in_front, screen_text, toasts, until
from tests.tui.scripted import ScriptedCluster
from tui.dialogs.help_and_events import EventsDialog, EvidenceDialog
from tui.screens.logs.screen import LogsScreen

SIZE = (120, 36)
ANNA = Actor(program="console", user="anna", host="studio", pid=1, tty="pts/3")
OURS = Actor(program="console", user="anna", host="studio", pid=os.getpid())
DEATH = {
    "kind": EventKind.DIED,
    "tone": EventTone.ERROR,
    "process": "llama-server",
    "exit_signal": 9,
    "hint": "Launch again; if it repeats, its log says why.",
    "evidence": ("srv  update_slots: all slots are idle", "out of \x1b]0;x\x07memory"),
}


class Storied(ScriptedCluster):
    """A serving cluster to which things happen."""

    def __init__(self) -> None:
        super().__init__(scenes.homelab_serving())

    def happens(self, text: str, *, shown: bool = True, **facts: object) -> None:
        """One more event; the next snapshot tells its number."""
        at = datetime.fromtimestamp(scenes.NOW - 60 + len(self.story), UTC)
        settings = {"kind": EventKind.LAB, "cluster": "default"} | facts
        number = len(self.story) + 1
        event = Event(number=number, at=at, text=text, **settings)  # type: ignore[arg-type]
        self.story.append(event)
        assert self.now is not None
        seq = self.now.seq + 1
        now = replace(self.now, last_event=number, seq=seq)
        if shown:
            self.push(now)
        else:
            self.now = now


async def opened(pilot: Pilot[None]) -> EventsDialog:
    """The events, once the story is there."""
    await pilot.press("e")
    dialog = await in_front(pilot, EventsDialog)
    await until(pilot, lambda: dialog._happenings)
    return dialog


async def test_what_others_did_is_told_and_listed_once(started: Started) -> None:
    cluster = Storied()
    cluster.happens("cleared the lab on mini", by=ANNA, shown=False)
    cluster.errors["events"] = ControllerError("It is gone")
    async with started(cluster) as (pilot, app, _):
        app.tell("Copied the split")
        await opened(pilot)
        await until(pilot, lambda: "Copied the split" in screen_text(app))
        assert any("It is gone" in toast for toast in toasts(app))
        cluster.errors.clear()
        await pilot.press("escape")
        app.clear_notifications()
        cluster.happens("set the lab on mini: +20 ms each way", by=OURS)
        cluster.happens("set the lab on mini: +5 ms each way", by=ANNA)
        told = "anna@studio set the lab on mini: +5 ms each way"
        await until(pilot, lambda: toasts(app))
        assert toasts(app) == [f"{told} (console, pid 1 on pts/3)"], (
            "neither what was before, nor what we did"
        )
        cluster.happens("tiny serves after 1.2 s", kind=EventKind.SERVING)
        cluster.happens("mini is gone", kind=EventKind.PEER, tone=EventTone.WARNING)
        await until(pilot, lambda: len(toasts(app)) == 2)
        assert toasts(app)[1] == "mini is gone"
        dialog = await opened(pilot)
        await until(pilot, lambda: told in screen_text(app))
        listed = [one.text for one in dialog._list.rows]
        assert [told in text for text in listed].count(True) == 1
        assert listed.count("mini is gone") == 1


async def test_the_evidence_and_the_way_to_the_log(started: Started) -> None:
    cluster = Storied()
    cluster.happens("launched GLM", by=ANNA, shown=False)
    cluster.happens("llama-server was killed by SIGKILL", shown=False, **DEATH)
    async with started(cluster) as (pilot, app, _):
        await opened(pilot)
        await until(pilot, lambda: "SIGKILL" in screen_text(app))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, EvidenceDialog))
        await until(pilot, lambda: "out of memory" in screen_text(app))
        text = screen_text(app)
        assert "signal   9" in text
        assert "Launch again; if it repeats" in text
        await pilot.press("y")
        assert "out of memory" in app.clipboard
        await pilot.press("o")
        await until(pilot, lambda: isinstance(app.screen, LogsScreen))
        assert len(app.screen_stack) == 1


async def test_a_filter_and_a_copy_of_what_it_leaves(started: Started) -> None:
    cluster = Storied()
    for n in range(30):
        cluster.happens(f"mini is {'gone' if n % 2 else 'back'}, {n}", shown=False)
    async with started(cluster) as (pilot, app, _):
        dialog = await opened(pilot)
        await until(pilot, lambda: "mini is gone, 29" in screen_text(app))
        await pilot.press("slash", *"gone")
        await until(pilot, lambda: len(dialog._list.rows) == 15)
        assert "15 of 30" in screen_text(app)
        await pilot.press("enter", "y")
        await until(pilot, lambda: "mini is gone, 1" in app.clipboard)
        assert "back" not in app.clipboard
        await pilot.press("g")
        assert dialog._list.selected == 0
        cluster.happens("mini is gone, once more")
        await until(pilot, lambda: len(dialog._list.rows) == 16)
        assert dialog._list.selected == 0, "the reader stays where they were"
        await pilot.press("G", "escape")
        await until(pilot, lambda: app.screen is not dialog)
