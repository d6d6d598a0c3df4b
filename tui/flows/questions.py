"""Questions of peers: each is put once, never while the user types or drags."""

from __future__ import annotations

from backends.state import Peer, PeerQuestion
from tui.app.console import ClusterConsole
from tui.app.frame import ConsoleScreen
from tui.flows.peers import PeerFlows
from tui.model.editor import PlanEditor
from tui.widgets.keys import takes_text

Asked = tuple[PeerQuestion | None, float | None]


class Questions:
    """Opens the dialog of a question when its peer begins to ask."""

    def __init__(
        self, app: ClusterConsole, editor: PlanEditor, flows: PeerFlows
    ) -> None:
        self._app = app
        self._editor = editor
        self._flows = flows
        self._met: dict[str, Asked] = {}
        self._asking = False

    def look(self) -> None:
        if not self._asking and self._news() is not None:
            self._asking = True
            self._app.attempt(self._ask_all(), group="questions", exclusive=False)

    async def _ask_all(self) -> None:
        try:
            while (peer := self._news()) is not None:
                self._met[peer.name] = _asked(peer)
                await self._ask(peer)
        finally:
            self._asking = False

    async def _ask(self, peer: Peer) -> None:
        if self._may_open(peer):
            await self._flows.answer(peer)
        else:
            self._app.tell(
                f"{peer.name} needs your input: select it, press {{peers.open}}"
            )

    def _news(self) -> Peer | None:
        """A peer whose question the user has not met yet."""
        snapshot = self._editor.snapshot
        asking = {p.name: p for p in (snapshot.peers if snapshot else ()) if p.question}
        self._met = {
            name: asked
            for name, asked in self._met.items()
            if name in asking and _asked(asking[name]) == asked
        }
        new = (peer for name, peer in asking.items() if name not in self._met)
        return next(new, None)

    def _may_open(self, peer: Peer) -> bool:
        """True if a dialog would take no key meant for something else."""
        screen = self._app.screen
        if getattr(screen, "follows", "") == peer.name:
            return True
        if not self._app.app_focus:
            return False  # While one is away Textual takes the focus from the field.
        if takes_text(screen.focused) or self._app.mouse_captured:
            return False
        here = self._app.current_mode == self._app.DEFAULT_MODE
        return here and isinstance(screen, ConsoleScreen)


def _asked(peer: Peer) -> Asked:
    return peer.question, peer.since
