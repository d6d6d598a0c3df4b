"""A conversation as turns: what was asked, what was answered, what to send next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from backends.state import ChatMessage, ChatRequest, Sampling

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

TURN_LIMIT = 100
"""Turns remembered; older ones are dropped."""
CHARACTER_LIMIT = 400_000
"""Characters remembered over all turns."""


@dataclass
class Turn:
    """One question and its answer so far."""

    question: str
    answer: str = ""

    @property
    def size(self) -> int:
        """Characters it holds."""
        return len(self.question) + len(self.answer)


class Conversation:
    """Turns under one system prompt."""

    def __init__(self) -> None:
        """Start with nothing said."""
        self.system = ""
        self.turns: list[Turn] = []

    @classmethod
    def of(cls, messages: Iterable[ChatMessage]) -> Conversation:
        """Rebuild a conversation from its messages; strays are dropped."""
        conversation = cls()
        for message in messages:
            conversation._add(message)
        return conversation

    def _add(self, message: ChatMessage) -> None:
        """Take in one message."""
        if message.role == "system":
            self.system = message.content
        elif message.role == "user":
            self.turns.append(Turn(message.content))
        elif message.role == "assistant" and self.turns:
            self.turns[-1].answer += message.content

    @property
    def messages(self) -> tuple[ChatMessage, ...]:
        """Everything said, to be remembered."""
        return (*self._opening(), *self._said(self.turns))

    def _opening(self) -> tuple[ChatMessage, ...]:
        """The system prompt, where there is one."""
        if not self.system.strip():
            return ()
        return (ChatMessage(role="system", content=self.system),)

    @staticmethod
    def _said(turns: Iterable[Turn]) -> Iterator[ChatMessage]:
        """The messages of some turns."""
        for turn in turns:
            yield ChatMessage(role="user", content=turn.question)
            if turn.answer:
                yield ChatMessage(role="assistant", content=turn.answer)

    def ask(self, question: str) -> Turn:
        """Begin a turn."""
        turn = Turn(question)
        self.turns.append(turn)
        self._trim()
        return turn

    def take_back(self) -> str:
        """Remove the last turn; return its question, empty when there is none."""
        return self.turns.pop().question if self.turns else ""

    def clear(self) -> None:
        """Forget all turns; the system prompt stays."""
        self.turns.clear()

    def request(self, sampling: Sampling) -> ChatRequest:
        """What to send for the last question.

        Earlier questions without an answer are left out, because many chat templates
        insist that user and assistant take turns.
        """
        *earlier, last = self.turns
        answered = [turn for turn in earlier if turn.answer]
        question = Turn(last.question)
        messages = (*self._opening(), *self._said([*answered, question]))
        return ChatRequest(messages=messages, sampling=sampling)

    def _trim(self) -> None:
        """Drop the oldest turns over the limits, never the last."""
        del self.turns[:-TURN_LIMIT]
        size = sum(turn.size for turn in self.turns)
        while size > CHARACTER_LIMIT and len(self.turns) > 1:
            size -= self.turns.pop(0).size


class PromptHistory:
    """Earlier prompts, walked with ↑ and ↓; what was being typed is kept."""

    def __init__(self) -> None:
        """Start with no prompts."""
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
