"""The part of a slot's context that a chat takes, with the question being typed."""

from __future__ import annotations

from typing import NamedTuple

from backends.state import Conversation, PromptCount

NEAR = 0.8
"""Of the context: from here on it is told that it ends."""
CHARS_PER_TOKEN = 4.0
"""Of English, where no answer tells it."""
TELLING_TOKENS = 32
"""Answers of fewer tokens tell little."""
MESSAGE_TOKENS = 5
"""The chat template writes about so many around each message."""


class ContextUsage(NamedTuple):
    tokens: int
    ctx_size: int
    counted: bool
    """By the model's own tokenizer; else it is our estimate."""

    @property
    def text(self) -> str:
        """``~1230 / 4096``; a tilde stands before an estimate."""
        sign = "" if self.counted else "~"
        word = {"warn": " nearly full", "bad": " too long"}.get(self.tone, "")
        return f"{sign}{self.tokens} / {self.ctx_size}{word}"

    @property
    def tone(self) -> str:
        if self.tokens >= self.ctx_size:
            return "bad"
        return "warn" if self.tokens >= NEAR * self.ctx_size else "dim"

    @property
    def sentence(self) -> str:
        """Tells the effect of the context's end; empty while there is room."""
        if self.tone == "bad":
            return "too long: it will be refused, {chat.new} starts anew"
        left = self.ctx_size - self.tokens
        room = f"the answer ends after {left} tokens at the latest"
        return room if self.tone == "warn" else ""


def chars_per_token(conversation: Conversation) -> float:
    """The mean of the answers whose tokens llama-server counted."""
    replies = [
        turn.reply
        for turn in conversation.turns
        if turn.reply.timings is not None and turn.reply.finish_reason != "error"
    ]
    tokens = sum(reply.timings.tokens for reply in replies if reply.timings)
    chars = sum(len(reply.text) + len(reply.reasoning) for reply in replies)
    return chars / tokens if tokens >= TELLING_TOKENS and chars else CHARS_PER_TOKEN


def estimated_tokens(conversation: Conversation, draft: str) -> int:
    """Estimate the tokens of a chat and a draft from their characters."""
    texts = [conversation.system, draft]
    for turn in conversation.turns:
        if turn.reply.text:
            texts += [turn.asked, turn.reply.text]
    said = [text for text in texts if text.strip()]
    chars = sum(map(len, said))
    return round(chars / chars_per_token(conversation) + MESSAGE_TOKENS * len(said))


class ContextMeter:
    """Keeps the last count, and estimates from it while the text goes on."""

    def __init__(self) -> None:
        self.ctx_size = 0
        """Tokens of a slot's context; 0 while nothing serves."""
        self._count: PromptCount | None = None
        self._counted: tuple[Conversation, str] | None = None

    def take(self, conversation: Conversation, draft: str, count: PromptCount) -> None:
        self._count, self._counted = count, (conversation, draft)

    def usage(self, conversation: Conversation, draft: str) -> ContextUsage | None:
        """Return the use of now; None without anything said, or without a context."""
        if not self.ctx_size or not (conversation.turns or draft.strip()):
            return None
        estimate = estimated_tokens(conversation, draft)
        if self._count is None or self._counted is None:
            return ContextUsage(estimate, self.ctx_size, counted=False)
        tokens = self._count.tokens + estimate - estimated_tokens(*self._counted)
        is_same = self._counted == (conversation, draft)
        return ContextUsage(max(tokens, 0), self._count.ctx_size, counted=is_same)

    def forget(self) -> None:
        """Another model counts otherwise."""
        self._count = self._counted = None
