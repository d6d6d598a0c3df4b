"""Tokens per second with and without a draft, over links as slow as the lab makes them.

Run it with ``make bench-draft``: the bundled model over two workers, with every way to
guess side by side. ``TABLE=1`` has more links, and four clients at once; ``QUICK=1`` is
a part of it. The draft model is the bundled model itself: nearly all that it guesses is
right, and each guess costs what a token costs without a network. ``auto`` is measured
once it has settled on that network, and has heard the text.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from backends.demo import MODEL_PATH
from tests.engine.conftest import User, somebody, wait_for
from tests.native.stock import engine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

NAMES = ("none", "ngram", "draft model", "auto")
NOT_SLOWER, NEAR_BEST = 0.97, 0.95
"""What ``auto`` must reach of none, and of the best of the others."""
QUESTIONS = (
    "What is a split?",
    "What does a worker do?",
)
TEXTS = ("prose", "repetitive")
"""Answers to questions, and the same asked for once more in one conversation."""
TOKENS = 96
"""Of an answer, at most: where the model ends it, what it would say on is no text."""
CTX_SIZE = 1024
LARGER = 5
"""A model so many times as large as another may have it for a draft."""
NO_PROMPTS_KEPT = ("--cache-ram", "0")
"""Whatever guesses, llama-server fetches what it keeps of a prompt from the workers, in
two trips a layer; which prompts it keeps depends on what was asked before.
"""
LEAST_S = 4.0
"""Rounds that are quick are repeated for so long: what else is done weighs less."""
SETTLING_S = 300.0
HEARD_ROUNDS = 3
"""So much of one client's tells something."""
HEARD_S = 6.0
"""After so long without a question, what was asked before has been considered."""


class Scope(NamedTuple):
    """What is tried."""

    latencies_ms: Sequence[int]
    """Added each way on both links."""
    slots: Sequence[int]
    rounds: int


SHORT = Scope((10,), (1,), 3)
QUICK = Scope((0, 10), (1,), 3)
TABLE = Scope((0, 1, 5, 10, 30), (1, 4), 3)
Message = dict[str, str]
Cell = tuple[int, int, str]
"""Slots, latency, kind of text."""


def main() -> None:
    """Try all, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--version", default="8.0.0")
    options = parser.parse_args()
    scope = QUICK if options.quick else TABLE if options.table else SHORT
    columns = [dict(column(options.version, name, scope)) for name in NAMES]
    print(
        f"engine {options.version}, two workers, tok/s, the median of {scope.rounds}"
        " rounds, or more"
    )
    print("| slots | each way | text |", " | ".join(NAMES), "|")
    print("|---|---|---|", "---|" * len(NAMES), sep="")
    for cell in columns[0]:
        rates = [found[cell] for found in columns]
        told = (f"{rate:.1f} (×{rate / rates[0]:.2f})" for rate in rates)
        print(f"| {' | '.join(in_words(cell))} |", " | ".join(told), "|")
    print("\n".join(verdicts(columns)))


def in_words(cell: Cell) -> tuple[str, str, str]:
    """``1``, ``10 ms``, ``prose``."""
    slots, latency_ms, text = cell
    return str(slots), f"{latency_ms} ms", text


def verdicts(columns: Sequence[dict[Cell, float]]) -> Iterator[str]:
    """Whether ``auto``, the last column, is as it ought to be, and where it is not."""
    *others, auto = columns
    for limit, words, aims in (
        (NOT_SLOWER, "none", others[:1]),
        (NEAR_BEST, "the best of the others", others),
    ):
        part = {cell: auto[cell] / max(aim[cell] for aim in aims) for cell in auto}
        missed = {cell: share for cell, share in part.items() if share < limit}
        kept = len(part) - len(missed)
        yield f"auto reaches {limit:.0%} of {words} in {kept} of {len(part)} cells"
        for cell, share in missed.items():
            yield f"  {', '.join(in_words(cell))}: {share:.0%}"


def column(version: str, name: str, scope: Scope) -> Iterator[tuple[Cell, float]]:
    """Tokens per second of one way to guess, cell by cell."""
    for slots in scope.slots:
        with somebody() as user:
            user.env["DLLM_ENGINE_DIR"] = str(engine(version))
            launch(user, name, slots)
            for latency_ms in scope.latencies_ms:
                changed_at = time.time() if latency_ms else 0.0
                user.run("lab", "set", "all", "--latency", f"{latency_ms}ms")
                for text in TEXTS:
                    if name == "auto":
                        adapt(user, text, slots, changed_at)
                    yield (
                        (slots, latency_ms, text),
                        median_rate(user, text, slots, scope.rounds),
                    )
            user.run("stop")


def launch(user: User, name: str, slots: int) -> None:
    """Serve the bundled model from two workers."""
    model, draft = models(user.home)
    drafted = str(draft) if name == "draft model" else name
    user.run("config", "set", "model_dirs", str(draft.parent))
    up = ("up", "--model", str(model), "--workers", "2", "--detach")
    size = ("--slots", str(slots), "--ctx", str(CTX_SIZE * slots))
    user.run(*up, "--draft", drafted, *size, "--", *NO_PROMPTS_KEPT)


def models(folder: Path) -> tuple[Path, Path]:
    """The bundled model twice: with nothing behind its end, and as a draft."""
    model, draft = folder / "model.gguf", folder / "drafts" / "small.gguf"
    draft.parent.mkdir()
    for file in (model, draft):
        shutil.copy(MODEL_PATH, file)
    os.truncate(model, LARGER * MODEL_PATH.stat().st_size)
    return model, draft


def adapt(user: User, text: str, clients: int, since: float) -> None:
    """Let ``auto`` try what it wants to, and hear what will be asked."""
    settle(user, since)
    median_rate(user, text, clients, HEARD_ROUNDS, least_s=0.0)
    time.sleep(HEARD_S)
    settle(user, since)


def settle(user: User, since: float) -> None:
    """Wait until it knows what is best on the network that is since then."""

    def is_settled() -> bool:
        status = user.status()
        now = status["draft_now"]
        tried = [one["at"] for one in now["trials"]] if now else []
        serves = status["state"] == "serving" and tried and not now["doing"]
        return bool(serves) and min(tried) >= since

    wait_for(is_settled, "auto settled", SETTLING_S)


def median_rate(
    user: User, text: str, clients: int, rounds: int, least_s: float = LEAST_S
) -> float:
    """All clients together, the median of some rounds that take so long at least."""
    url = user.status()["api_url"]
    asking = [[message("user", question)] for question in QUESTIONS]
    if text == "repetitive":
        asking = [again(url, *one) for one in asking]
    found: list[float] = []
    began = time.perf_counter()
    while len(found) < rounds or time.perf_counter() - began < least_s:
        found.append(rate(url, asking, clients))
    return median(found)


def again(url: str, question: Message) -> list[Message]:
    """A conversation in which a question was answered and is asked once more."""
    told = asked(url, [question])["choices"][0]["message"]["content"]
    return [question, message("assistant", told), question]


def rate(url: str, asking: Sequence[Sequence[Message]], clients: int) -> float:
    """Tokens per second, every client asking everything."""

    def everything(_: int) -> list[dict[str, float]]:
        return [asked(url, messages)["timings"] for messages in asking]

    with ThreadPoolExecutor(clients) as pool:
        began = time.perf_counter()
        each = list(pool.map(everything, range(clients)))
        elapsed_s = time.perf_counter() - began
    told = [timings for of_client in each for timings in of_client]
    if clients == 1:
        elapsed_s = sum(timings["predicted_ms"] for timings in told) / 1000
    return sum(timings["predicted_n"] for timings in told) / elapsed_s


def message(role: str, content: str) -> Message:
    """One message of a conversation."""
    return {"role": role, "content": content}


def asked(url: str, messages: Sequence[Message]) -> Any:
    """A whole answer."""
    body = {"messages": messages, "max_tokens": TOKENS, "temperature": 0}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(
        f"{url}/chat/completions", json.dumps(body).encode(), headers
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)


if __name__ == "__main__":
    main()
