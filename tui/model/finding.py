"""Finding things by part of a name: quick enough for each key, however many there are.

Textual's own matcher tries every way to lay a query over a text. For a long path that
takes longer than anybody waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import nlargest

SHOWN_MAX = 60
NEAR_MAX = 5
COMPARED_MAX = 100
"""So many names, those that share most pairs of letters, are compared closely."""
LIKE_ENOUGH = 0.7
_WORD_STARTS = " /-_.:("


@dataclass(slots=True, eq=False)
class Entry:
    """One thing that can be found, and what happens then."""

    kind: str
    name: str
    run: Callable[[], object]
    detail: str = ""
    key: str = ""
    searched_name: str = ""
    searched: str = ""

    def __post_init__(self) -> None:
        self.searched_name = self.name.lower()
        self.searched = f"{self.name} {self.kind} {self.detail}".lower()


def found(query: str, entries: Sequence[Entry]) -> list[Entry]:
    """The best matches, best first; all, as they come, for an empty query."""
    words = query.lower().split()
    if not words:
        return list(entries[:SHOWN_MAX])
    scored = (
        (score, -place, entry)
        for place, entry in enumerate(entries)
        if (score := _score(words, entry)) > 0
    )
    return [entry for _, _, entry in nlargest(SHOWN_MAX, scored, key=_rank)]


def has_words(text: str, query: str) -> bool:
    """True if a text has every word of a query, in upper or lower case."""
    return all(word in text.casefold() for word in query.casefold().split())


def near(query: str, entries: Iterable[Entry]) -> list[Entry]:
    typed = query.lower().strip()
    pairs = {typed[at : at + 2] for at in range(len(typed) - 1)}
    shared = (
        (sum(pair in entry.searched_name for pair in pairs), -place, entry)
        for place, entry in enumerate(entries)
    )
    likely = nlargest(COMPARED_MAX, (one for one in shared if one[0]), key=_rank)
    scored = [(_likeness(typed, e.searched_name), place, e) for _, place, e in likely]
    meant = (one for one in scored if one[0] >= LIKE_ENOUGH)
    return [entry for _, _, entry in nlargest(NEAR_MAX, meant, key=_rank)]


def _likeness(typed: str, name: str) -> float:
    # Imported here because few searches come to that.
    from difflib import SequenceMatcher

    matcher = SequenceMatcher(b=typed)
    ratios = []
    for text in (name, *name.split()):
        matcher.set_seq1(text)
        ratios.append(matcher.ratio())
    return max(ratios)


def _rank(scored: tuple[float, int, Entry]) -> tuple[float, int]:
    return scored[:2]


def _score(words: Sequence[str], entry: Entry) -> float:
    total = 0.0
    for word in words:
        score = _word_score(word, entry)
        if not score:
            return 0.0
        total += score
    return total - len(entry.searched_name) / 1000


def _word_score(word: str, entry: Entry) -> float:
    name = entry.searched_name
    at = name.find(word)
    if at == 0:
        return 8.0
    if at > 0:
        return 6.0 if name[at - 1] in _WORD_STARTS else 4.0
    if word in entry.searched:
        return 2.0
    return 1.0 if len(word) > 2 and _in_order(word, name) else 0.0


def _in_order(word: str, text: str) -> bool:
    at = 0
    for letter in word:
        at = text.find(letter, at) + 1
        if not at:
            return False
    return True
