"""Markdown as rows of text, for long answers and those that grow many times a second.

Textual's own Markdown is a tree of widgets, four to a paragraph. Each change lays the
whole screen out anew. A long answer stops the console for half a second when it is
mounted or the focus moves. Here Rich draws each block once; only the last is drawn
again.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from functools import cache
from typing import TYPE_CHECKING, ClassVar

from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.markdown import (
    CodeBlock,
    Heading,
    ListItem,
    Markdown,
    MarkdownElement,
    Paragraph,
)
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from rich.theme import Theme
from textual.highlight import highlight
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style as VisualStyle

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token


BULLET = "• "
MARGIN = 1
"""Cells at each side of code."""
LINK = "link"
"""Meta of a link's words: where it leads."""
AFTER = "after"
"""Meta of words that go on with the row before: what stood between them."""


@cache
def parser() -> MarkdownIt:
    """Markdown in which HTML stays visible as text, since none is drawn.

    One for all: making it costs more than most pieces of an answer.
    """
    from markdown_it import MarkdownIt

    return MarkdownIt("gfm-like", {"html": False})


class _Heading(Heading):
    """A heading on the left, whatever its level."""

    LEVEL_ALIGN: ClassVar[dict[str, JustifyMethod]] = {}


class _Paragraph(Paragraph):
    """Words whose rows know that they go on."""

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        for line in self.text.split(allow_blank=True):
            yield from _wrapped(line, console, options.max_width)


class _Item(ListItem):
    """An item of a list, with signs as Textual's Markdown has them."""

    def render_bullet(self, console: Console, options: ConsoleOptions) -> RenderResult:
        return self._after(BULLET, console, options)

    def render_number(
        self, console: Console, options: ConsoleOptions, number: int, last_number: int
    ) -> RenderResult:
        cells = len(f" {last_number - 1}. ")
        return self._after(f"{number}. ".rjust(cells), console, options)

    def _after(
        self, sign: str, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        narrower = options.update(width=max(1, options.max_width - len(sign)))
        lines = console.render_lines(self.elements, narrower, style=self.style)
        style = console.get_style("markdown.item.bullet")
        for index, line in enumerate(lines):
            yield Segment(" " * len(sign) if index else sign, style)
            yield from line
            yield Segment("\n")


def _wrapped(line: Text, console: Console, width: int) -> Iterator[Text]:
    at = 0
    for row in line.wrap(console, width, justify="default"):
        words = row.plain.strip()
        start = line.plain.index(words, at)
        if at:
            row = row[len(row.plain) - len(row.plain.lstrip()) :]
            row.stylize(Style(meta={AFTER: " " if start > at else ""}))
        at = start + len(words)
        yield row


class _Code(CodeBlock):
    """Code on a ground of its own; what is too wide goes on in another row."""

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        ground = console.get_style("markdown.code_block")
        language = None if self.lexer_name == "text" else self.lexer_name
        code = highlight(str(self.text).rstrip(), language=language)
        under = VisualStyle.from_rich_style(ground)
        width = max(1, options.max_width - 2 * MARGIN)
        for line in code.split(allow_blank=True):
            strip = Strip(line.render_segments(under))
            yield from _folded(strip, width, ground)


def _folded(line: Strip, width: int, ground: Style) -> Iterator[Segment]:
    edge = Strip([Segment(" " * MARGIN)])
    before = ""
    for at in range(0, max(1, line.cell_length), width):
        row = line.crop_extend(at, at + width, None)
        if at:
            between = before[len(before.rstrip()) :]
            row = row.apply_style(Style(meta={AFTER: between}))
        before = row.text
        yield from Strip.join([edge, row, edge]).apply_style(ground)
        yield Segment("\n")


class _Blocks(Markdown):
    """Tokens of a parser of ours, drawn by Rich."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _Heading,
        "paragraph_open": _Paragraph,
        "list_item_open": _Item,
        "fence": _Code,
        "code_block": _Code,
    }

    @classmethod
    def of(cls, tokens: list[Token]) -> _Blocks:
        # A copy, for each made anew would make a parser of its own.
        made = copy(cls._empty())
        made.parsed = tokens
        return made

    @classmethod
    @cache
    def _empty(cls) -> _Blocks:
        return cls("")


class MarkdownRows:
    """A text that grows, as rows of a width."""

    def __init__(self, width: int, looks: Mapping[str, Style]) -> None:
        self.width = width
        self.looks = looks
        self._console = Console(
            file=io.StringIO(), width=width, theme=Theme(looks), color_system=None
        )
        self._source = ""
        self._finished: list[Strip] = []
        self._last: list[Strip] = []
        self._after_heading = False

    @property
    def rows(self) -> list[Strip]:
        return self._finished + self._last

    def add(self, text: str) -> None:
        """Take in more; only blocks that it can still change are drawn again."""
        self._source += text
        *finished, last = _blocks(parser().parse(self._source)) or [[]]
        for block in finished:
            self._finished += self._drawn(block)
            self._after_heading = block[0].type == "heading_open"
        if finished and last[0].map is not None:
            lines = self._source.splitlines(keepends=True)
            self._source = "".join(lines[last[0].map[0] :])
        self._last = self._drawn(last) if last else []

    def _drawn(self, block: list[Token]) -> list[Strip]:
        options = self._console.options
        shown = self._console.render(_Blocks.of(block), options)
        rows = list(_strips(shown, options.max_width))
        if block[0].type not in ("fence", "code_block"):
            # Rich puts blank rows around some blocks.
            signs = [index for index, row in enumerate(rows) if row.text.strip()]
            rows = rows[signs[0] : signs[-1] + 1] if signs else []
        apart = self._finished and not self._after_heading
        return [Strip.blank(options.max_width), *rows] if apart else rows


def text_of(rows: list[Strip], selection: Selection) -> str:
    """The selected text of these rows; broken lines are whole again."""
    text = ""
    for index, row in enumerate(rows):
        if (span := selection.get_span(index)) is not None:
            start, end = span[0], row.cell_length if span[1] == -1 else span[1]
            own, after = _start_of(row)
            if after is not None and text:
                text = text.removesuffix("\n").rstrip() + after
                start = max(start, own)
            text += row.crop(start, end).text.rstrip() + "\n"
    return text.removesuffix("\n")


def _start_of(row: Strip) -> tuple[int, str | None]:
    cells = 0
    for segment in row:
        if segment.style and AFTER in segment.style.meta:
            return cells, segment.style.meta[AFTER]
        cells += segment.cell_length
    return 0, None


def _strips(shown: Iterable[Segment], width: int) -> Iterator[Strip]:
    lines = Segment.split_and_crop_lines(
        map(_without_address, shown), width, include_new_lines=False
    )
    return (Strip(line, width) for line in lines)


def _without_address(segment: Segment) -> Segment:
    style = segment.style
    if style is None or style.link is None:
        return segment
    # A terminal would open the address, which is foreign.
    known = Style(meta={LINK: style.link})
    return Segment(segment.text, style.update_link(None) + known, segment.control)


def _blocks(tokens: list[Token]) -> list[list[Token]]:
    blocks: list[list[Token]] = []
    depth = 0
    for token in tokens:
        if depth == 0:
            blocks.append([])
        blocks[-1].append(token)
        depth += token.nesting
    return blocks
