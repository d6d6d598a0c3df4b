"""Queries that a changed edit or snapshot raises, news, and records of all that."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from textual.timer import Timer

from backends.errors import ControllerError, DllmError
from backends.state import Event, EventKind, EventTone, Plan, PlanMemory
from tui.api.services import RecordService
from tui.app.console import ClusterConsole, Flow
from tui.model.events import happening_of

if TYPE_CHECKING:
    from tui.dialogs.help_and_events import EventsDialog


SETTLE_S = 0.3
"""A plan that is unchanged for so long is checked."""
SPEEDS_S = 0.1
"""A finished answer is learnt from within so long."""
GROUP = "memory"
_Ground = tuple[object, ...]
_Ask = Callable[[Plan, _Ground], Coroutine[Any, Any, None]]


class _Delayed(Flow):
    """Asks something once nothing has changed for a while."""

    _timer: Timer | None = None

    def _ask_later(
        self, delay_s: float, ask: Callable[[], Coroutine[Any, Any, None]], group: str
    ) -> None:
        self._forget()
        self._timer = self._app.set_timer(
            delay_s, lambda: self._app.attempt(ask(), group=group)
        )

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer = None


class MemoryQuery(_Delayed):
    """Asks for the memory of a plan that rests; a move cancels the check before."""

    def __init__(self, app: ClusterConsole) -> None:
        super().__init__(app)
        self._plan: Plan | None = None

    def look(self) -> None:
        plan = self._editor.unsettled
        if plan == self._plan:
            return
        self._plan = plan
        self._forget()
        self._app.workers.cancel_group(self._app, GROUP)
        if plan is not None:
            self._ask_later(SETTLE_S, lambda: self._ask(plan), GROUP)

    async def _ask(self, plan: Plan) -> None:
        try:
            memory = await self._cluster.memory(plan)
        except DllmError as error:
            # The prediction stays, and why is said beside it: nothing to alarm anyone.
            memory = PlanMemory(devices=(), note=str(error))
        self._editor.settle(plan, memory)


class _GroundQuery(_Delayed):
    """Asks once all that the answer depends on, its ground, is another."""

    _ground: _Ground | None = None

    def _is_new(self, ground: _Ground | None) -> bool:
        if ground == self._ground:
            return False
        self._ground = ground
        self._forget()
        return True

    def _look(self, ground: _Ground | None, delay_s: float, ask: _Ask) -> None:
        plan = self._editor.plan
        if self._is_new(ground) and plan is not None and ground is not None:
            self._ask_later(delay_s, lambda: ask(plan, ground), type(self).__name__)


class SpeedsQuery(_GroundQuery):
    """Asks for the speeds of the edited plan's devices; any split needs no more."""

    def look(self) -> None:
        self._look(self._editor.speeds_ground, SPEEDS_S, self._ask)

    async def _ask(self, plan: Plan, ground: _Ground) -> None:
        # Without an answer nothing is predicted, which alarms nobody.
        with suppress(DllmError):
            self._editor.learn_speeds(plan, await self._cluster.speeds(plan))


class BestPlansQuery(_GroundQuery):
    """Asks for the best plans before a launch, so that a faster one is not missed."""

    def look(self) -> None:
        self._look(self._editor.others_ground, SETTLE_S, self._ask)

    async def _ask(self, plan: Plan, ground: _Ground) -> None:
        # Without an answer nothing is compared, which alarms nobody.
        try:
            self._editor.learn_others(ground, await self._cluster.best(plan))
        except ControllerError:
            self._ground = None
        except DllmError:
            pass


class BottleneckQuery(_GroundQuery):
    """Asks what a token waits for, whenever an answer may have shown something new."""

    def look(self) -> None:
        ground = self._editor.bottleneck_ground
        if not self._is_new(ground):
            return
        if ground is None:
            self._editor.learn_bottleneck(None)
        else:
            self._ask_later(SPEEDS_S, lambda: self._ask(ground), "why")

    async def _ask(self, ground: _Ground) -> None:
        found = None
        # Without an answer the line is empty, which alarms nobody.
        with suppress(DllmError):
            found = await self._cluster.why()
        if ground == self._editor.bottleneck_ground:
            self._editor.learn_bottleneck(found)


class HeaderQuery(Flow):
    """Asks once for each file and goal, however many snapshots come meanwhile."""

    def __init__(self, app: ClusterConsole) -> None:
        super().__init__(app)
        self._asked: tuple[str, int] | None = None

    def look(self) -> None:
        plan, snapshot = self._editor.plan, self._editor.snapshot
        if plan is None or snapshot is None or self._editor.model is not None:
            return
        asked = plan.model, snapshot.generation
        if asked != self._asked:
            self._asked = asked
            self._app.attempt(self._read(plan.model), group="header")

    async def _read(self, path: str) -> None:
        model = await self._cluster.inspect(path)
        self._editor.learn(path, model)


# --- news ----------------------------------------------------------------------

NEWS = frozenset({EventKind.MENDED, EventKind.WAITING, EventKind.PEER, EventKind.WAY})
"""Kinds of event that the controller causes by itself and no pane shows."""


class EventFeed(Flow):
    """Follows the story by the number that snapshots bring."""

    def __init__(self, app: ClusterConsole) -> None:
        super().__init__(app)
        self._seen: int | None = None
        self._reading = False
        self._dialog: EventsDialog | None = None

    def look(self) -> None:
        newest = self._editor.snapshot.last_event if self._editor.snapshot else 0
        if self._seen is None or newest < self._seen:
            self._seen = newest
        elif newest > self._seen and not self._reading:
            self._reading = True
            self._app.attempt(self._read(), group="story", exclusive=False)

    def forget(self) -> None:
        """Take the next snapshot's events for old: another moment is shown."""
        self._seen = None

    async def show(self) -> None:
        # Imported when needed, like all dialogs.
        from tui.dialogs.help_and_events import EventsDialog

        dialog = EventsDialog(self._app.event_log, self._app.clock)
        self._app.attempt(self._fill(dialog), group="fill events")
        await self._app.push_screen_wait(dialog)
        self._dialog = None

    async def _fill(self, dialog: EventsDialog) -> None:
        story = await self._cluster.events()
        self._seen = max(self._seen or 0, story[-1].number if story else 0)
        dialog.add(story)
        self._dialog = dialog

    async def _read(self) -> None:
        try:
            story = await self._cluster.events(after=self._seen or 0)
        except DllmError:
            # The bridge says that the controller is gone; it is asked again later.
            return
        finally:
            self._reading = False
        if story:
            self._seen = story[-1].number
        if self._dialog is not None:
            self._dialog.add(story)
        for event in story:
            self._tell(event)

    def _tell(self, event: Event) -> None:
        others = bool(event.by.program) and event.by.pid != os.getpid()
        is_slip = event.kind is EventKind.SETTINGS and event.tone is EventTone.WARNING
        if not others and event.kind not in NEWS and not is_slip:
            return
        who = f" ({event.by.details})" if others else ""
        text = f"{happening_of(event).text}{who}"
        self._app.tell(text, event.tone.value, keep=False)


# --- records -------------------------------------------------------------------

RECORD_TITLE = "Record this console?"
RECORD_TEXT = """\
What it is told goes to a file in this folder, to be replayed anywhere: snapshots, \
events, logs and chats. API keys, tokens and passwords are left out; names and \
addresses of machines are not."""


class RecordFlow(Flow):
    """Begins a record, follows it, and ends it."""

    def __init__(self, app: ClusterConsole, records: RecordService | None) -> None:
        super().__init__(app)
        self._records = records

    def look(self) -> None:
        """Follow the record that goes on, if one does."""
        if self._records is not None and self._records.file:
            self._app.show_recording(True)
            self._app.attempt(self._follow(self._records), group="recording")

    async def switch(self) -> None:
        # Imported when needed, like all dialogs.
        from tui.dialogs.dialog import ChoiceDialog
        from tui.widgets.row_list import Choice

        records = self._records
        if records is None:
            self._app.tell(self._app.refusal, "warning")
            return
        if records.file:
            said = await records.end()
            self._app.show_recording(False)
            self._app.tell(f"Recorded {said}")
            return
        choices = (
            Choice("words", "Record all", "r", "with prompts and answers"),
            Choice("none", "Record without words", "w", "each sign becomes a dot"),
            Choice("cancel", "Cancel", "n"),
        )
        chosen = await self._app.push_screen_wait(
            ChoiceDialog(RECORD_TITLE, RECORD_TEXT, choices)
        )
        if chosen in ("words", "none"):
            size = self._app.size.width, self._app.size.height
            records.begin(size=size, words=chosen == "words")
            self._app.tell(f"Recording to {records.file}; {{app.record}} ends it")
            self.look()

    async def _follow(self, records: RecordService) -> None:
        file = records.file
        why = await records.follow()
        self._app.show_recording(False)
        if why:
            self._app.tell(f"The record {file} ends here: {why}", "error")
