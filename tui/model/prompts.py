"""The history of prompts, to bring one back into the text field."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class PromptHistory:
    """Earlier prompts, walked with ↑ and ↓; what was being typed is kept."""

    def __init__(self) -> None:
        self._prompts: list[str] = []
        self._position = 0
        self._draft = ""

    @property
    def shown(self) -> str | None:
        """The prompt walked to; None at the draft."""
        if self._position < len(self._prompts):
            return self._prompts[self._position]
        return None

    def replace(self, prompts: Iterable[str]) -> None:
        """Set all prompts, oldest first."""
        self._prompts = [prompt for prompt in prompts if prompt.strip()]
        self._position = len(self._prompts)

    def add(self, prompt: str) -> None:
        """Remember a prompt and stand at an empty draft."""
        if self._prompts[-1:] != [prompt]:
            self._prompts.append(prompt)
        self._position = len(self._prompts)
        self._draft = ""

    def older(self, draft: str) -> str | None:
        """Step back; None when there is nothing older."""
        if self._position == 0:
            return None
        if self._position == len(self._prompts):
            self._draft = draft
        self._position -= 1
        return self._prompts[self._position]

    def newer(self) -> str | None:
        """Step forward, at last to the draft; None when already there."""
        if self._position == len(self._prompts):
            return None
        self._position += 1
        shown = self.shown
        return self._draft if shown is None else shown
