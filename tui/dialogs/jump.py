"""Jump mode: letters over all that takes the focus, or that a click would press."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import NamedTuple, Protocol, runtime_checkable

from textual import events
from textual.app import ComposeResult
from textual.content import Content
from textual.errors import NoWidget
from textual.geometry import Offset, Region, Size
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Label, Static

from tui.actions import bindings
from tui.dialogs.dialog import Dialog
from tui.widgets.keys import with_keys

LETTERS = "asdfghjklqwertyuiopzxcvbnm"
HINT = "Jump: type the letters · {jumping.cancel} leaves · {dialogs.help:short} help"


class JumpTarget(NamedTuple):
    widget: Widget
    at: Offset
    pressed: bool
    """True if it is clicked there; else it gets the focus."""


@runtime_checkable
class Pressable(Protocol):
    """A widget with several places on which a click does something."""

    def press_spots(self) -> Iterable[Offset]:
        """Give these places, relative to the content of the widget."""


def labels(count: int) -> list[str]:
    """So many labels of one letter or two, none the beginning of another."""
    size = len(LETTERS)
    n_first = next(n for n in range(size + 1) if size - n + n * size >= count)
    single, first = LETTERS[: size - n_first], LETTERS[size - n_first :]
    pairs = ("".join(pair) for pair in product(first, LETTERS))
    return [*single, *pairs][:count]


def targets_of(screen: Screen[object]) -> list[JumpTarget]:
    """All visible targets: what takes the focus first, then from top to bottom."""
    focusable = {*screen.focus_chain} - {screen.focused}
    focused, pressed = [], []
    for widget in screen.walk_children(Widget):
        seen = _seen(screen, widget)
        if not seen:
            continue
        spots = [at for at in _spots(widget, seen) if _is_on_top(widget, at)]
        pressed += [JumpTarget(widget, at, True) for at in spots]
        at = seen.offset
        if widget in focusable and at not in spots and _is_on_top(widget, at):
            focused.append(JumpTarget(widget, at, False))
    taken = {target.at for target in (*focused, *pressed)}
    pressed += [one for one in _links(screen) if one.at not in taken]
    return focused + sorted(pressed, key=lambda one: (one.at.y, one.at.x))


def _seen(screen: Screen[object], widget: Widget) -> Region:
    try:
        return screen.find_widget(widget).visible_region
    except NoWidget:
        return Region()


def _is_on_top(widget: Widget, at: Offset) -> bool:
    # A toast, or the notice of the smallest size, may cover it.
    try:
        return widget in widget.screen.get_widget_at(*at)[0].ancestors_with_self
    except NoWidget:
        return False


def _spots(widget: Widget, seen: Region) -> Iterator[Offset]:
    if isinstance(widget, Pressable):
        begin = widget.content_region.offset
        there = (begin + spot for spot in widget.press_spots())
        yield from (at for at in there if seen.contains_point(at))
    elif widget.styles.has_rule("pointer") and widget.styles.pointer == "pointer":
        yield seen.offset


def _links(screen: Screen[object]) -> Iterator[JumpTarget]:
    """Words of texts and frames that run an action when they are clicked."""
    before = None
    for y, strip in enumerate(screen._compositor.render_strips()):
        x = 0
        for segment in strip:
            meta = segment.style.meta if segment.style else {}
            link = meta.get("@click")
            if link and link != before:
                widget, _ = screen.get_widget_at(x, y)
                if widget is not screen:
                    yield JumpTarget(widget, Offset(x, y), True)
            before = link
            x += segment.cell_length


class JumpDialog(Dialog[JumpTarget | None]):
    """Dismisses with the target whose letters were typed."""

    HELP = """\
## Jump

Each letter stands on something that takes the focus or can be pressed. Type it to go
there or to press it; of two letters the first leaves out the others.
**{jumping.back}** takes a letter back.
"""
    BINDINGS = bindings("jumping")
    AUTO_FOCUS = ""
    DEFAULT_CSS = """
    JumpDialog {
        background: $background 40%;
        & > .jump-label {
            position: absolute;
            width: auto;
            height: 1;
            background: $background;
            color: $primary;
            text-style: bold reverse;
        }
        & > .jump-hint {
            dock: top;
            width: 100%;
            height: 1;
            padding: 0 1;
            background: $panel;
            color: $dim;
        }
    }
    """

    def __init__(self, targets: Iterable[JumpTarget], size: Size) -> None:
        super().__init__(classes="")
        found = [*targets]
        self._targets = dict(zip(labels(len(found)), found, strict=True))
        self._size = size
        self._typed = ""

    def compose(self) -> ComposeResult:
        for name, target in self._targets.items():
            label = Label(name, classes="jump-label", name=name, markup=False)
            room = self._size.width - len(name)
            label.styles.offset = min(target.at.x, room), target.at.y
            yield label
        yield Static(with_keys(self.app, HINT), classes="jump-hint", markup=False)

    def on_key(self, event: events.Key) -> None:
        letter = (event.character or "").lower()
        if letter and letter in LETTERS:
            event.stop()
            self._type(self._typed + letter)

    def action_back(self) -> None:
        self._type(self._typed[:-1])

    def _type(self, typed: str) -> None:
        if target := self._targets.get(typed):
            self.dismiss(target)
        elif any(name.startswith(typed) for name in self._targets):
            self._typed = typed
            for label in self.query(Label).results(Label):
                name = label.name or ""
                label.display = name.startswith(typed)
                rest = Content(typed).stylize("dim") + name[len(typed) :]
                label.update(rest)
        else:
            self.app.bell()

    def on_click(self) -> None:
        self.dismiss(None)

    def on_resize(self) -> None:
        if self.app.size != self._size:
            self.dismiss(None)
