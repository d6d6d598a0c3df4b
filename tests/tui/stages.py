"""Small consoles that hold one pane or screen: for tests of chat, logs and models."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from textual.app import ComposeResult
from textual.screen import Screen

from backends.state import ChatDelta, ChatRequest, Failure, Sampling, Turn
from tests.tui import scenes
from tests.tui.scripted import ScriptedCluster
from tests.tui.scripted_chats import ScriptedChats
from tui.app import theming
from tui.app.console import ClusterConsole
from tui.flows.chats import ChatFlows
from tui.model.editor import PlanEditor
from tui.model.events import Severity
from tui.model.files import BUILTIN_FOLDER
from tui.screens.cluster.chat_pane import ChatPane


class Stage(ClusterConsole):
    """A console with nothing on it; remembers what reached the app."""

    def __init__(self, theme: str = theming.DEFAULT_THEME) -> None:
        super().__init__(
            theme_folders=[BUILTIN_FOLDER],
            theme=theme,
            keys={},
            clock=lambda: scenes.NOW,
        )
        self.said: list[str] = []
        self.troubles: list[str] = []
        self.chosen: list[str] = []
        self.exports = self.backs = 0

    def tell(
        self, text: str, severity: Severity = "information", *, keep: bool = True
    ) -> None:
        self.said.append(text)
        super().tell(text, severity, keep=keep)

    def report(self, failure: Failure, severity: Severity = "error") -> None:
        self.troubles.append(failure.sentence)
        super().tell(failure.sentence, severity)

    def use_model(self, path: str) -> None:
        self.chosen.append(path)

    def export_trace(self) -> None:
        self.exports += 1

    async def action_back(self) -> None:
        self.backs += 1


class ChatStage(Stage):
    """A chat pane alone, on conversations of its own; the test plays the model."""

    cluster: ScriptedCluster

    def __init__(self, theme: str = theming.DEFAULT_THEME) -> None:
        super().__init__(theme)
        self.asked: list[ChatRequest] = []
        self.deltas: asyncio.Queue[ChatDelta] = asyncio.Queue()
        self.cluster = ScriptedCluster(scenes.homelab_serving())
        self.chats = ScriptedChats(self.cluster, self._answers, self.cluster._call)
        self.cluster.chats = self.chats

    def compose(self) -> ComposeResult:
        yield ChatPane(id="chat", classes="pane")

    def on_mount(self) -> None:
        """Ready to ask, named like the homelab's model."""
        super().on_mount()
        editor = PlanEditor()
        assert self.cluster.now is not None
        editor.take(self.cluster.now)
        self.flows = ChatFlows(self, self.cluster, editor, self.pane)
        self.pane.set_model("GLM-4.7-Flash-Q4_K_M")
        self.pane.set_ready(True, "")
        self.flows.look()
        self.pane.focus_default()

    async def _answers(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        self.asked.append(request)
        while True:
            delta = await self.deltas.get()
            yield delta
            if delta.done:
                return

    def give(self, *deltas: ChatDelta) -> None:
        for delta in deltas:
            self.deltas.put_nowait(delta)

    async def restore(
        self,
        turns: Sequence[Turn],
        sampling: Sampling | None = None,
        *,
        system: str = "",
    ) -> None:
        """Go on with an earlier conversation."""
        await self.chats.put(
            scenes.HOMELAB_PLAN.model,
            turns=tuple(turns),
            sampling=sampling or Sampling(),
            system=system,
        )
        async with asyncio.timeout(60):
            while not self.turns:  # noqa: ASYNC110 -- what is shown has no event
                await asyncio.sleep(0.01)

    @property
    def turns(self) -> list[tuple[str, str]]:
        now = self.pane.conversation
        return [(turn.asked, turn.reply.text) for turn in now.turns] if now else []

    @property
    def pane(self) -> ChatPane:
        return self.query_one(ChatPane)


class ScreenStage(Stage):
    """One screen alone."""

    def __init__(self, shown: Screen[None], theme: str = theming.DEFAULT_THEME) -> None:
        super().__init__(theme)
        self.shown = shown

    def on_mount(self) -> None:
        super().on_mount()
        self.push_screen(self.shown)
