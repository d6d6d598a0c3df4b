"""Help for the focused pane: its purpose and its present keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.table import Table
from textual.containers import VerticalScroll
from textual.widgets import Markdown, Static

from tui.actions.keymap import bindings
from tui.dialogs.dialog import Dialog
from tui.widgets.keys import with_keys
from tui.widgets.palette import palette_from
from tui.widgets.row_list import ChoiceList
from tui.widgets.sources import LEGEND

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import Binding, BindingType
    from textual.dom import DOMNode
    from textual.screen import Screen
    from textual.widget import Widget

KEYS_WIDTH = 15


class HelpDialog(Dialog[None]):
    """Reads help and keys from the screen behind it."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("dialog", "reading")
    DEFAULT_CSS = """
    HelpDialog Static {
        height: auto;
    }
    """

    def __init__(self, about: Screen[object]) -> None:
        super().__init__()
        self._about = about

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog") as box:
            title, text = _titled(_help_of(self._about.focused or self._about))
            box.border_title = f"Help · {title}" if title else "Help"
            self.show_keys(box, ("dialog.cancel", "closes"))
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
        for keys, text in self._rows():
            table.add_row(keys, text)
        return table

    def _rows(self) -> list[tuple[str, str]]:
        return _keys_of(self._about)


def _help_of(widget: Widget | Screen[object]) -> str:
    nodes = widget.ancestors_with_self
    return next((node.HELP for node in nodes if getattr(node, "HELP", None)), "") or ""


def _titled(text: str) -> tuple[str, str]:
    if not text.startswith("#"):
        return "", text
    heading, _, rest = text.partition("\n")
    return heading.lstrip("# "), rest.strip()


def _keys_of(screen: Screen[object]) -> list[tuple[str, str]]:
    rows: dict[tuple[DOMNode, str], tuple[list[str], Binding]] = {}
    for node, binding, _enabled, _tooltip in screen.active_bindings.values():
        if not binding.id and not binding.tooltip:
            continue
        row = rows.setdefault((node, binding.action), ([], binding))
        key = screen.app.get_key_display(_plain(binding))
        if key not in row[0]:
            row[0].append(key)
    return [
        *_answers(screen),
        *(
            ("  ".join(keys), binding.tooltip or binding.description)
            for keys, binding in rows.values()
        ),
    ]


def _answers(screen: Screen[object]) -> list[tuple[str, str]]:
    lists = screen.query(ChoiceList)
    return [(c.key, c.label) for one in lists for c in one.rows if c.key]


def _plain(binding: Binding) -> Binding:
    return binding.with_key(binding.key)
