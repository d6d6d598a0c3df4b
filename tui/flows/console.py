"""The interface that the flows need of the app: a console with a desk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tui.app.console import ConsoleApp

if TYPE_CHECKING:
    from backends.state import ClusterSnapshot


class DeskConsole(ConsoleApp):
    """A console that shows one desk, of one cluster at a time."""

    def take(self, snapshot: ClusterSnapshot) -> None:
        """Show a snapshot, if nothing newer is known."""
        raise NotImplementedError

    def show_desk(self) -> None:
        """Show the plan on the desk."""
        raise NotImplementedError

    async def go_to(self, mode: str, pane: str = "") -> None:
        """Show a screen, and one of its panes."""
        raise NotImplementedError

    def use_model(self, path: str) -> None:
        """Put a model on the desk, and show it."""
        raise NotImplementedError

    def show_setting(self, name: str) -> None:
        """Open the settings at this one."""
        raise NotImplementedError

    def show_cluster(self, name: str) -> None:
        """Work on another cluster."""
        raise NotImplementedError
