"""The tokenizer (byte-level BPE as in GPT-2) and ChatML as lists of token ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

END_OF_TEXT = "<|endoftext|>"
START = "<|im_start|>"
END = "<|im_end|>"
SPECIALS = (END_OF_TEXT, START, END)

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] }}"
    "{{ '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Message:
    """One chat message; role is system, user or assistant."""

    role: str
    text: str


def train(texts: Iterable[str], vocab: int) -> Tokenizer:
    """A new tokenizer with exactly `vocab` entries, the special ones first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocab:
        raise ValueError(f"the text gives only {tokenizer.get_vocab_size()} tokens")
    return tokenizer


def load(path: Path) -> Tokenizer:
    return Tokenizer.from_file(str(path))


def special_id(tokenizer: Tokenizer, text: str) -> int:
    token: int | None = tokenizer.token_to_id(text)
    if token is None:
        raise ValueError(f"the tokenizer has no {text}")
    return token


class ChatCoder:
    """Turns messages into token ids with a weight per token for the loss."""

    def __init__(self, tokenizer: Tokenizer, prompt_weight: float = 0.1) -> None:
        self.tokenizer = tokenizer
        self.prompt_weight = prompt_weight
        self.start = special_id(tokenizer, START)
        self.end = special_id(tokenizer, END)
        self.newline = self.text("\n")

    def text(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def opening(self, role: str) -> list[int]:
        return [self.start, *self.text(f"{role}\n")]

    def message(self, message: Message) -> tuple[list[int], list[float]]:
        """Ids and weights of one message, its end marker and the newline after it."""
        if message.role == "assistant":
            opening = self.opening(message.role)
            body = [*self.text(message.text), self.end]
            weights = [self.prompt_weight] * len(opening) + [1.0] * len(body)
        else:
            opening = [self.start, *self.text(f"{message.role}\n{message.text}")]
            body = [self.end]
            weights = [self.prompt_weight] * (len(opening) + 1)
        ids = opening + body + self.newline
        return ids, weights + [0.0] * len(self.newline)

    def chat(self, messages: Iterable[Message]) -> tuple[list[int], list[float]]:
        """Ids and weights of a whole conversation."""
        ids: list[int] = []
        weights: list[float] = []
        for message in messages:
            more_ids, more_weights = self.message(message)
            ids += more_ids
            weights += more_weights
        return ids, weights

    def prompt(self, messages: Iterable[Message]) -> list[int]:
        return self.chat(messages)[0] + self.opening("assistant")
