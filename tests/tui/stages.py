"""Small consoles that hold one pane or screen: for tests of chat, logs and models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual import on

from tests.tui import scenes
from tui import theming
from tui.console import ConsoleApp
from tui.messages import Notice, Trouble
from tui.screens.models import ModelsScreen
from tui.widgets.chat_pane import ChatPane

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.screen import Screen

    from backends.state import ChatRequest


class Stage(ConsoleApp):
    """A console with nothing on it; remembers what reached the app."""

    def __init__(self, theme: str = theming.DEFAULT_THEME) -> None:
        """Use the built-in themes and a stopped clock."""
        super().__init__(
            theme_folders=[theming.BUILTIN_FOLDER],
            theme=theme,
            keys={},
            clock=lambda: scenes.NOW,
        )
        self.said: list[str] = []
        self.troubles: list[str] = []
        self.backs = 0

    @on(Notice)
    def _remember_notice(self, message: Notice) -> None:
        self.said.append(message.text)

    @on(Trouble)
    def _remember_trouble(self, message: Trouble) -> None:
        self.troubles.append(message.failure.sentence)

    async def action_back(self) -> None:
        """Count."""
        self.backs += 1


class ChatStage(Stage):
    """A chat pane alone; the test plays the cluster."""

    def __init__(self, theme: str = theming.DEFAULT_THEME) -> None:
        """Remember questions and stops."""
        super().__init__(theme)
        self.asked: list[ChatRequest] = []
        self.stops = 0

    def compose(self) -> ComposeResult:
        """The pane."""
        yield ChatPane(id="chat", classes="pane")

    def on_mount(self) -> None:
        """Ready to ask, named like the homelab's model."""
        super().on_mount()
        self.pane.set_model("GLM-4.7-Flash-Q4_K_M")
        self.pane.set_ready(True, "")
        self.pane.focus_default()

    @property
    def pane(self) -> ChatPane:
        """The pane under test."""
        return self.query_one(ChatPane)

    @on(ChatPane.Asked)
    def _remember_question(self, message: ChatPane.Asked) -> None:
        self.asked.append(message.request)

    @on(ChatPane.Stopped)
    def _remember_stop(self) -> None:
        self.stops += 1


class ScreenStage(Stage):
    """One screen alone."""

    def __init__(self, shown: Screen[None], theme: str = theming.DEFAULT_THEME) -> None:
        """Show this screen."""
        super().__init__(theme)
        self.shown = shown
        self.chosen: list[str] = []

    def on_mount(self) -> None:
        """Put the screen up."""
        super().on_mount()
        self.push_screen(self.shown)

    @on(ModelsScreen.Chosen)
    def _remember_choice(self, message: ModelsScreen.Chosen) -> None:
        self.chosen.append(message.path)
