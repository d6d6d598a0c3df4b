"""Reading the corpus: facts, their questions, and which questions are held out."""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FOLDER = Path(__file__).parent / "corpus"
FACT_FILES = (
    "smalltalk.toml",
    "words.toml",
    "keys.toml",
    "network.toml",
    "shell.toml",
    "beyond.toml",
    "long.toml",
)
FORM_KINDS = ("terms", "plurals", "actions")
HELD_PERCENT = 7


@dataclass(frozen=True)
class Fact:
    """One answer with its questions; `kinds` groups them by how they were written."""

    name: str
    answer: str
    weight: float
    kinds: tuple[tuple[str, ...], ...]
    held: tuple[str, ...]


@dataclass(frozen=True)
class Follow:
    """Questions that get the answer of `gives` when asked after one of `after`."""

    after: tuple[str, ...]
    gives: str
    ask: tuple[str, ...]


@dataclass(frozen=True)
class Corpus:
    """Everything to train on, and the prompts that are only for checking."""

    facts: dict[str, Fact]
    follows: tuple[Follow, ...]
    systems: tuple[str, ...]
    unseen: tuple[tuple[str, str], ...]

    def held(self) -> list[tuple[str, str]]:
        return [(f.name, question) for f in self.facts.values() for question in f.held]

    def texts(self) -> Iterator[str]:
        """Every text of the corpus once: questions, answers and system messages."""
        yield from self.systems
        for fact in self.facts.values():
            yield fact.answer
            yield from fact.held
            for kind in fact.kinds:
                yield from kind
        for follow in self.follows:
            yield from follow.ask


def read(name: str) -> dict[str, Any]:
    return tomllib.loads((FOLDER / name).read_text("utf-8"))


def key_of(question: str) -> str:
    words = question.lower().replace("'", "").split()
    return " ".join(word.strip("?!.,") or word for word in words)


def is_held(question: str) -> bool:
    digest = hashlib.sha256(key_of(question).encode()).digest()
    return int.from_bytes(digest[:4]) % 100 < HELD_PERCENT


def fill_slots(template: str, slots: dict[str, list[str]]) -> Iterator[str]:
    """The template once for each combination of words for its named slots."""
    names = [name for _, name, _, _ in Formatter().parse(template) if name]
    for words in product(*(slots[name] for name in names)):
        text = template
        for name, word in zip(names, words, strict=True):
            text = text.replace("{" + name + "}", word, 1)
        yield text


def put_in_forms(words: Iterable[str], forms: list[str]) -> list[str]:
    return [form.replace("{}", word) for word, form in product(words, forms)]


def expand(raw: dict[str, Any], data: dict[str, Any], forms: Any) -> list[list[str]]:
    """All questions of one fact, grouped by how they were written."""
    slots = data.get("slots", {})
    asked = [q for text in raw.get("ask", []) for q in fill_slots(text, slots)]
    groups = [asked, raw.get("extra", [])]
    for kind in FORM_KINDS:
        words = list(raw.get(kind, []))
        words += [w for slot in raw.get(f"slot_{kind}", []) for w in slots[slot]]
        groups.append(put_in_forms(words, forms[kind]))
    return [group for group in groups if group]


def build_fact(raw: dict[str, Any], groups: list[list[str]]) -> Fact:
    """The fact with its questions divided into trained and held out."""
    sure = raw.get("sure", [])
    safe = {key_of(question) for question in sure}
    keep = [[q for q in g if key_of(q) in safe or not is_held(q)] for g in groups]
    held = {q for g in groups for q in g if key_of(q) not in safe and is_held(q)}
    kinds = tuple(tuple(dict.fromkeys(group)) for group in (*keep, sure) if group)
    weight = float(raw.get("weight", 1.0))
    return Fact(raw["id"], raw["answer"], weight, kinds, tuple(sorted(held)))


def load_facts() -> dict[str, Fact]:
    """All facts by id, in file order."""
    forms = read("forms.toml")
    facts: dict[str, Fact] = {}
    for name in FACT_FILES:
        data = read(name)
        for raw in data["fact"]:
            fact = build_fact(raw, expand(raw, data, forms))
            if fact.name in facts:
                raise ValueError(f"{name}: fact {fact.name!r} is there twice")
            facts[fact.name] = fact
    return facts


def load() -> Corpus:
    """The whole corpus."""
    talk = read("dialogue.toml")
    follows = tuple(
        Follow(tuple(f["after"]), f["gives"], tuple(f["ask"])) for f in talk["follow"]
    )
    prompts = read("unseen.toml")["prompt"]
    unseen = tuple((p["fact"], question) for p in prompts for question in p["ask"])
    return Corpus(load_facts(), follows, tuple(talk["systems"]["text"]), unseen)
