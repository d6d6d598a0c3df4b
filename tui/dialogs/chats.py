"""Every conversation, to go on with another: type to filter, Enter opens."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.containers import Vertical
from textual.message import Message
from textual.reactive import reactive
from textual.widgets import Input, Static

from backends.units import format_count
from tui.actions.keymap import bindings
from tui.dialogs.dialog import Dialog
from tui.model.names import model_name
from tui.model.peer_words import since_text
from tui.widgets.inputs import LineInput
from tui.widgets.strips import WheelList, clip, spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual import events
    from textual.app import ComposeResult
    from textual.binding import BindingType
    from textual.strip import Strip

    from backends.state import ChatBrief

ROWS_MAX = 12
MODEL_CELLS = 24
FACTS_CELLS = 6
NARROW_BELOW = 60


class ChatRows(WheelList):
    """Shows the conversations that match the typed text, around the selected one."""

    DEFAULT_CSS = """
    ChatRows { height: auto; margin: 1 0 0 0; }
    """

    typed: reactive[str] = reactive("", init=False, layout=True)
    """The words that a title or model must contain."""
    selected: reactive[int] = reactive(0, init=False)
    """Index among those that fit."""

    class Opened(Message):
        """The user opens the selected conversation."""

    def __init__(
        self, chats: Sequence[ChatBrief], current: str, cluster: str, now: float
    ) -> None:
        super().__init__()
        self._chats = tuple(chats)
        self._current = current
        self._cluster = cluster
        self._now = now

    @property
    def fitting(self) -> list[ChatBrief]:
        """The conversations that contain every word typed."""
        words = self.typed.lower().split()
        return [chat for chat in self._chats if _contains(chat, words)]

    @property
    def chosen(self) -> ChatBrief | None:
        """The selected conversation."""
        fitting = self.fitting
        return fitting[self.selected] if self.selected < len(fitting) else None

    def get_content_height(self, container: object, viewport: object, w: int) -> int:
        return max(1, min(len(self.fitting), ROWS_MAX))

    def draw(self, width: int, height: int) -> list[Strip]:
        chats = self.fitting
        top = self._top(len(chats))
        shown = chats[top : top + ROWS_MAX]
        return [self._row(top + y, chat, width) for y, chat in enumerate(shown)]

    def _top(self, count: int) -> int:
        return min(max(self.selected - ROWS_MAX // 2, 0), max(count - ROWS_MAX, 0))

    def move(self, by: int) -> None:
        """Select another."""
        last = max(len(self.fitting) - 1, 0)
        self.selected = min(max(self.selected + by, 0), last)

    def watch_typed(self) -> None:
        self.selected = 0
        self.redraw()

    def watch_selected(self) -> None:
        self.redraw()

    def _row(self, index: int, chat: ChatBrief, width: int) -> Strip:
        palette, here = self.palette, index == self.selected
        sign = "●" if chat.id == self._current else " "
        left = [
            ("▸ " if here else "  ", palette.key),
            (f"{sign} ", palette.key),
            (chat.title, palette.strong if here else palette.text),
        ]
        elsewhere = chat.cluster != self._cluster
        about = model_name(chat.model) + (f" @{chat.cluster}" if elsewhere else "")
        model = "" if width < NARROW_BELOW else clip(about, MODEL_CELLS)
        age = since_text(self._now - chat.changed_at) or "now"
        facts = f" {chat.turns:>4} asked {age:>{FACTS_CELLS}}"
        return spread(left, [(f" {model}{facts}", palette.dim)], width)

    def on_click(self, event: events.Click) -> None:
        if event.chain == 2:
            # The first has moved the window: another one is under the mouse now.
            self.post_message(self.Opened())
        else:
            self.selected = self._top(len(self.fitting)) + event.y


def _contains(chat: ChatBrief, words: Sequence[str]) -> bool:
    text = f"{chat.title} {model_name(chat.model)} {chat.cluster}".lower()
    return all(word in text for word in words)


class ChatsDialog(Dialog[str | None]):
    """Dismisses with the id of a conversation; None keeps the present one."""

    HELP: ClassVar[str | None] = """\
## Chats

Type words of a title or a model. **{chats.up} {chats.down}** move,
**{chats.choose}** opens the chat and
goes on with it, **{chats.cancel}** keeps the present one. A chat held with another
model goes on with the one that runs now.
"""

    BINDINGS: ClassVar[list[BindingType]] = bindings("chats")
    TYPING: ClassVar[bool] = True
    DEFAULT_CSS = """
    ChatsDialog {
        & Static { height: auto; margin: 1 0 0 0; color: $dim; }
    }
    """

    def __init__(
        self, chats: Sequence[ChatBrief], current: str, cluster: str, now: float
    ) -> None:
        super().__init__()
        self._count = len(chats)
        self._input = LineInput(placeholder="words of a title or model")
        self._rows = ChatRows(chats, current, cluster, now)
        self._remark = Static(markup=False)

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.styles.width, box.styles.max_width = "92%", 100
            box.border_title = "Chats"
            keys = ("chats.choose", "opens"), ("chats.cancel", "cancels")
            self.show_keys(box, *keys)
            yield self._input
            yield self._rows
            yield self._remark

    def on_mount(self) -> None:
        self._input.focus()
        self._summarise()

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        self._rows.typed = event.value
        self._summarise()

    def _summarise(self) -> None:
        fitting = len(self._rows.fitting)
        text = format_count(self._count, "chat")
        if self._rows.typed:
            text = f"{fitting} of {text}"
        self._remark.update(text if self._count else "No chat is kept yet.")

    @on(Input.Submitted)
    @on(ChatRows.Opened)
    def action_choose(self) -> None:
        if self._rows.chosen is not None:
            self.dismiss(self._rows.chosen.id)

    def action_move(self, by: int) -> None:
        self._rows.move(by)

    def action_cancel(self) -> None:
        self.dismiss(None)
