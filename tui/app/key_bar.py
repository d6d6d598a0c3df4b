"""The bottom line: the screens, and the keys that do something here and now."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

from rich.style import Style
from textual.reactive import reactive

from tui.actions.keymap import ACTING, FUNCTION_KEYS
from tui.widgets.strips import Part, StripWidget, line, parts_width

if TYPE_CHECKING:
    from textual import events
    from textual.app import App
    from textual.binding import Binding
    from textual.dom import DOMNode
    from textual.screen import Screen
    from textual.strip import Strip

    Bound = tuple[DOMNode, str]

MODES = ("app.cluster", "app.traffic", "app.lab", "app.logs", "app.models")
# Shown whatever the width: with these two everything else can be found.
ALWAYS = ("app.help", "app.quit")
# Shown whatever the width, while it does something: what a changed plan waits for.
AWAITED = ("cluster.launch",)
# Likewise where the screens have their names.
ENDING = ("cluster.stop",)
DIVIDER = "│  "
NARROW_BELOW = 100
TINY_BELOW = 80
_UNDERLINE = Style(underline=True)


class Chip(NamedTuple):
    """One key of the bar and what a click on it runs."""

    id: str
    key: str
    label: str
    bound: Bound

    @property
    def width(self) -> int:
        """Columns it takes, with the space after it."""
        return len(self.key) + len(self.label) + (3 if self.label else 2)


class KeyBar(StripWidget):
    """Screens at the left, then the keys of the focused pane, then everyone's."""

    DEFAULT_CSS = """
    KeyBar {
        dock: bottom;
        height: 1;
        padding: 0 1;
        background: $panel;
    }
    """

    note: reactive[str] = reactive("", init=False)
    """Something the keys should be read with: ``2 panes hidden``."""
    muted: reactive[frozenset[str]] = reactive(frozenset(), init=False)
    """Ids of actions that would say no now: they work, but are not offered."""

    _current: ClassVar[dict[str, str]] = {
        "app.cluster": "cluster",
        "app.traffic": "traffic",
        "app.lab": "lab",
        "app.logs": "logs",
        "app.models": "models",
    }

    def __init__(self) -> None:
        super().__init__()
        self._chips: list[Chip] = []
        self._hits: list[tuple[int, int, Chip]] = []

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._bindings_changed)

    def draw(self, width: int, height: int) -> list[Strip]:
        self._hits = []
        parts: list[Part] = []
        divided = False
        for chip in self._fitting(
            width - self._note_width - len(DIVIDER), self.app.size.width < NARROW_BELOW
        ):
            if chip.id not in MODES and parts and not divided:
                divided = True
                parts.append((DIVIDER, self.palette.border))
            self._add(parts, chip)
        gap = width - parts_width(parts) - len(self.note)
        if self.note and gap > 0:
            parts += [(" " * gap, self.palette.dim), (self.note, self.palette.warn)]
        return [line(parts, width)]

    def watch_muted(self) -> None:
        self.redraw()

    def watch_note(self) -> None:
        self.redraw()

    async def on_click(self, event: events.Click) -> None:
        x = event.get_content_offset_capture(self).x
        for start, end, chip in self._hits:
            if start <= x < end:
                namespace, action = chip.bound
                await self.app.run_action(action, namespace)

    @property
    def _note_width(self) -> int:
        return len(self.note) + 1 if self.note else 0

    def _bindings_changed(self, screen: Screen[object]) -> None:
        if not screen.is_active:
            # Behind a dialog it stays as it was, dimmed like all the rest.
            return
        chips = _chips(screen)
        if [chip[:3] for chip in chips] != [chip[:3] for chip in self._chips]:
            self._chips = chips
            self.redraw()
        self._chips = chips

    def _fitting(self, width: int, narrow: bool) -> list[Chip]:
        """The chips that fit, those that must be there in any case."""
        offered = (chip for chip in self._chips if chip.id not in self.muted)
        chips = [self._short(chip) if narrow else chip for chip in offered]
        if self.app.size.width < TINY_BELOW:
            chips.sort(key=lambda chip: chip.id in MODES and not self._is_here(chip))
        due = {*ALWAYS, *AWAITED, *(() if narrow else ENDING)}
        room = width - sum(chip.width for chip in chips if chip.id in due)
        kept: list[Chip] = []
        for chip in chips:
            if chip.id not in due:
                room -= chip.width
            if chip.id in due or room >= 0:
                kept.append(chip)
        return kept

    def _short(self, chip: Chip) -> Chip:
        mode = chip.id in MODES and not self._is_here(chip)
        return chip._replace(label="") if mode else chip

    def _is_here(self, chip: Chip) -> bool:
        return self._current.get(chip.id) == self.app.current_mode

    def _add(self, parts: list[Part], chip: Chip) -> None:
        start = parts_width(parts)
        palette = self.palette
        here = self._is_here(chip)
        label = palette.strong if here else palette.dim
        if here:
            label += _UNDERLINE
        parts += [(chip.key, palette.key)]
        parts += [(" ", palette.dim), (chip.label, label)] if chip.label else []
        parts += [("  ", palette.dim)]
        self._hits.append((start, parts_width(parts) - 1, chip))


def _shown_key(app: App[object], binding: Binding) -> str:
    if binding.key_display and not binding.key.startswith("ctrl+"):
        return binding.key_display
    key = app.get_key_display(binding.with_key(binding.key))
    return key.upper() if binding.key in FUNCTION_KEYS else key


def _chips(screen: Screen[object]) -> list[Chip]:
    """Screens first, then shown bindings from the focus outwards, each action once."""
    chips: dict[str, Chip] = {}
    typing = getattr(screen.focused, "takes_digits", False)
    app = screen.app
    for node, binding, enabled, _tooltip in screen.active_bindings.values():
        mode = binding.id in MODES
        if not enabled or not (mode or binding.show):
            continue
        if binding.id in ACTING and getattr(app, "readonly", False):
            continue
        key = _shown_key(app, binding)
        bound = (node, binding.action)
        chip = Chip(binding.id or binding.action, key, binding.description, bound)
        if chip.id not in chips or (mode and typing and binding.key in FUNCTION_KEYS):
            chips[chip.id] = chip
    return sorted(chips.values(), key=_place)


def _place(chip: Chip) -> int:
    return MODES.index(chip.id) if chip.id in MODES else len(MODES)
