"""The working screen: peers, split, live figures, chat, tokens."""

from __future__ import annotations

from typing import Any

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Container
from textual.geometry import Size
from textual.reactive import reactive
from textual.widget import Widget

from backends.split.buffers import slot_tokens
from backends.state import ClusterSnapshot, ClusterState, Link
from backends.units import format_count
from tui.actions import bindings
from tui.app.console import console_of
from tui.app.frame import NARROW_BELOW, SHORT_BELOW, ZOOMED, ConsoleScreen
from tui.app.messages import LogWanted
from tui.model.editor import PlanEditor
from tui.model.facts import LiveFacts
from tui.model.names import model_name
from tui.model.peer_words import fallback_text
from tui.screens.cluster.chat_pane import ChatPane
from tui.screens.cluster.live_pane import LivePane
from tui.screens.cluster.peers_pane import PeerList, PeersPane, unfit_actions
from tui.screens.cluster.split_pane import SplitPane
from tui.widgets.keys import with_keys
from tui.widgets.panes import BALANCED, PaneLayout, PaneRow
from tui.widgets.strips import resubtitle
from tui.widgets.throttle import Throttle
from tui.widgets.waterfall import Waterfall, why_no_rows

DRAW_GAP_S = 1.0
"""Between two pictures: nobody reads twenty tokens that pass four times a second."""


class TokenPane(Container):
    """The time of each of the latest tokens, as on the Traffic screen."""

    BINDINGS = bindings("token")
    DEFAULT_CSS = "TokenPane { width: 68; height: 1fr; padding: 0 1; }"

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id, classes="pane")
        self.border_title = "Token"
        self.waterfall = Waterfall()
        self._shown: tuple[tuple[Link, ...], str] = ((), "")
        self._drawing = Throttle(self, DRAW_GAP_S, self._show)

    def compose(self) -> ComposeResult:
        yield self.waterfall

    def show(self, snapshot: ClusterSnapshot) -> None:
        self._shown = snapshot.links, why_no_rows(snapshot)
        if self.display:
            self._drawing.ask()

    def on_show(self) -> None:
        self._drawing.ask()

    def _show(self) -> None:
        self.waterfall.show(*self._shown)

    def focus_default(self) -> None:
        self.waterfall.focus()

    @on(Waterfall.Changed)
    def _badge(self) -> None:
        resubtitle(self, self.waterfall.chosen)

    def action_median(self) -> None:
        self.waterfall.median = not self.waterfall.median

    def action_next_worker(self) -> None:
        self.waterfall.choose_next()


PANES = ("peers", "split", "live", "chat", "token")
# Rows of the upper panes besides bar and devices: borders and verdict.
TOP_ROWS = 3
TOP_ROWS_MIN = 9
# The status line and the keys.
FRAME_ROWS = 2
CHAT_ROWS_MIN = 4
CHAT_ROWS = 9
"""With six lines of conversation: a border and a line to write on."""
LIVE_ROWS = 6
FOLDED_ROWS = 1
LOW_ROWS_MIN = LIVE_ROWS + CHAT_ROWS_MIN
TALL_FROM = 32
ROOMY_WIDTH, ROOMY_HEIGHT = 150, 48
"""From here on there is room for histories, and the waterfall beside the chat."""
BESIDE = PaneLayout("beside", "chat beside", width_min=120, height_min=30)
CHAT = PaneLayout("chat", "chat")
PLAN = PaneLayout("plan", "plan and links")
LEADING = {CHAT: "chat", PLAN: "split"}
"""The pane that is sure to be shown in a layout that leaves some out."""
BESIDE_PART = 0.44
"""The chat's part of the width where it is beside the rest, as in the styles."""

_WHY_NOT = {
    ClusterState.IDLE: "nothing runs: {cluster.launch} launches",
    ClusterState.STARTING: "starting…",
    ClusterState.LOADING: "the model is loading…",
    ClusterState.STOPPING: "stopping…",
    ClusterState.FAILED: "nothing runs: the launch failed",
    ClusterState.SERVING: "",
}


class ClusterScreen(ConsoleScreen):
    """Panes; where there is no room for all, the focused one takes the place."""

    AUTO_FOCUS = ""
    BINDINGS = bindings("cluster", "live")
    LAYOUTS = (BALANCED, BESIDE, CHAT, PLAN)

    zoomed: reactive[str] = reactive("", init=False)

    def __init__(self, editor: PlanEditor, *, zoomed: str = "") -> None:
        super().__init__()
        self.peers = PeersPane()
        self._editor = editor
        self.split = SplitPane(editor, id="split")
        self.live = LivePane(editor, id="live")
        self.chat = ChatPane(id="chat", classes="pane")
        self.token = TokenPane(id="token")
        self._top = PaneRow(self.peers, self.split, least=(24, 40), id="top")
        self._low = PaneRow(self.chat, self.token, least=(40, 40), id="low")
        self._work = Widget(self._top, self.live, id="work")
        self._body = PaneRow(self._work, self._low, least=(60, 40), id="body")
        self._readiness: str | None = None
        self._front = {"top": "split", "low": "live"}
        self._here = "split"
        """The pane with the focus, or the one that is about to have it."""
        self._n_devices = 2
        self._predicts = False
        self._state: ClusterState | None = None
        self.set_reactive(ClusterScreen.zoomed, zoomed if zoomed in PANES else "")

    def compose_body(self) -> ComposeResult:
        yield self._body

    def on_mount(self) -> None:
        self._mute()
        self.go_to(self.zoomed or self.leading_pane or "split")
        self.watch(self._body, "shares", self._arrange, init=False)

    def show_snapshot(self, snapshot: ClusterSnapshot) -> None:
        super().show_snapshot(snapshot)
        self.live.show(self._facts(snapshot))
        self.token.show(snapshot)
        self.chat.set_context(slot_context(snapshot))
        self.chat.set_template(has_template(snapshot))
        self.peers.peer_list.fallbacks = {
            one.lost: fallback_text(one, snapshot.plan) for one in snapshot.fallbacks
        }
        if snapshot.state != self._state:
            self._state = snapshot.state
            if self._focused_pane() not in PANES[2:]:
                serves = snapshot.state is ClusterState.SERVING
                self._front["low"] = "chat" if serves else "live"
            self._arrange()
            self.refresh_bindings()

    def show_edit(self) -> None:
        editor = self._editor
        edit = editor.edit
        self.status_line.model = editor.plan.model if editor.plan else ""
        self.split.follow()
        self.peers.show(editor.peers, edit)
        self.live.explain(editor.bottleneck)
        if self.shown is not None:
            facts = self._facts(self.shown)
            if self.live.facts is None or facts.marks != self.live.facts.marks:
                self.live.show(facts)
        self._n_devices = len(edit.split.shares) if edit else 2
        self._predicts = bool(self.split.standing.speeds)
        self._divide_rows()
        self._mute()
        if editor.plan is not None:
            self.chat.set_model(model_name(editor.plan.model))
        self._show_readiness()

    def _facts(self, snapshot: ClusterSnapshot) -> LiveFacts:
        if snapshot is self._editor.snapshot:
            return self._editor.facts
        return LiveFacts.of(snapshot, self._editor.marks)

    @on(PeerList.Selected)
    def _mute(self) -> None:
        self.refusals = unfit_actions(self.peers.peer_list.peer)
        for verb, why in self._editor.refusals.items():
            for area in ("cluster", "split", "peers"):
                self.refusals[f"{area}.{verb}"] = why
        self.key_bar.muted = frozenset(self.refusals)

    def watch_zoomed(self) -> None:
        self._arrange()

    def action_zoom(self) -> None:
        self.zoomed = "" if self.zoomed else self._focused_pane()

    def action_open_log(self) -> None:
        if name := self.live.log_name:
            self.post_message(LogWanted(name))

    def action_provision(self) -> None:
        for peer in self._editor.peers:
            if peer.name == self.live.peer_to_mend:
                console_of(self).work_at("provision", peer)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "provision":
            return bool(self.live.peer_to_mend)
        if action == "open_log":
            return bool(self.live.log_name)
        return super().check_action(action, parameters)

    def action_next_pane(self, by: int = 1) -> None:
        panes = self._panes
        here = panes.index(self._focused_pane())
        self.go_to(panes[(here + by) % len(panes)])

    def action_ask(self) -> None:
        self._bring("chat")
        self.chat.action_write()

    def action_previous_pane(self) -> None:
        self.action_next_pane(-1)

    def go_to(self, name: str) -> None:
        self._bring(name)
        self._pane(name).focus_default()

    def leave_zoom(self) -> bool:
        was_zoomed, self.zoomed = self.zooms, ""
        return was_zoomed

    @property
    def zooms(self) -> bool:
        return bool(self.zoomed)

    @property
    def leading_pane(self) -> str:
        """The pane that the layout is for; empty where it shows all."""
        return LEADING.get(self.pane_layout, "")

    def on_resize(self) -> None:
        self._arrange()

    def arrange_panes(self) -> None:
        self._bring(self.leading_pane or self._here)
        if self.pane_layout == CHAT:
            # Not to the text field: the next key may be for another layout.
            self.chat.focus_words()
        elif self.leading_pane:
            self.go_to(self.leading_pane)

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        self._bring(self._focused_pane())
        self.split.say_verdict()
        self.live.say_keys()

    @property
    def _panes(self) -> tuple[str, ...]:
        there = self._shows_tokens or self.zoomed == "token"
        return PANES if there else PANES[:-1]

    @property
    def _shows_tokens(self) -> bool:
        return self._is_roomy and self._state is ClusterState.SERVING

    @property
    def _is_roomy(self) -> bool:
        return self.size.width >= ROOMY_WIDTH and self.size.height >= ROOMY_HEIGHT

    @property
    def _folds(self) -> bool:
        few = SHORT_BELOW <= self.size.height < TALL_FROM
        folding = {BALANCED: few, CHAT: True}.get(self.pane_layout, False)
        serves = self._state is ClusterState.SERVING
        return folding and serves and not self.zoomed and self._here != "live"

    def _pane(self, name: str) -> Any:
        return getattr(self, name)

    def _focused_pane(self) -> str:
        for node in self.focused.ancestors_with_self if self.focused else ():
            if node.id in PANES:
                return str(node.id)
        return self.zoomed or self._front["top"]

    def _bring(self, name: str) -> None:
        self._here = name
        if name != "token":
            self._front["top" if name in PANES[:2] else "low"] = name
        if self.zoomed:
            self.zoomed = name
        self._arrange()

    def _shows(self, name: str) -> bool:
        if self.zoomed:
            return name == self.zoomed
        if name == "token" and not self._shows_tokens:
            return False
        upper, here, layout = name in PANES[:2], self._here, self.pane_layout
        if layout == BESIDE:
            return True
        if layout == CHAT and name != "live" and upper != (here in PANES[:2]):
            return False
        if layout == PLAN and not upper and (name == "live") == (here in PANES[3:]):
            return False
        if upper:
            return self.size.width >= NARROW_BELOW or self._front["top"] == name
        low = self.size.height >= SHORT_BELOW or self._front["low"] == name
        return low or name == "token" or layout != BALANCED

    def _arrange(self) -> None:
        divides = self.pane_layout == BALANCED and not self.zoomed
        divides &= self.size.height >= SHORT_BELOW
        least = TOP_ROWS_MIN + self._live_rows, CHAT_ROWS_MIN
        self._body.least_rows = least if divides else None
        self._divide_rows()
        shown = [name for name in self._panes if self._shows(name)]
        for name in PANES:
            self._pane(name).display = name in shown
        upper = {"peers", "split"} & set(shown)
        self._top.display = bool(upper)
        self._work.display = bool({"live", *upper} & set(shown))
        self._low.display = bool({"chat", "token"} & set(shown))
        parts = self._low.display and self.pane_layout != BESIDE
        self._work.styles.height = "auto" if parts else "1fr"
        self.set_class(bool(self.zoomed), "-zoomed")
        self.live.fold(self._folds)
        roomy = self.zoomed == "live" or (self._is_roomy and self.pane_layout != CHAT)
        self.live.set_class(roomy, "-roomy")
        self.key_bar.note = self._hidden_note(len(self._panes) - len(shown))

    def _divide_rows(self) -> None:
        """Rows of each pane: they change with plan, state and terminal only."""
        height = self.size.height
        body = height - FRAME_ROWS
        low = FOLDED_ROWS + CHAT_ROWS if self._folds else LOW_ROWS_MIN
        kept = self._body.cells_of_first(Size(0, body)) if self._body.stacked else None
        most = body - low if kept is None else kept - self._live_rows
        most = max(most, TOP_ROWS_MIN)
        n_bar = 3 if height < SHORT_BELOW else 4 if height < TALL_FROM else 5
        rows = self._n_devices + TOP_ROWS + self._predicts
        headed = bool(self.zoomed) or (height >= TALL_FROM and n_bar + rows + 1 <= most)
        rows += headed
        if self.zoomed:
            n_bar = max(n_bar, min(height // 3, 12))
        elif n_bar + rows > most:
            n_bar = 3
        apart = self._predicts and (bool(self.zoomed) or n_bar + rows <= most)
        rows -= self._predicts and not apart
        self.split.standing.styles.height = 2 if apart else 1
        self.split.bar.styles.height = n_bar
        self.split.head_columns(headed)
        top = min(max(n_bar + rows, TOP_ROWS_MIN), most)
        layout = self.pane_layout
        self.live.set_class(kept is not None and not self._folds, "-fills")
        fills = bool(self.zoomed) or layout in (BESIDE, CHAT)
        fills |= kept is not None and self._folds
        self._top.styles.height = "1fr" if fills else top
        stacked = layout == BESIDE and self._work_width < NARROW_BELOW
        self._top.set_class(stacked and not self.zoomed, "-stacked")
        _set_rows(self.split, "height", top if stacked and not self.zoomed else None)
        shared = self.zoomed or height < SHORT_BELOW or layout == PLAN or kept
        most = body // 2 if layout == CHAT else body - top - CHAT_ROWS_MIN
        _set_rows(self.live, "max_height", None if shared else most)

    @property
    def _live_rows(self) -> int:
        return FOLDED_ROWS if self._folds else LIVE_ROWS

    @property
    def _work_width(self) -> int:
        width = self.size.width
        kept = None if self._body.stacked else self._body.cells_of_first(self.size)
        return round(width * (1 - BESIDE_PART)) if kept is None else kept

    def _hidden_note(self, n_hidden: int) -> str:
        if self.zoomed:
            return with_keys(self.app, ZOOMED)
        if not n_hidden:
            return ""
        panes = format_count(n_hidden, "pane")
        tab = with_keys(self.app, "{cluster.next_pane}")
        narrow = self.size.width < NARROW_BELOW
        return f"+{panes}: {tab}" if narrow else f"{panes} hidden: {tab}"

    def _show_readiness(self) -> None:
        editor, snapshot = self._editor, self._editor.snapshot
        state = snapshot.state if snapshot else None
        reason = _WHY_NOT[state] if state else "connecting…"
        if state is ClusterState.IDLE and editor.plan is None:
            reason = "nothing runs: {cluster.model} picks a model"
        if snapshot and snapshot.failure and snapshot.failure.served:
            reason = "nothing runs: the cluster broke"
        ready = state is ClusterState.SERVING
        if reason != self._readiness:
            self._readiness = reason
            returning = editor.alive and state is not ClusterState.STOPPING
            said = "" if ready else reason
            self.chat.set_ready(ready, said, returning=returning)


def _set_rows(widget: Widget, rule: str, rows: int | None) -> None:
    # Textual arranges the screen again for each None, also where none was set.
    if rows is not None or widget.styles.inline.has_rule(rule):
        setattr(widget.styles, rule, rows)


def has_template(snapshot: ClusterSnapshot) -> bool:
    """Return false if what runs writes chats without a template of its own."""
    plan, model = snapshot.plan, snapshot.model
    if plan is None or model is None:
        return True
    return model.has_chat_template or plan.gives_chat_template


def slot_context(snapshot: ClusterSnapshot) -> int:
    """Tokens of a slot's context; 0 while nothing serves."""
    plan = snapshot.plan
    serves = snapshot.state is ClusterState.SERVING
    return slot_tokens(plan.ctx_size, plan.server) if plan and serves else 0
