"""What an action is: one thing a key does."""

from __future__ import annotations

from typing import NamedTuple


class Action(NamedTuple):
    """One thing a key does."""

    id: str
    """``area.verb``; what a keymap in the configuration names."""
    keys: str
    """Default keys, separated by commas, in Textual's spelling."""
    action: str
    """The action to run, in the namespace of the widget that binds it."""
    label: str
    """One or two words for the footer."""
    tooltip: str
    """One sentence for help and palette."""
    show: bool = False
    """Whether the footer offers it."""
    display: str | None = None
    """How the footer writes the keys, where the spelling is clumsy."""
    priority: bool = False
    """Whether it wins over the focused widget."""

    @property
    def area(self) -> str:
        """The pane or screen it belongs to."""
        return self.id.partition(".")[0]
