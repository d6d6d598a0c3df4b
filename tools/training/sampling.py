"""Drawing training batches: questions as people type them, packed into rows."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tools.training.tokens import ChatCoder, Message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.training.corpus import Corpus, Fact, Follow

PREFIXES = (
    "please ", "hey, ", "hi, ", "hello, ", "ok, ", "so, ", "and ", "well, ", "um, ",
    "can you tell me ", "tell me, ", "quick question: ", "one more question: ",
    "please tell me ", "i wonder, ", "just curious, ", "excuse me, ", "now ",
)  # fmt: skip
SUFFIXES = (
    " please", ", please", " thanks", "??", "!", " again", " now", " exactly?",
    " in short", " here?", " then?", ", and why?", "...", " today?",
)  # fmt: skip


class Typist:
    """Types a question the way people do: hasty, polite, with slips."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def slip(self, word: str) -> str:
        """The word with one letter swapped, lost or doubled."""
        at = self.rng.randrange(1, len(word) - 1)
        kind = self.rng.randrange(3)
        if kind == 0:
            return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
        if kind == 1:
            return word[:at] + word[at + 1 :]
        return word[:at] + word[at] + word[at:]

    def with_slip(self, text: str) -> str:
        """The text with a slip in one of its longer words."""
        words = text.split(" ")
        longer = [i for i, w in enumerate(words) if len(w) > 4 and w.isalpha()]
        if longer:
            at = self.rng.choice(longer)
            words[at] = self.slip(words[at])
        return " ".join(words)

    def with_case(self, text: str) -> str:
        """Mostly a capital first letter or none, now and then all small or all big."""
        draw = self.rng.random()
        if draw < 0.4:
            return text[:1].upper() + text[1:]
        if draw < 0.43 and len(text) > 3:
            return text.upper()
        return text.lower() if draw < 0.6 and len(text) > 1 else text

    def type(self, question: str) -> str:
        """The question as typed this time; one sign alone stays as it is."""
        text = question
        if len(text) < 3:
            return text
        if self.chance(0.12):
            text = self.rng.choice(PREFIXES) + text
        if self.chance(0.1):
            text = text.rstrip("?!.") + self.rng.choice(SUFFIXES)
        if self.chance(0.15):
            text = self.with_slip(text)
        if self.chance(0.3):
            text = text.rstrip("?!.") or text
        elif self.chance(0.1) and text[-1].isalnum():
            text += self.rng.choice("?.")
        return self.with_case(text)


class Sampler:
    """Draws conversations and packs them into rows of a fixed number of tokens."""

    def __init__(self, corpus: Corpus, coder: ChatCoder, seed: int) -> None:
        self.corpus = corpus
        self.coder = coder
        self.rng = random.Random(seed)
        self.typist = Typist(self.rng)
        self.facts = list(corpus.facts.values())
        self.weights = [fact.weight for fact in self.facts]

    def turn(self, fact: Fact, question: str | None = None) -> list[Message]:
        if question is None:
            question = self.rng.choice(self.rng.choice(fact.kinds))
        asked = Message("user", self.typist.type(question))
        return [asked, Message("assistant", fact.answer)]

    def any_turn(self) -> list[Message]:
        return self.turn(self.rng.choices(self.facts, self.weights)[0])

    def follow_turns(self, follow: Follow) -> list[Message]:
        facts = self.corpus.facts
        first = self.turn(facts[self.rng.choice(follow.after)])
        return first + self.turn(facts[follow.gives], self.rng.choice(follow.ask))

    def conversation(self) -> list[Message]:
        """One to three turns, sometimes after a system message."""
        messages: list[Message] = []
        if self.typist.chance(0.15):
            messages.append(Message("system", self.rng.choice(self.corpus.systems)))
        if self.typist.chance(0.06):
            return messages + self.follow_turns(self.rng.choice(self.corpus.follows))
        for _ in range(self.rng.choices((1, 2, 3), (7, 2, 1))[0]):
            messages += self.any_turn()
        return messages

    def row(self, length: int) -> list[tuple[int, float]]:
        pairs: list[tuple[int, float]] = []
        while len(pairs) <= length:
            pairs += zip(*self.coder.chat(self.conversation()), strict=True)
        return pairs[: length + 1]

    def batch(self, rows: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
        table = [self.row(length) for _ in range(rows)]
        ids = torch.tensor([[token for token, _ in row] for row in table])
        weights = torch.tensor([[weight for _, weight in row] for row in table])
        return ids[:, :-1], ids[:, 1:], weights[:, 1:]

    def batches(self, tokens: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        step = 0
        while True:
            length = 1024 if step % 8 == 7 else 128
            yield self.batch(tokens // length, length)
            step += 1
