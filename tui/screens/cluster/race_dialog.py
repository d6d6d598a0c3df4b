"""The dialogs of a race: which plans, and both answers side by side."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

from textual import events, on, work
from textual.app import ComposeResult
from textual.containers import Container, Vertical, VerticalScroll
from textual.strip import Strip
from textual.timer import Timer
from textual.widgets import Input, Static

from backends.bench.race_verdict import NAMES, figures_text, verdict_of
from backends.errors import DllmError
from backends.split.cost import band_text
from backends.split.layout import counted_text, shares_text
from backends.state.races import (
    RACE_PROMPT,
    Contestant,
    Race,
    RaceRequest,
    RaceSide,
    RaceStage,
)
from backends.units import format_percent, format_seconds, format_speed
from tui.actions import bindings
from tui.app.messages import Copyable
from tui.dialogs.dialog import Dialog
from tui.model.contestants import side_title
from tui.widgets.inputs import LineInput
from tui.widgets.row_list import RowList
from tui.widgets.safe_text import safe, safe_line
from tui.widgets.strips import (
    Drawn,
    Part,
    StripWidget,
    clip,
    line,
    retitle,
    spread,
)
from tui.widgets.throttle import Throttle

NAME_CELLS = 22
SAME_PLAN = "A is this plan: move to another one."
HOW = (
    "Each plan is launched in turn and answers the prompt. {then} "
    "Clients of the API wait meanwhile."
)
NOTHING_AFTERWARDS = "Nothing serves now: nothing does afterwards."


class ContestantRows(RowList, can_focus=True):
    """The plans there are: one is A, the one under the cursor is B."""

    MOST = 12
    CLICKS = 2

    first: Drawn[int] = Drawn(0)
    """The index of A."""

    def row(self, row: Contestant, here: bool, width: int) -> Strip:
        palette = self.palette
        is_first = self.rows.index(row) == self.first
        sign = "A" if is_first else "B" if here else " "
        layers = counted_text(row.plan.split) if row.plan else _asked_text(row)
        left: list[Part] = [
            ("▸ " if here else "  ", palette.key),
            (f"{sign} ", palette.accent),
            (clip(row.name, NAME_CELLS), palette.strong if here else palette.text),
            (f" {layers}", palette.dim),
        ]
        return line(left, width)


def _asked_text(row: Contestant) -> str:
    return shares_text(row.ask.split or {}) if row.ask else ""


class RaceSetup(Dialog[RaceRequest | None]):
    """Dismisses with the race to run, or None."""

    HELP = """\
## Race

One prompt for two plans of one model. *A* is what serves, unless **{racing.make_a}**
makes the row under the cursor A. *B* is the row under the cursor; **{racing.begin}**
begins.

Each plan is launched, warmed up and asked, one after the other: so each has all
machines to itself. Then what served before serves again, with its simulated links.
"""
    BINDINGS = bindings("racing")
    DEFAULT_CSS = """
    RaceSetup {
        & Input { margin: 0 0 1 0; }
        & Static { height: auto; margin: 1 0 0 0; color: $dim; }
    }
    """

    def __init__(self, contestants: tuple[Contestant, ...], *, serves: bool) -> None:
        super().__init__()
        self._list = ContestantRows()
        self._list.set_reactive(RowList.rows, contestants)
        self._list.set_reactive(RowList.selected, 1)
        self._prompt = LineInput(RACE_PROMPT, placeholder="the prompt")
        then = "Then what serves now serves again." if serves else NOTHING_AFTERWARDS
        self._said = Static(HOW.format(then=then), markup=False)

    def compose(self) -> ComposeResult:
        keys = (
            ("racing.begin", "begins"),
            ("racing.make_a", "makes A"),
            ("racing.next", "prompt"),
            ("racing.cancel", "cancels"),
        )
        with self.frame("Race two plans", *keys):
            yield self._prompt
            yield self._list
            yield self._said

    def on_mount(self) -> None:
        self._list.focus()

    def add(self, more: tuple[Contestant, ...]) -> None:
        """Add plans that took a moment to find."""
        at = self._list.selected
        self._list.rows = (*self._list.rows, *more)
        self._list.selected = at

    def action_select(self, by: int) -> None:
        self._list.move(by)

    def action_next_field(self) -> None:
        self.focus_next()

    def action_make_first(self) -> None:
        self._list.first = self._list.selected

    @on(Input.Submitted)
    @on(RowList.Picked)
    def action_choose(self) -> None:
        rows, first = self._list.rows, self._list.first
        if first == self._list.selected or not self._prompt.value.strip():
            self.app.bell()
            self._said.update(SAME_PLAN if self._prompt.value.strip() else "No prompt.")
            return
        self.dismiss(
            RaceRequest(
                contestants=(rows[first], self._list.chosen),
                prompt=self._prompt.value,
            )
        )


# --- the race ------------------------------------------------------------------------

REDRAWN_S = 0.15
STEP_S = 0.1
"""Between two moments of the replay."""
NARROW_BELOW = 100
FACT_ROWS = 4
FACT_GAP = " · "


class SideFacts(StripWidget):
    DEFAULT_CSS = "SideFacts { height: 4; }"

    side: Drawn[RaceSide | None] = Drawn(None)
    at_s: Drawn[float | None] = Drawn(None)
    """The moment of a replay."""

    def draw(self, width: int, height: int) -> list[Strip]:
        if self.side is None:
            return []
        side, palette = self.side, self.palette
        plan = counted_text(side.plan.split) if side.plan else ""
        told = f"predicted {band_text(side.predicted)}" if side.predicted else ""
        looks = {RaceStage.DONE: palette.ok, RaceStage.FAILED: palette.bad}
        look = looks.get(side.stage, palette.warn)
        doing = doing_text(side, self.at_s)
        if height < FACT_ROWS:
            rest = [(f"{plan}  ", palette.dim)]
            return [
                spread(rest, [(told, palette.dim)], width),
                line([(doing, look)], width),
            ]
        first, _, more = doing.partition(FACT_GAP)
        head, _, details = more.partition(FACT_GAP)
        return [
            line([(plan, palette.dim)], width),
            line([(told, palette.dim)], width),
            line([(FACT_GAP.join(filter(None, (first, head))), look)], width),
            line([(details, palette.dim)], width),
        ]


def doing_text(side: RaceSide, at_s: float | None = None) -> str:
    """Tell the step of a side, or its figures; in the replay its speed so far."""
    if at_s is not None and side.figures is not None:
        seen = [piece.at_s for piece in side.pieces if piece.at_s <= at_s]
        return f"{format_seconds(at_s)} · {len(seen)} pieces{_speed_text(seen)}"
    match side.stage:
        case RaceStage.WAITING:
            return "waits for its turn"
        case RaceStage.LAUNCHING if side.step is not None:
            part = side.step.progress
            done = "" if part is None else f" {format_percent(part)}"
            return f"{side.step.title}{done}"
        case RaceStage.ANSWERING:
            seen = [piece.at_s for piece in side.pieces]
            return f"answers{_speed_text(seen)}"
        case RaceStage.DONE if side.figures is not None:
            return figures_text(side.figures)
        case RaceStage.FAILED if side.failure is not None:
            return "failed"
    return ""


def _speed_text(at_s: list[float]) -> str:
    if len(at_s) < 2 or at_s[-1] <= at_s[0]:
        return ""
    return f" · {format_speed((len(at_s) - 1) / (at_s[-1] - at_s[0]))}"


class SidePane(Vertical):
    DEFAULT_CSS = """
    SidePane {
        width: 1fr; height: 1fr; padding: 0 1;
        & VerticalScroll { height: 1fr; scrollbar-size-vertical: 1; }
        & .race-text { height: auto; margin: 1 0 0 0; }
    }
    """

    def __init__(self, name: str, side: RaceSide) -> None:
        super().__init__(classes="pane")
        retitle(self, f"{name} · {safe_line(side.name)}")
        self.facts = SideFacts()
        self._text = Static(markup=False, classes="race-text")
        self._scroll = VerticalScroll(self._text, can_focus=False)
        self._shown = ""

    def compose(self) -> ComposeResult:
        yield self.facts
        yield self._scroll

    def show(self, side: RaceSide, at_s: float | None) -> None:
        self.facts.side, self.facts.at_s = side, at_s
        text = side.text if at_s is None else side.text_at(at_s)
        if side.failure is not None:
            text = side.failure.sentence
        text = safe(text).lstrip("\n")
        if text != self._shown:
            self._shown = text
            self._text.update(text)
            self._scroll.scroll_end(animate=False)


class RaceDialog(Dialog[None]):
    """Runs a race; leaving it cancels that, and the cluster goes back."""

    HELP = """\
## Race

*A* answers first, then *B*: each has all machines to itself. *predicted* is what
was expected before, over the links as they are. The verdict compares the measured
speeds and the words: both answers are greedy, with one seed. Other sums round
differently, so a split may change a word.

**{race.replay}** shows both answers once more, side by side, as fast as they came.
**{race.copy}** copies the result. **{race.close}** cancels or closes: what served
before serves again, also if this console is killed.
"""
    BINDINGS = bindings("race")
    DEFAULT_CSS = """
    RaceDialog {
        & #race-prompt { height: auto; max-height: 2; color: $dim; }
        & #race-sides { layout: horizontal; height: 1fr; }
        &.-stacked #race-sides { layout: vertical; }
        &.-stacked SideFacts { height: 2; }
        &.-stacked .race-text { margin: 0; }
        & #race-verdict { height: auto; max-height: 3; }
    }
    """

    def __init__(
        self, race: Race, states: AsyncGenerator[Race, None], *, serves: bool | None
    ) -> None:
        super().__init__()
        self._states = states
        self._serves = serves
        """True if something serves now, and will again; None in a replay."""
        self._race = race
        self._drawing = Throttle(self, REDRAWN_S, self._draw)
        self._prompt = Static(safe_line(race.prompt), id="race-prompt", markup=False)
        self._panes = tuple(map(SidePane, NAMES, self._race.sides))
        self._verdict = Static(id="race-verdict", markup=False)
        self._over = False
        self._failed = ""
        self._at_s: float | None = None
        self._ticks: Timer | None = None
        self._began = 0.0

    def compose(self) -> ComposeResult:
        does = "closes" if self._serves is None else "cancels"
        with self.frame("Race", ("race.close", does)):
            yield self._prompt
            with Container(id="race-sides"):
                yield from self._panes
            yield self._verdict

    def on_mount(self) -> None:
        self._draw()
        self._run()

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.width < NARROW_BELOW, "-stacked")

    @work(group="race", exclusive=True, exit_on_error=False)
    async def _run(self) -> None:
        try:
            async with aclosing(self._states) as states:
                async for self._race in states:
                    self._drawing.ask()
        except DllmError as error:
            self._failed = str(error)
        self._over = True
        copy = ("race.copy", "copies")
        keys = ("race.replay", "replays"), copy, ("race.close", "closes")
        self.show_keys(self.query_one(".dialog"), *keys)
        self._draw()

    def _draw(self) -> None:
        if not self.is_mounted:
            return
        for pane, side in zip(self._panes, self._race.sides, strict=True):
            pane.show(side, self._at_s)
        self._verdict.update(safe_line(self._said()))

    def _said(self) -> str:
        race = self._race
        if self._failed:
            return self._failed
        if not race.ended and self._over:
            return "The race was broken off."
        if not race.ended:
            if self._serves is None:
                return ""
            again = "What serves now serves again afterwards."
            return again if self._serves else NOTHING_AFTERWARDS
        said = f"{verdict_of(race).text}."
        if not self._over:
            step = race.going_back
            said += f" Going back: {step.title if step else '…'}"
        return said

    def action_replay(self) -> None:
        """Show both answers from their questions on, in the time they took."""
        ends = [piece.at_s for side in self._race.sides for piece in side.pieces]
        if not self._race.ended or not ends:
            self.app.bell()
            return
        self._began = time.monotonic()
        if self._ticks is not None:
            self._ticks.stop()
        self._ticks = self.set_interval(STEP_S, lambda: self._step(max(ends)))
        self._step(max(ends))

    def _step(self, end_s: float) -> None:
        self._at_s = time.monotonic() - self._began
        if self._at_s > end_s and self._ticks is not None:
            self._ticks.stop()
            self._at_s = None
        self._draw()

    def action_cancel(self) -> None:
        if not self._over and self._serves is not None:
            self.workers.cancel_group(self, "race")
            served = "what served before serves again"
            then = served if self._serves else "nothing serves, as before"
            self.app.notify(f"The race is cancelled: {then}", markup=False)
        self.dismiss(None)

    def copyable(self) -> Copyable | None:
        if not self._race.ended:
            return None
        return Copyable("the result of the race", "\n".join(_report(self._race)))


def _report(race: Race) -> Iterator[str]:
    yield race.prompt
    for name, side in zip(NAMES, race.sides, strict=True):
        yield side_title(name, side)
        yield f"  {doing_text(side)}"
    yield f"{verdict_of(race).text}."
