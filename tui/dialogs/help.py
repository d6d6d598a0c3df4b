"""Help for the focused pane: its purpose and its present keys."""

from __future__ import annotations

from rich.table import Table
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.dom import DOMNode
from textual.screen import Screen
from textual.widgets import Markdown, Static

from tui.actions import bindings
from tui.dialogs.dialog import Dialog
from tui.widgets.keys import with_keys
from tui.widgets.palette import palette_from
from tui.widgets.row_list import ChoiceList
from tui.widgets.sources import LEGEND

KEYS_WIDTH = 15


class HelpDialog(Dialog[None]):
    """Reads help and keys from the screen behind it."""

    BINDINGS = bindings("dialog", "reading")

    def __init__(self, about: Screen[object]) -> None:
        super().__init__()
        self._about = about

    def compose(self) -> ComposeResult:
        nodes = (self._about.focused or self._about).ancestors_with_self
        text = next(filter(None, (getattr(node, "HELP", "") for node in nodes)), "")
        title = "Help"
        if text.startswith("#"):
            heading, _, text = text.partition("\n")
            title = f"Help · {heading.lstrip('# ')}"
        keys = ("dialog.cancel", "closes")
        with self.frame(title, keys, box=VerticalScroll):
            if text:
                yield Markdown(with_keys(self.app, text))
            if getattr(self._about, "FIGURES", False):
                yield Markdown(LEGEND)
            yield Static(self._keys(), markup=False)

    def _keys(self) -> Table:
        palette = palette_from(self.app.theme_variables)
        table = Table.grid(padding=(0, 1), expand=True)
        table.add_column(style=palette.key, width=KEYS_WIDTH)
        table.add_column(ratio=1)
        for keys, text in keys_of(self._about):
            table.add_row(keys, text)
        return table


def keys_of(screen: Screen[object]) -> list[tuple[str, str]]:
    rows: dict[tuple[DOMNode, str], tuple[list[str], Binding]] = {}
    for node, binding, _enabled, _tooltip in screen.active_bindings.values():
        if not binding.id and not binding.tooltip:
            continue
        row = rows.setdefault((node, binding.action), ([], binding))
        key = screen.app.get_key_display(binding.with_key(binding.key))
        if key not in row[0]:
            row[0].append(key)
    answers = (choice for one in screen.query(ChoiceList) for choice in one.rows)
    return [
        *((choice.key, choice.label) for choice in answers if choice.key),
        *(
            ("  ".join(keys), binding.tooltip or binding.description)
            for keys, binding in rows.values()
        ),
    ]
