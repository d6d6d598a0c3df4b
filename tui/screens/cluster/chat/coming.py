"""An answer that comes: drawn many times a second, laid out seldom."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segment
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

if TYPE_CHECKING:
    from rich.style import Style
    from textual import events
    from textual.selection import Selection

    from tui.kit.markdown_rows import MarkdownRows

STEPS = 4
"""Of a view's height: so many rows are added at once, since that is a layout."""
VIEWS = 2
"""Rows kept while the end is followed: what is seen, and a page to look back."""


class ComingText(Widget):
    """Markdown whose end is shown in a height that seldom changes.

    While the end is followed the text scrolls in here, and no more rows are taken than
    a view and a page before it. Else there are rows for all of it, to look back.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "coming--heading",
        "coming--code",
        "coming--fence",
        "coming--sign",
        "coming--link",
    }
    """
    | Class | Description |
    | :- | :- |
    | `coming--heading` | Headings of all levels. |
    | `coming--code` | Code within a line. |
    | `coming--fence` | Lines of code. |
    | `coming--sign` | Bullets and numbers of lists. |
    | `coming--link` | Links, which cannot be clicked yet. |
    """

    DEFAULT_CSS = """
    ComingText {
        width: 1fr;
        height: 1;
        & > .coming--heading { color: $primary; text-style: bold; }
        & > .coming--code { background: $warning 10%; color: $text-warning 95%; }
        &:light > .coming--code { background: $error 5%; color: $text-error 95%; }
        & > .coming--fence { background: $surface; }
        & > .coming--sign { color: $text-primary; }
        & > .coming--link { text-style: underline; }
    }
    """

    def __init__(self, view_rows: int | None) -> None:
        """Show nothing yet.

        Args:
            view_rows: Rows of the view that follows its end; None: none does.
        """
        super().__init__()
        self.text = ""
        """All that came."""
        self._view_rows = view_rows
        self._made: MarkdownRows | None = None
        self._rows: list[Strip] = []

    def add(self, text: str) -> None:
        """Take in more, and paint the rows that became others."""
        self.text += text
        if self._made is None:
            self._begin()
        else:
            self._made.add(text)
            self._show()

    def follow(self, view_rows: int | None) -> int:
        """Show its end in a view of so many rows, None: all; the rows it grows by."""
        if view_rows == self._view_rows:
            return 0
        before, self._view_rows = self._height, view_rows
        self._settle_height()
        self.refresh()
        return self._height - before

    def on_resize(self, event: events.Resize) -> None:
        """Rows of another width break elsewhere."""
        if self._made is None or event.size.width != self._made.width:
            self._begin()

    def notify_style_update(self) -> None:
        """Another theme draws all of it in other colours."""
        super().notify_style_update()
        self._begin()

    def _begin(self) -> None:
        """Draw all of it; before the first layout there is no width to do so."""
        # Imported here because it costs 40 ms at start-up.
        from tui.kit.markdown_rows import MarkdownRows

        self._made = None
        if self.size.width and self.text:
            self._made = MarkdownRows(self.size.width, self._looks())
            self._made.add(self.text)
            self._show()

    def _looks(self) -> dict[str, Style]:
        """Styles of Markdown, by Rich's names."""
        heading, code, fence, sign, link = (
            self.get_component_rich_style(f"coming--{part}", partial=True)
            for part in ("heading", "code", "fence", "sign", "link")
        )
        return {
            **{f"markdown.h{level}": heading for level in range(1, 7)},
            "markdown.code": code,
            "markdown.code_block": fence,
            "markdown.item.bullet": sign,
            "markdown.item.number": sign,
            "markdown.link_url": link,
            "markdown.table.header": heading,
        }

    def _show(self) -> None:
        """Paint the rows that became others."""
        assert self._made is not None
        before = self._seen()
        self._rows = self._made.rows
        self._settle_height()
        for y, (old, new) in enumerate(zip(before, self._seen(), strict=True)):
            if old != new:
                self.refresh(Region(0, y, self.size.width, 1))

    def _settle_height(self) -> None:
        """Have rows enough: a few more than it has now, so that this is seldom."""
        rows = max(1, len(self._rows))
        if self._view_rows is not None:
            step = max(1, self._view_rows // STEPS)
            stepped = -(-rows // step) * step
            rows = min(max(stepped, self._height), VIEWS * self._view_rows)
        if rows != self._height:
            self.styles.height = rows

    @property
    def _height(self) -> int:
        """Rows it takes, from the next layout on at the latest."""
        height = self.styles.height
        return int(height.value) if height is not None else 1

    @property
    def _above(self) -> int:
        """Rows that are scrolled out."""
        return max(0, len(self._rows) - self.size.height)

    def _seen(self) -> list[Strip | None]:
        """What stands in each row of the widget."""
        seen = self._rows[self._above :]
        return [*seen, *[None] * (self.size.height - len(seen))]

    def render_line(self, y: int) -> Strip:
        """One row, with what is selected of it."""
        index = self._above + y
        if index >= len(self._rows):
            return Strip.blank(self.size.width, self.rich_style)
        row = self._rows[index].apply_style(self.rich_style)
        span = self.text_selection.get_span(index) if self.text_selection else None
        if span is not None:
            row = self._selected(row, *span)
        return row.apply_offsets(0, index)

    def _selected(self, row: Strip, start: int, end: int) -> Strip:
        """A row of which a part is selected; -1 is its end."""
        end = row.cell_length if end == -1 else end
        chosen = self.screen.get_component_rich_style("screen--selection")
        part = Segment.apply_style(row.crop(start, end), post_style=chosen)
        return Strip.join([row.crop(0, start), Strip(part), row.crop(end)])

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """What is selected, as it is drawn."""
        return selection.extract("\n".join(r.text.rstrip() for r in self._rows)), "\n"
