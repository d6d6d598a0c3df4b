"""Output of commands: results on stdout, everything else on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import click

from backends.errors import DllmError, UsageError, disk_errors
from backends.state import to_json
from backends.writing import write_private
from tui.widgets.safe_text import SafeStream, safe, safe_line

CLEAR_LINE = "\r\x1b[K"
CLEAR_SCREEN = "\x1b[H\x1b[2J"
EMPTY_CELL = "-"
GAP = "   "
_QUIET = ContextVar("quiet", default=False)
_LINEAR = ContextVar("linear", default=False)


@contextmanager
def _meanwhile(variable: ContextVar[bool], value: bool) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


quieted = partial(_meanwhile, _QUIET)
"""Print results, warnings and errors alone meanwhile, if its argument is true."""
linear = partial(_meanwhile, _LINEAR, True)
"""Draw over nothing meanwhile: progress comes in lines, as without a terminal."""


def is_linear() -> bool:
    return _LINEAR.get()


def show(text: str = "", *, end: str = "\n") -> None:
    _write(text, end=end)


def say(text: str = "") -> None:
    """Print a line for the person watching, on stderr; ``--quiet`` leaves it out."""
    if not _QUIET.get():
        warn(text)


def warn(text: str) -> None:
    _write(text, err=True)


def emit_json(value: object, *, indent: int = 2) -> None:
    """Print a JSON value on stdout, with what would drive a terminal as escapes."""
    text = to_json(value, indent=indent)
    show("".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in text))


def shower() -> Callable[[str], None]:
    """Print a result that comes in pieces, which may cut anywhere."""
    stream = SafeStream()
    return lambda piece: show(stream.feed(piece), end="")


def unseen(piece: str) -> None:
    """Print nothing: the whole follows as JSON."""


def on_terminal() -> bool:
    return sys.stderr.isatty() and not _QUIET.get() and not _LINEAR.get()


def redraw(text: str) -> None:
    """Replace the line that the person watching sees on the terminal of stderr."""
    if not _QUIET.get():
        _write(safe_line(text), err=True, before=CLEAR_LINE, end="")


def redraw_screen(text: str, paint: Callable[[str], str] = str) -> None:
    """Show a text alone on the terminal; ``paint`` colours what is safe by then."""
    clears = sys.stdout.isatty() and not _LINEAR.get()
    _write(text, before=CLEAR_SCREEN if clears else "", paint=paint)


def _write(
    text: str,
    *,
    err: bool = False,
    before: str = "",
    end: str = "\n",
    paint: Callable[[str], str] = str,
) -> None:
    try:
        click.echo(f"{before}{paint(safe(text))}{end}", err=err, nl=False)
    except BrokenPipeError:
        raise
    except OSError as error:
        if err:
            raise
        raise DllmError(f"Cannot write the output ({error.strerror})") from error


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(
        f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2)
    )


def require_folder(file: str) -> None:
    with disk_errors("write", file):
        is_there = Path(file).absolute().parent.is_dir()
    if not is_there:
        raise UsageError(f"There is no folder for {file}", "Make it first.")


def write_document(target: Path, text: str) -> None:
    """Write a file that others may read, as the user's umask has it: whole, or not."""
    with disk_errors("write", target):
        if target.exists() and not target.is_file():
            # Such as /dev/stdout, which is not to be replaced.
            target.write_text(text)
        else:
            write_private(target.resolve(), text.encode(), mode=0o666)


class Column(NamedTuple):
    """A column of a table; ``wide``: shown by ``-o wide`` alone.

    ``most``: so many characters are shown elsewhere; 0: all.
    """

    title: str
    text: Callable[[Any], str]
    wide: bool = False
    right: bool = False
    most: int = 0

    def cut(self) -> Column:
        return self._replace(text=lambda row: shortened(self.text(row), self.most))


def shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


class Table(NamedTuple):
    """The form of a listing: a headed table, or one name a line."""

    columns: Sequence[Column]
    name: Callable[[Any], str]
    none: Callable[[Any], str]
    """The sentence on stderr if there are no rows."""
    rows: Callable[[Any], Iterable[Any]] = iter
    footer: Callable[[Any], Iterable[str]] = lambda _: ()
    """Lines about the whole, on stderr."""

    def lines(self, found: Any, form: str = "table") -> list[str]:
        rows = list(self.rows(found))
        if form == "name" or not rows:
            return [safe_line(self.name(row)) for row in rows]
        if form == "wide":
            return table_lines(self.columns, rows)
        columns = [c.cut() if c.most else c for c in self.columns if not c.wide]
        return table_lines(columns, rows)

    def print(self, found: Any, form: str = "table") -> None:
        if lines := self.lines(found, form):
            show("\n".join(lines))
        elif form != "name":
            say(self.none(found))
        if form != "name":
            for line in self.footer(found):
                say(line)


def pairs_table(first: str, second: str, *, name: int = 0) -> Table:
    """A table of a dictionary; ``name`` is the column of names."""
    return Table(
        columns=[Column(first, itemgetter(0)), Column(second, itemgetter(1))],
        name=itemgetter(name),
        none=lambda _: "",
        rows=lambda found: found.items(),
    )


def table_lines(columns: Sequence[Column], rows: Iterable[Any]) -> list[str]:
    cells = [
        [column.title for column in columns],
        *([c.text(row) or EMPTY_CELL for c in columns] for row in rows),
    ]
    return aligned(cells, [column.right for column in columns])


def aligned(cells: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    """Lines of cells below each other; each column is as wide as its widest cell."""
    from rich.cells import cell_len

    lines = [[safe_line(text) for text in line] for line in cells]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]

    def padded(text: str, width: int, to_right: bool) -> str:
        blank = " " * (width - cell_len(text))
        return blank + text if to_right else text + blank

    return [GAP.join(map(padded, line, widths, right)).rstrip() for line in lines]
