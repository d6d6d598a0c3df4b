"""The pane of live figures, or of the progress of a launch, or of a failure."""

from __future__ import annotations

import re
from shlex import join

from rich.style import Style
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.geometry import Region
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from backends.state import Bottleneck, ClusterSnapshot, Failure, Step, StepState
from backends.units import format_percent, format_seconds, format_signal
from tui.app.messages import Copyable, Raw
from tui.model.edit import same_plan
from tui.model.editor import PlanEditor
from tui.model.facts import LiveFacts
from tui.model.launch_settings import auto_text
from tui.model.peer_words import UNFIT
from tui.model.quantities import acceptance_text, pairs_text
from tui.screens.cluster.live_figures import (
    LiveFigures,
    LiveLine,
    TokenBar,
    WorkerGraphs,
    columns_of,
    columns_width,
    line_figures,
)
from tui.widgets.keys import key_of, takes_text, with_keys
from tui.widgets.rate_graph import RateGraph
from tui.widgets.strips import (
    Drawn,
    Part,
    StripWidget,
    clip,
    fitting,
    line,
    memory_bar,
    parts_width,
    resubtitle,
    retitle,
    wrapped,
)

LABEL = "why    "
WHY_ROWS = 2
TITLE_WIDTH_MAX = 34
TIME_WIDTH = 9
BAR_WIDTH_MAX = 24

_SIGNS = {
    StepState.PENDING: ("·", "dim"),
    StepState.RUNNING: ("◐", "warn"),
    StepState.DONE: ("✓", "ok"),
    StepState.FAILED: ("✗", "bad"),
}


class StepList(StripWidget):
    ALLOW_SELECT = True
    DEFAULT_CSS = "StepList { height: auto; }"

    steps: Drawn[tuple[Step, ...]] = Drawn((), layout=True)
    at: reactive[float] = reactive(0.0, init=False)
    """When the steps were as they are: running ones have lasted until then."""

    @property
    def running(self) -> int:
        """Index of the step under way; the last one when none is."""
        states = [step.state for step in self.steps]
        if StepState.RUNNING in states:
            return states.index(StepState.RUNNING)
        return max(len(states) - 1, 0)

    def get_content_height(self, container: object, viewport: object, w: int) -> int:
        return max(1, len(self.steps))

    def draw(self, width: int, height: int) -> list[Strip]:
        if not self.steps:
            return [line([("…", self.palette.dim)], width)]
        longest = max(len(step.title) for step in self.steps)
        title_width = min(TITLE_WIDTH_MAX, longest, max(width - TIME_WIDTH - 20, 12))
        return [self._row(step, title_width, width) for step in self.steps]

    def watch_at(self) -> None:
        if any(step.state == StepState.RUNNING for step in self.steps):
            self.redraw()

    def _row(self, step: Step, title_width: int, width: int) -> Strip:
        sign, tone = _SIGNS[step.state]
        palette = self.palette
        titled = palette.dim if step.state == StepState.PENDING else palette.text
        parts: list[Part] = [
            (f"{sign} ", getattr(palette, tone)),
            (clip(step.title, title_width), titled),
            (f"{self._time(step):>{TIME_WIDTH}}  ", palette.dim),
        ]
        if step.progress is not None and step.state == StepState.RUNNING:
            room = width - parts_width(parts) - 8
            cells, full = min(BAR_WIDTH_MAX, max(room, 1)), palette.accent
            bar = memory_bar(step.progress, 1.0, cells, full=full, empty=palette.track)
            share = f" {format_percent(step.progress):>5}  "
            parts += [*bar, (share, palette.text)]
        return line([*parts, (step.detail, palette.dim)], width)

    def _time(self, step: Step) -> str:
        if step.seconds is not None:
            return format_seconds(step.seconds)
        if step.state == StepState.RUNNING and step.started_at is not None:
            return format_seconds(max(self.at - step.started_at, 0.0))
        return ""


TAIL_LINES = 8
COMMAND_LINES = 3


class FailurePanel(StripWidget):
    """One failure with command line, exit status and the end of the log."""

    ALLOW_SELECT = True

    DEFAULT_CSS = "FailurePanel { height: auto; }"

    failure: Drawn[Failure | None] = Drawn(None, layout=True)
    to_mend: Drawn[str] = Drawn("")
    """The peer whose engine is the trouble; empty for none."""

    def get_content_height(self, container: object, viewport: object, w: int) -> int:
        return len(self._rows(w)) if self.failure else 0

    def draw(self, width: int, height: int) -> list[Strip]:
        return [line(row, width) for row in self._rows(width)]

    def copyable(self) -> Copyable | None:
        if self.failure is None:
            return None
        return Copyable("the failure", evidence_text(self.failure))

    def _rows(self, width: int) -> list[list[Part]]:
        failure = self.failure
        if failure is None or width < 1:
            return []
        palette = self.palette
        what = wrapped(f"✗ {failure.what}", width, 2)
        rows = [[(text, palette.alarm)] for text in what]
        rows += [[(text, palette.text)] for text in wrapped(failure.hint, width, 2)]
        if failure.argv:
            command = wrapped(f"$ {join(failure.argv)}", width, COMMAND_LINES)
            rows += [[(text, palette.dim)] for text in command]
        if status := exit_text(failure):
            rows.append([(status, palette.warn)])
        rows += [
            [("│ ", palette.border), (text, palette.dim)]
            for text in failure.log_tail[-TAIL_LINES:]
        ]
        rows.append(self._keys(failure))
        return rows

    def _keys(self, failure: Failure) -> list[Part]:
        key, dim = self.palette.key, self.palette.dim
        typing = takes_text(self.screen.focused)
        offered = {
            "live.provision": f"provisions {self.to_mend}" if self.to_mend else "",
            "live.log": "opens the log" if failure.process else "",
            "app.copy": "copies all this",
            "cluster.launch": "tries again",
        }
        parts: list[Part] = []
        for action, does in offered.items():
            if does:
                named = with_keys(self.app, f"{{{action}}}", typing=typing)
                parts += [(named, key), (f" {does}   ", dim)]
        return parts


def exit_text(failure: Failure) -> str:
    """``exit code 1`` or ``killed by SIGKILL``; empty when neither is known."""
    if failure.exit_signal is not None:
        return f"killed by {format_signal(failure.exit_signal)}"
    return "" if failure.exit_code is None else f"exit code {failure.exit_code}"


def evidence_text(failure: Failure) -> str:
    command = f"$ {join(failure.argv)}" if failure.argv else ""
    head = [failure.what, failure.hint, command, exit_text(failure)]
    return "\n".join([*filter(None, head), *failure.log_tail])


def peer_to_mend(snapshot: ClusterSnapshot) -> str:
    """The peer of a failed launch that needs another engine; empty where none does.

    The failure itself may name it: an engine that fits ours may not fit another head's.
    """
    plan, failure = snapshot.plan, snapshot.failure
    if plan is None or failure is None:
        return ""
    named = failure.hint.rpartition("peers setup ")[2].rstrip(".")
    part = {plan.head, *(worker.peer for worker in plan.workers)}
    unfit = [p.name for p in snapshot.peers if p.state in UNFIT and p.name in part]
    names = [peer.name for peer in snapshot.peers if peer.name == named]
    return next(iter((*names, *unfit)), "")


_VIEWS = ("idle", "busy", "failed", "serving")


class IdleNote(StripWidget):
    """Advice while nothing runs, and the controller's message."""

    DEFAULT_CSS = "IdleNote { height: auto; }"

    message: Drawn[str] = Drawn("", layout=True)
    work: Drawn[str] = Drawn("", layout=True)
    """The progress of getting an engine; empty while none is got."""
    no_engine: Drawn[bool] = Drawn(False, layout=True)

    def get_content_height(self, container: object, viewport: object, w: int) -> int:
        return len(self._said(w)) + len(self._keys)

    def draw(self, width: int, height: int) -> list[Strip]:
        key, dim = self.palette.key, self.palette.dim
        return [
            *(line([(text, self._tone)], width) for text in self._said(width)),
            *(
                line([(key_of(self.app, action), key), (f" {does}", dim)], width)
                for action, does in self._keys
            ),
        ]

    @property
    def _keys(self) -> list[tuple[str, str]]:
        keys = [
            ("cluster.model", "picks a model"),
            ("cluster.launch", "launches the split as it is shown"),
        ]
        if self.work:
            return [("cluster.balance", "cancels it; the next run resumes")]
        if self.no_engine:
            return [("cluster.balance", "gets llama.cpp, or builds it"), *keys]
        return keys

    @property
    def _tone(self) -> Style:
        warns = self.message and not self.work
        return self.palette.warn if warns else self.palette.text

    def _said(self, width: int) -> list[str]:
        return wrapped(self.work or self.message or "Nothing runs.", width, 4)


AFTER_ANSWER = "Told after this answer."


class WhyLine(StripWidget):
    """The bottleneck of a token, and the key that makes the change."""

    ALLOW_SELECT = True
    DEFAULT_CSS = "WhyLine { height: auto; }"

    found: Drawn[Bottleneck | None] = Drawn(None)
    taken: Drawn[bool] = Drawn(False)
    """True if the edit has the change already."""
    known_soon: Drawn[bool] = Drawn(False)
    """True if passes are measured: once the answer has ended, they are explained."""

    def watch_found(self) -> None:
        self._fit()

    def watch_taken(self) -> None:
        self._fit()

    def watch_known_soon(self) -> None:
        self._fit()

    def _fit(self) -> None:
        if len(self._rows(self.content_size.width)) != self.content_size.height:
            self.refresh(layout=True)

    def get_content_height(self, container: object, viewport: object, w: int) -> int:
        return len(self._rows(w))

    def draw(self, width: int, height: int) -> list[Strip]:
        return [line(row, width) for row in self._rows(width)]

    def _rows(self, width: int) -> list[list[Part]]:
        if self.found is None:
            return []
        palette = self.palette
        room = max(width - len(LABEL), 1)
        labels = LABEL, " " * len(LABEL)
        said = self.found.text
        if self.known_soon and not (self.found.parts or self.found.change):
            said = AFTER_ANSWER
        texts = wrapped(said, room, WHY_ROWS)
        rows: list[list[Part]] = [
            [(label, palette.dim), (text, palette.text)]
            for label, text in zip(labels, texts, strict=False)
        ]
        offer = self._offer()
        if rows and parts_width([*rows[-1], *offer]) <= width:
            rows[-1] += offer
        return rows

    def _offer(self) -> list[Part]:
        if self.found is None or self.found.change is None:
            return []
        does = " launches it" if self.taken else " does it"
        key = key_of(self.app, "cluster.launch" if self.taken else "cluster.why")
        if takes_text(self.screen.focused):
            key = f"{key_of(self.app, 'chat.leave')} {key}"
        return [(f"  {key}", self.palette.key), (does, self.palette.dim)]

    def on_one_line(self, width: int) -> list[Part]:
        """The bottleneck without its band, or without the change; with the key."""
        if self.found is None:
            return []
        label, offer = "why  ", self._offer()
        room = max(width - len(label) - parts_width(offer), 1)
        told = self.found.text.partition(" (predicted")[0]
        part = told.partition(";")[0]
        short = re.sub(" of a (token|pass) is", "", part)
        text = fitting((told, part, short, short.partition(",")[0]), room)
        if not text:
            return []
        return [
            (label, self.palette.dim),
            (clip(text, room).rstrip(), self.palette.text),
            *offer,
        ]


class LivePane(VerticalScroll, can_focus=True):
    """Shows what the state of the cluster calls for."""

    HELP = """\
## Live

**generate** is the speed now (or, as *last*, that of the last answer) and **prompt**
the speed of reading the question, both as llama-server measures them. The graph has one
column per second of generating, from 0; a blank column is a pause.

**trips/tok**, **up/tok** and **down/tok** are the round trips and bytes of one token,
all workers together; then each link's own round trip and what goes over it now. Where
data go to other machines, and there is room, each link says how: *direct*, or through
the SSH *tunnel*; Peers and Traffic say why.

**pass** is a typical forward pass: lettered blocks compute (the head first, then each
worker), `░` is on the way there, `▒` on the way back, `─` waits; together they take its
*p50*. *p50* and *p99* are of the latest few hundred passes under the present lab. With
several slots at work, or a draft model, a pass makes several tokens: then *tok/pass*
says how many, and the trips of a pass stand after those of a token. The Traffic screen
has all of it worker by worker. Once answers have ended, the frame has the acceptance of
a draft, the speed with it and without, if both ran, and that of several clients
together.

**why** names the longest part of a token, as measured, and the one change of the plan
that is predicted to gain most, with the band that holds nine of ten. **{cluster.why}**
makes it, as an edit: **{split.undo}** takes it back. Nothing runs before you launch.

Where there is room, graphs show the last minutes of the head and of each worker: the
time it computes for a token, the processor cores and the memory its engine takes, and
what goes over its link. All of it is measured; blank is what was not. Where rows are
few, this pane is one line until it has the focus.

While a launch goes on its steps are here, with the time each took. If one fails, this
pane says what and why: `{app.copy}` copies it, `{live.log}` opens the log, and
`{live.provision}` puts our engine on the
peer whose own does not fit.
"""
    DEFAULT_CSS = """
    LivePane {
        height: auto;
        min-height: 5;
        padding: 0 1;
        scrollbar-size-vertical: 1;
        & > * { display: none; }
        & > #serving { layout: horizontal; height: 3; }
        &.-idle > IdleNote { display: block; }
        &.-busy > StepList { display: block; }
        &.-failed > FailurePanel { display: block; }
        &.-serving > #serving, &.-serving > TokenBar { display: block; }
        &.-serving > WhyLine { display: block; }
        &.-roomy.-serving > WorkerGraphs { display: block; }
        &.-folded.-serving {
            min-height: 1;
            height: 1;
            padding: 0 2;
            & > #serving, & > TokenBar, & > WhyLine { display: none; }
            & > LiveLine { display: block; }
        }
    }
    """

    def __init__(self, editor: PlanEditor, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id, classes="pane")
        self.border_title = "Live"
        self._editor = editor
        self.graph = RateGraph()
        self._line = LiveLine()
        self._graphs = WorkerGraphs()
        self._idle = IdleNote()
        self._figures = LiveFigures()
        self._token = TokenBar()
        self._why = WhyLine()
        self._line.why = self._why.on_one_line
        self._figures_cells = 0
        self._steps = StepList()
        self._failure = FailurePanel()
        self.facts: LiveFacts | None = None

    def compose(self) -> ComposeResult:
        yield self._idle
        yield self._steps
        yield self._failure
        yield Widget(self._figures, self.graph, id="serving")
        yield self._token
        yield self._why
        yield self._graphs
        yield self._line

    def show_work(self, text: str) -> None:
        self._idle.work = text

    def explain(self, found: Bottleneck | None) -> None:
        self._why.found = found
        change, plan = found.change if found else None, self._editor.plan
        self._why.taken = bool(change and plan and same_plan(change.plan, plan))
        self._line.redraw_changed()

    def show(self, facts: LiveFacts) -> None:
        self.facts = facts
        snapshot, view = facts.snapshot, facts.view
        if not self.has_class(f"-{view}"):
            # A relaunch keeps the rows: what is below would move twice.
            keeps = view == "busy" and self.has_class("-serving")
            self.styles.height = self.outer_size.height if keeps else None
            self.remove_class(*(f"-{other}" for other in _VIEWS))
            self.add_class(f"-{view}")
        retitle(self, _titled(snapshot, view))
        self._idle.message = snapshot.message
        self._idle.no_engine = snapshot.no_engine
        self._steps.steps, self._steps.at = snapshot.steps, snapshot.at
        self._failure.failure = snapshot.failure
        self._failure.to_mend = peer_to_mend(snapshot) if view == "failed" else ""
        if view == "busy":
            self.call_after_refresh(self._scroll_to_step)
        self._token.show(facts)
        totals = facts.totals
        self._why.known_soon = totals.head_ms is not None and not totals.unread
        self._show_line()
        head = snapshot.plan.head if snapshot.plan else ""
        self._graphs.show(self._editor.trends.workers, facts.devices, head)
        self._fit_columns()
        told = (
            acceptance_text(snapshot.speed.acceptance),
            auto_text(snapshot),
            pairs_text(snapshot.links),
        )
        said = " · ".join(filter(None, told))
        resubtitle(self, said if view == "serving" else "")
        rates = self._editor.trends.rates
        for graph in (self.graph, self._line):
            graph.history, graph.version = rates, rates.version

    def fold(self, folded: bool) -> None:
        self.set_class(folded, "-folded")
        self._show_line()

    def _show_line(self) -> None:
        if self.facts is not None and self.has_class("-folded"):
            self._line.figures = line_figures(self.facts)
            self._line.idle = self.facts.snapshot.speed.tok_per_s is None

    def on_resize(self) -> None:
        self._fit_columns()

    def focus_default(self) -> None:
        self.focus()

    def copyable(self) -> Copyable | None:
        if self.has_class("-failed"):
            return self._failure.copyable()
        url = self.facts.snapshot.api_url if self.facts else None
        return Copyable("the API address", url) if url else None

    def raw(self) -> Raw | None:
        if self.facts is None:
            return None
        snapshot = self.facts.snapshot
        if snapshot.failure is not None:
            return Raw("the failure", snapshot.failure)
        return Raw("the links", snapshot.links) if snapshot.links else None

    def say_keys(self) -> None:
        self._failure.redraw()
        self._why.redraw_changed()
        self._line.redraw_changed()

    @property
    def peer_to_mend(self) -> str:
        return self._failure.to_mend

    def _fit_columns(self) -> None:
        width, rows = self.content_size.width, max(self._figures.size.height, 3)
        if self.facts is None or not width or not self._figures.is_seen:
            return
        columns = columns_of(self.facts, width, rows)
        cells = min(columns_width(columns), width)
        if self._figures_cells != cells:
            self._figures_cells = cells
            self._figures.styles.width = cells
        self._figures.columns = columns

    def _scroll_to_step(self) -> None:
        line = Region(0, self._steps.running, 1, 1)
        self.scroll_to_region(line, animate=False)

    @property
    def log_name(self) -> str:
        """The process whose log tells most; empty for none."""
        if self.facts is None:
            return ""
        snapshot = self.facts.snapshot
        if snapshot.failure and snapshot.failure.process:
            return snapshot.failure.process
        servers = [p.name for p in snapshot.processes if p.role == "server"]
        return next(iter(servers), "")


def _titled(snapshot: ClusterSnapshot, view: str) -> str:
    if view == "failed":
        return "Failed"
    if view != "busy":
        return "Live"
    began = [step.started_at for step in snapshot.steps if step.started_at is not None]
    state = snapshot.state.capitalize()
    if not began:
        return state
    return f"{state} ── {format_seconds(max(snapshot.at - min(began), 0.0))}"
