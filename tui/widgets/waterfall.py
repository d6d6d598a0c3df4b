"""The time of the latest tokens, worker by worker, to one scale."""

from __future__ import annotations

from collections.abc import Sequence

from rich.style import Style
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip

from backends.link.figures import lab_changed, why_no_link
from backends.state import ClusterSnapshot, ClusterState, Link
from tui.model.quantities import ms_text, shared_text
from tui.model.token_time import (
    PARTS,
    TYPICAL_TOKENS,
    Times,
    axis_text,
    cells_of,
    next_scale,
    tokens_of,
    typical_ms,
    typical_of,
)
from tui.widgets.strips import (
    Drawn,
    Part,
    StripWidget,
    clip,
    line,
    parts_width,
    spread,
    wrapped,
)

NAME_CELLS = 10
NUMBER_CELLS = 8
TOTAL_CELLS = 9
BAR_CELLS_MIN = 30
"""Below this width the rows show numbers, not bars."""
NUMBERED = ((0, 1, 2, 3, 4), (1, 2, 3))
"""Parts with a number: all of them, else the link and the worker."""
THIN_COMPUTE = "▄"
FIXED_ROWS = 2
"""Legend and axis."""
NO_TOKEN = "No token yet: ask something."
NO_TOKEN_NOW = "No token since the lab changed: ask something."
NOTHING_RUNS = "Nothing runs. Launch a split, then every token shows here."


def why_no_rows(snapshot: ClusterSnapshot) -> str:
    """One sentence; empty where there are links."""
    if snapshot.state is ClusterState.IDLE:
        return NOTHING_RUNS
    why = why_no_link(snapshot)
    return f"{why}." if why else ""


class Waterfall(StripWidget, can_focus=True):
    """One row per worker: its latest token, or the median of its latest ones."""

    HELP = """\
## Token

One row per worker and one scale for all: where the time of the latest token went.

- `·` **others**: outside this worker, in the head and the other workers; the first
  token after a pause is left out
- `░` **up**, `▒` **down**: on the way there and back
- `█` **compute**: the worker computes; `─` **wait**: nobody did anything for it

Slots that decode together share a pass, and a row: trips/tok has the trips of a token,
and in brackets those of a pass.

The thin rows are the tokens before, the newest at the bottom; `›` goes on past the
scale. **{token.median}** shows the median of the latest tokens instead,
**{token.worker}** one worker alone, **{app.freeze}** freezes all panes while data keeps
coming.

Once an answer has ended, *last run* has the medians of its passes, each part beside
what was predicted (`~`) for it before; the next prediction learns from the difference.
*network* is up, down and wait, without what a lab added.
"""

    DEFAULT_CSS = "Waterfall { height: 1fr; min-height: 1; background: $background; }"

    median: Drawn[bool] = Drawn(False)
    """The rows are medians, not the latest token."""
    chosen: reactive[str] = reactive("", init=False)
    """The one worker shown; empty for all."""

    class Changed(Message):
        """The picture shows something else."""

    def __init__(self) -> None:
        super().__init__()
        self.scale_ms = 0.0
        """The time that the full width of the bars means."""
        self._why = NOTHING_RUNS
        self._links: tuple[Link, ...] = ()
        self._tokens: dict[str, list[Times]] = {}

    def show(self, links: tuple[Link, ...], why: str = "") -> None:
        """Show the tokens on links; ``why`` says why there are none."""
        if len(links) != len(self._links):
            self.refresh(layout=True)
        if (links, why) != (self._links, self._why):
            self._why, self._links = why, links
            self._tokens = {link.worker: tokens_of(link) for link in links}
            self._fit_scale()
            self.redraw()

    @property
    def shown(self) -> list[Link]:
        chosen = [link for link in self._links if link.worker == self.chosen]
        return chosen or list(self._links)

    def watch_median(self) -> None:
        self.post_message(self.Changed())

    def watch_chosen(self) -> None:
        self._fit_scale()
        self.redraw()
        self.post_message(self.Changed())

    def choose_next(self) -> None:
        choices = ["", *(link.worker for link in self._links)]
        at = choices.index(self.chosen) if self.chosen in choices else -1
        self.chosen = choices[(at + 1) % len(choices)]

    @property
    def subject(self) -> str:
        """The heading of the rows: ``latest token`` or ``median of 16 tokens``."""
        shared = [link.generation.tokens_per_pass or 1.0 for link in self.shown]
        each = shared_text(max(shared, default=1.0))
        noun = "pass" if each else "token"
        told = f", {each}" if each else ""
        if not self.median:
            return f"latest {noun}{told}"
        counts = [len(self._tokens[link.worker]) for link in self.shown]
        count = min(max(counts, default=0), TYPICAL_TOKENS)
        return f"median of {count:2} {noun}{'es' if each else 's'}{told}"

    def _fit_scale(self) -> None:
        typical = [typical_ms(self._tokens[link.worker]) for link in self.shown]
        if longest_ms := max(typical, default=0.0):
            self.scale_ms = next_scale(self.scale_ms, longest_ms)

    def get_content_height(self, container: object, viewport: object, w: int) -> int:
        return FIXED_ROWS + max(len(self._links), 1)

    def draw(self, width: int, height: int) -> list[Strip]:
        said = ""
        if not self._links:
            said = self._why
        elif not any(self._tokens.values()):
            plain = all(link.mode == "plain" for link in self._links)
            none = NO_TOKEN_NOW if lab_changed(self._links) else NO_TOKEN
            said = "" if plain else none
        if said:
            texts = wrapped(said, width, height)
            return [line([(text, self.palette.dim)], width) for text in texts]
        shown = self.shown
        fixed = [self._legend(width), self._axis(width)]
        rows = [self._row(link, width) for link in shown]
        if height < len(rows) + FIXED_ROWS:
            fixed = fixed[1:] if height > len(rows) else []
        room = height - len(fixed) - len(rows)
        return [*fixed, *rows, *self._recent(shown, width, room)]

    def _legend(self, width: int) -> Strip:
        dim = self.palette.dim
        gap = "   " if width >= 70 else " "
        left: list[Part] = []
        for part, style in zip(PARTS, self._styles, strict=True):
            left += [(part.glyph, style), (f" {part.name}{gap}", dim)]
        right = [(self.subject, self.palette.text)]
        if parts_width(left) + parts_width(right) > width:
            return line(left, width)
        return spread(left, right, width)

    def _axis(self, width: int) -> Strip:
        dim = self.palette.dim
        name = clip("", NAME_CELLS)
        axis = axis_text(self.scale_ms, self._room(width)) if self.scale_ms else ""
        parts: list[Part] = [(name + axis.ljust(self._room(width)), dim)]
        names = (PARTS[at].name for at in self._numbered(width))
        parts.append(("".join(f"{text:>{NUMBER_CELLS}}" for text in names), dim))
        parts.append((f"{'total ms':>{TOTAL_CELLS}}", dim))
        return line(parts, width)

    def _row(self, link: Link, width: int) -> Strip:
        palette = self.palette
        name: Part = (clip(link.worker, NAME_CELLS - 1) + " ", palette.strong)
        tokens = self._tokens[link.worker]
        if not tokens:
            why = "no token yet"
            if link.mode == "plain":
                why = f"not metered: {link.reason}" if link.reason else "not metered"
            return line([name, (why, palette.dim)], width)
        times = typical_of(tokens) if self.median else tokens[-1]
        parts = [name, *self._bar(times, self._room(width))]
        texts = (ms_text(times[at]) for at in self._numbered(width))
        parts.append(
            ("".join(f"{text:>{NUMBER_CELLS}}" for text in texts), palette.text)
        )
        total = f"{ms_text(sum(times)):>{TOTAL_CELLS}}"
        return line([*parts, (total, palette.strong)], width)

    def _recent(self, shown: Sequence[Link], width: int, room: int) -> list[Strip]:
        shown = [link for link in shown if self._tokens[link.worker]]
        each = (room - 1) // max(len(shown), 1)
        if each < 1 or not shown:
            return []
        rows = [line([], width)]
        for link in shown:
            tokens = self._tokens[link.worker][:-1][-each:]
            rows += [line([], width)] * (each - len(tokens))
            rows += [
                self._thin(link.worker if not number else "", times, width)
                for number, times in enumerate(tokens)
            ]
        return rows

    def _thin(self, name: str, times: Times, width: int) -> Strip:
        dim = self.palette.dim
        room = self._room(width)
        bar = self._bar(times, room, thin=True)
        left: list[Part] = [(clip(name, NAME_CELLS - 1) + " ", dim), *bar]
        return spread(left, [(ms_text(sum(times)), dim)], width)

    def _bar(self, times: Times, room: int, *, thin: bool = False) -> list[Part]:
        cells = cells_of(times, self.scale_ms, room)
        glyphs = [part.glyph for part in PARTS]
        if thin:
            glyphs[2] = THIN_COMPUTE
        runs = zip(glyphs, cells, self._styles, strict=True)
        parts = [(glyph * count, style) for glyph, count, style in runs if count]
        if sum(times) > self.scale_ms and parts:
            text, style = parts[-1]
            parts[-1:] = [(text[:-1], style), ("›", self.palette.strong)]
        rest = room - sum(cells)
        return [*parts, (" " * rest, self.palette.dim)]

    @property
    def _styles(self) -> tuple[Style, ...]:
        palette = self.palette
        up, down = palette.device(5), palette.device(3)
        return (palette.dim, up, palette.accent, down, palette.warn)

    def _numbered(self, width: int) -> Sequence[int]:
        for numbered in NUMBERED:
            if self._room_beside(width, numbered) >= BAR_CELLS_MIN:
                return numbered
        return ()

    def _room(self, width: int) -> int:
        return max(self._room_beside(width, self._numbered(width)), 1)

    def _room_beside(self, width: int, numbered: Sequence[int]) -> int:
        numbers = NUMBER_CELLS * len(numbered)
        return width - NAME_CELLS - numbers - TOTAL_CELLS
