"""Markdown as rows of text, for an answer that grows many times a second.

Textual's own Markdown is a tree of widgets, and whenever one of them grows the whole
screen is laid out anew. Here Rich draws each block once; only the last is drawn again.
Tables look plainer, and links cannot be clicked: an answer that is complete is shown by
Textual's.
"""

from __future__ import annotations

import io
from functools import cache
from typing import TYPE_CHECKING, ClassVar

from rich.console import Console
from rich.markdown import CodeBlock, Heading, ListItem, Markdown, MarkdownElement
from rich.segment import Segment
from rich.theme import Theme
from textual.highlight import highlight
from textual.strip import Strip

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from markdown_it import MarkdownIt
    from markdown_it.token import Token
    from rich.console import ConsoleOptions, JustifyMethod, RenderResult
    from rich.style import Style

BULLET = "• "
MARGIN = 1
"""Cells at each side of code."""


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


class _Item(ListItem):
    """An item of a list, with signs as Textual's Markdown has them."""

    def render_bullet(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """An item after a bullet."""
        return self._after(BULLET, console, options)

    def render_number(
        self, console: Console, options: ConsoleOptions, number: int, last_number: int
    ) -> RenderResult:
        """An item after its number."""
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


class _Code(CodeBlock):
    """Code on a ground of its own; what is too wide is cut."""

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        """Coloured by its language."""
        ground = console.get_style("markdown.code_block")
        language = None if self.lexer_name == "text" else self.lexer_name
        code = highlight(str(self.text).rstrip(), language=language)
        for line in code.split(allow_blank=True):
            strip = Strip([Segment(" " * MARGIN), *line.render_segments()])
            yield from strip.crop_extend(0, options.max_width, None).apply_style(ground)
            yield Segment("\n")


class _Blocks(Markdown):
    """Tokens of a parser of ours, drawn by Rich."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _Heading,
        "list_item_open": _Item,
        "fence": _Code,
        "code_block": _Code,
    }

    def __init__(self, tokens: list[Token]) -> None:
        """Draw what these say."""
        super().__init__("")
        self.parsed = tokens


class MarkdownRows:
    """A text that grows, as rows of a width."""

    def __init__(self, width: int, looks: Mapping[str, Style]) -> None:
        """Begin with nothing.

        Args:
            width: Cells of a row.
            looks: Styles by Rich's names, like ``markdown.h1``.
        """
        self.width = width
        self._console = Console(
            file=io.StringIO(), width=width, theme=Theme(looks), color_system=None
        )
        self._source = ""
        self._finished: list[Strip] = []
        self._last: list[Strip] = []
        self._after_heading = False

    @property
    def rows(self) -> list[Strip]:
        """All of them, from the top."""
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
        """Rows of a block, with a blank one above where that belongs."""
        options = self._console.options
        shown = self._console.render(_Blocks(block), options)
        rows = list(_strips(shown, options.max_width))
        if block[0].type not in ("fence", "code_block"):
            rows = _trimmed(rows)
        apart = self._finished and not self._after_heading
        return [Strip.blank(options.max_width), *rows] if apart else rows


def _strips(shown: Iterable[Segment], width: int) -> Iterator[Strip]:
    """Rows without links: their addresses are foreign, a terminal would open them."""
    lines = Segment.split_and_crop_lines(
        Segment.strip_links(shown), width, include_new_lines=False
    )
    return (Strip(line, width) for line in lines)


def _trimmed(rows: list[Strip]) -> list[Strip]:
    """Rows from the first to the last with a sign: Rich puts blank ones around some."""
    signs = [index for index, row in enumerate(rows) if row.text.strip()]
    return rows[signs[0] : signs[-1] + 1] if signs else []


def _blocks(tokens: list[Token]) -> list[list[Token]]:
    """Tokens by the block on the outermost level that they belong to."""
    blocks: list[list[Token]] = []
    depth = 0
    for token in tokens:
        if depth == 0:
            blocks.append([])
        blocks[-1].append(token)
        depth += token.nesting
    return blocks
