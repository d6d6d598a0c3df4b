"""The console on a record: what it was told then, at any moment of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from typing import Any

from textual import on
from textual.binding import BindingType
from textual.timer import Timer
from textual.widget import Widget

from backends.errors import DllmError
from backends.state import ClusterSnapshot, MarkKind
from backends.state.races import Race
from tui.actions import ACTING, ACTIONS, bindings, split_keys
from tui.api.bridge import DRAW_INTERVAL_S
from tui.api.services import ClusterService, ReplayService
from tui.app.app import DllmApp
from tui.model.events import Severity
from tui.model.trends import KEPT_EVERY_S, TrendTrack
from tui.widgets.keys import takes_text
from tui.widgets.replay_bar import ReplayBar, moment

REFUSAL = "This is a replay: nothing runs here that could be changed"
SPEEDS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
CLOSE_S = 0.05
"""A mark so near is the one that is shown."""
_TONES: dict[MarkKind, Severity] = {MarkKind.FAULT: "error"}


REPLAY_KEYS = {key for a in ACTIONS if a.area == "replay" for key in split_keys(a.keys)}
TAKEN = frozenset(
    a.id for a in ACTIONS if a.area != "replay" and REPLAY_KEYS & {*split_keys(a.keys)}
)
"""Actions that lost a key to the replay's."""
EDITING = frozenset(a.id for a in ACTIONS if a.area in ("cluster", "split", "layers"))


def _without(found: list[BindingType], left_out: str) -> list[BindingType]:
    return [one for one in found if getattr(one, "id", "") != left_out]


class ReplayApp(DllmApp, inherit_bindings=False):
    """A console that plays a record; all that would act is refused.

    Args:
        bare: Whether it looks as it did then, without anything about the replay.
    """

    CSS = "ToastRack { margin-bottom: 5; }"
    BINDINGS = [*_without(bindings("app"), "app.freeze"), *bindings("replay")]

    def __init__(
        self,
        cluster: ClusterService,
        replay: ReplayService,
        *,
        bare: bool = False,
        **options: Any,
    ) -> None:
        self._replay = replay
        self._bare = bare
        self._track = TrendTrack(replay.snapshots)
        self._shown: ClusterSnapshot | None = None
        self._trouble = ""
        self._racing = self._has_swept = False
        self._ticks: Timer | None = None
        super().__init__(
            cluster,
            readonly=not bare,
            clock=lambda: replay.began_at + replay.position_s,
            **options,
        )
        self.refusal = REFUSAL
        if not bare:
            self.note = "replay"
            self.unoffered = ACTING | EDITING | TAKEN

    def bottom_bars(self) -> Iterable[Widget]:
        if not self._bare:
            yield ReplayBar(self._replay)

    def on_mount(self) -> None:
        self._replay.play(True)
        self._tick()
        self.run_worker(self._look_ahead(), group="trends", exit_on_error=False)

    def _listen(self) -> None:
        if self._ticks is None:
            self._ticks = self.set_interval(DRAW_INTERVAL_S, self._tick)
        else:
            self._tick()

    async def _look_ahead(self) -> None:
        # A few seconds of the record a time, so that nothing waits for it.
        for _ in range(int(self._replay.duration_s / KEPT_EVERY_S) + 1):
            self._track.extend()
            await asyncio.sleep(0.01)

    def _tick(self) -> None:
        # A timer of the app may fire once more when its screens are gone.
        base = next(iter(self.screen_stack), None)
        if base is None or not base.is_mounted:
            return
        for bar in base.query(ReplayBar):
            bar.redraw_changed()
        try:
            snapshot = self._replay.snapshot()
        except DllmError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                self.report(error.failure(self.clock()))
            return
        if snapshot is None:
            self._show_link(False)
        elif snapshot is not self._shown:
            self._show_link(True)
            self._shown = snapshot
            self.editor.rewind(self._track.at(self._replay.position_s))
            self.take(snapshot)
        self._show_race_and_sweep()

    # --- races and sweeps ------------------------------------------------------------

    def _show_race_and_sweep(self) -> None:
        before, self._racing = self._racing, self._replay.race()[1]
        if self._racing and not before and not self._bare:
            self.tell("A race goes on: {replay.race} shows it", keep=False)
        sweep, goes_on = self._replay.sweep()
        if sweep is None and not self._has_swept:
            return
        # Imported when needed: most records have no sweep.
        from tui.screens.lab.screen import LabScreen

        self._has_swept = True
        for screen in self._screens():
            if isinstance(screen, LabScreen):
                screen.show_recorded(sweep, goes_on=goes_on)

    def action_race(self) -> None:
        from tui.screens.cluster.race_dialog import RaceDialog

        race, _ = self._replay.race()
        if race is None:
            self.tell("No race was run up to this moment", "warning", keep=False)
        else:
            self.push_screen(RaceDialog(race, self._race_states(), serves=None))

    async def _race_states(self) -> AsyncGenerator[Race, None]:
        goes_on = True
        while goes_on:
            race, goes_on = self._replay.race()
            if race is not None:
                yield race
            await asyncio.sleep(DRAW_INTERVAL_S)

    # --- the scrubber ----------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in ("play", "skip", "skip_to_mark", "run_faster", "race"):
            # A dialog, or a text being typed, takes these keys.
            taken = self.screen.is_modal or takes_text(self.focused)
            return not (taken or self._bare)
        return super().check_action(action, parameters)

    @on(ReplayBar.Sought)
    def _sought(self, message: ReplayBar.Sought) -> None:
        self.seek(message.at_s)

    def seek(self, at_s: float) -> None:
        self._replay.seek(at_s)
        self._shown, self._trouble = None, ""
        self.clear_notifications()
        self._event_feed.forget()
        self._tick()
        self._chat_flows.look_again()
        for screen in self._screens():
            screen.read_again()

    def action_play(self) -> None:
        began_again = self._replay.position_s >= self._replay.duration_s
        self._replay.play(not self._replay.playing)
        if began_again:
            self.seek(self._replay.position_s)
        self._tick()

    def action_skip(self, seconds: float) -> None:
        self.seek(self._replay.position_s + seconds)

    def action_skip_to_mark(self, direction: int) -> None:
        here = self._replay.position_s
        marks = [
            mark
            for mark in self._replay.marks
            if (mark.at_s - here) * direction > CLOSE_S
        ]
        if not marks:
            self.bell()
            return
        mark = marks[0 if direction > 0 else -1]
        self._replay.play(False)
        self.seek(mark.at_s)
        tone = _TONES.get(mark.kind, "information")
        self.tell(f"{moment(mark.at_s)} · {mark.text}", tone, keep=False)

    def action_run_faster(self, steps: int) -> None:
        place = SPEEDS.index(self._replay.speed) + steps
        if 0 <= place < len(SPEEDS):
            self._replay.run_at(SPEEDS[place])
        else:
            self.bell()
        self._tick()
