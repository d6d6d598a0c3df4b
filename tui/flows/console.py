"""The interface that the flows need of the app: a console with a plan editor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tui.app.console import ConsoleApp

if TYPE_CHECKING:
    from backends.state import ClusterSnapshot


class EditorConsole(ConsoleApp):
    """A console that edits the plan of one cluster at a time."""

    def take(self, snapshot: ClusterSnapshot) -> None:
        """Show a snapshot, if nothing newer is known."""
        raise NotImplementedError

    async def go_to(self, mode: str, pane: str = "") -> None:
        """Show a screen, and one of its panes."""
        raise NotImplementedError

    def use_model(self, path: str) -> None:
        """Edit a plan for a model, and show it."""
        raise NotImplementedError

    def show_setting(self, name: str) -> None:
        """Open the settings at this one."""
        raise NotImplementedError

    def show_cluster(self, name: str) -> None:
        """Work on another cluster."""
        raise NotImplementedError
