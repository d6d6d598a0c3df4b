"""A turn as it stands on the screen: its widgets, and what tells it from others."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tui.screens.cluster.chat.turn import names_width, speaker_of
from tui.work.names import model_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.widget import Widget

    from backends.state import Turn
    from tui.screens.cluster.chat.answer import ChatAnswer
    from tui.screens.cluster.chat.turn import ChatQuestion

    Key = tuple[str, int, int, float]


class ShownTurn(NamedTuple):
    """The widgets of a turn, and what they would have to be made anew for."""

    key: Key
    question: ChatQuestion
    answer: ChatAnswer

    @property
    def widgets(self) -> tuple[Widget, Widget]:
        """Both, from top to bottom."""
        return self.question, self.answer

    def mark(self, chosen: bool) -> None:
        """Show that it is the chosen one, or is not."""
        self.question.chosen = self.answer.compared = chosen


def key_of(turn: Turn) -> Key:
    """Tells a turn from another, and one answer to it from the next."""
    return turn.asked, len(turn.replies), turn.shown, turn.reply.at


def speaker_in(turn: Turn, otherwise: str) -> str:
    """Who answered."""
    model = turn.reply.model
    return speaker_of(model_name(model)) if model else otherwise


def width_of(turns: Sequence[Turn], otherwise: str) -> int:
    """Cells for names, the same in all turns."""
    speakers = {speaker_in(turn, otherwise) for turn in turns} | {otherwise}
    return max(map(names_width, speakers))
