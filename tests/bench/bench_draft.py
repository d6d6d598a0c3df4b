"""Tokens per second with and without a draft, over links as slow as the lab makes them.

Run it with ``make bench-draft``: the bundled model over two workers, with every way to
guess side by side. ``TABLE=1`` has more links, and four clients at once. The draft
model is the bundled model itself: nearly all that it guesses is right, and each guess
costs what a token costs without a network.
"""

from __future__ import annotations

import argparse
import json
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from backends.demo import MODEL_PATH
from tests.engine.conftest import User, somebody
from tests.native.stock import engine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DRAFTS = ("none", "ngram", str(MODEL_PATH))
NAMES = ("none", "ngram", "draft model")
QUESTIONS = (
    "What is a split?",
    "What does a worker do?",
)
TEXTS = ("prose", "repetitive")
"""Answers to questions, and the same asked for once more in one conversation."""
TOKENS = 96
"""Of an answer, at most: where the model ends it, what it would say on is no text."""
CTX_SIZE = 1024


class Scope(NamedTuple):
    """What is tried."""

    latencies_ms: Sequence[int]
    """Added each way on both links."""
    slots: Sequence[int]
    rounds: int


SHORT = Scope((10,), (1,), 3)
TABLE = Scope((0, 1, 5, 10, 30), (1, 4), 1)
Message = dict[str, str]
Cell = tuple[int, int, str]
"""Slots, latency, kind of text."""


def main() -> None:
    """Try all, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--version", default="8.0.0")
    options = parser.parse_args()
    scope = TABLE if options.table else SHORT
    columns = [dict(column(options.version, draft, scope)) for draft in DRAFTS]
    print(f"engine {options.version}, two workers, tok/s, the median of {scope.rounds}")
    print("| slots | each way | text |", " | ".join(NAMES), "|")
    print("|---|---|---|", "---|" * len(NAMES), sep="")
    for cell in columns[0]:
        rates = [found[cell] for found in columns]
        told = (f"{rate:.1f} (×{rate / rates[0]:.2f})" for rate in rates)
        slots, latency_ms, text = cell
        print(f"| {slots} | {latency_ms} ms | {text} |", " | ".join(told), "|")


def column(version: str, draft: str, scope: Scope) -> Iterator[tuple[Cell, float]]:
    """Tokens per second of one way to guess, cell by cell."""
    for slots in scope.slots:
        with somebody() as user:
            user.env["DLLM_ENGINE_DIR"] = str(engine(version))
            launch(user, draft, slots)
            for latency_ms in scope.latencies_ms:
                user.run("lab", "set", "all", "--latency", f"{latency_ms}ms")
                for text in TEXTS:
                    yield (
                        (slots, latency_ms, text),
                        median_rate(user, text, slots, scope.rounds),
                    )
            user.run("stop")


def launch(user: User, draft: str, slots: int) -> None:
    """Serve the bundled model from two workers."""
    context = str(CTX_SIZE * slots)
    up = ("up", "--model", str(MODEL_PATH), "--workers", "2", "--detach")
    user.run(*up, "--draft", draft, "--slots", str(slots), "--ctx", context)


def median_rate(user: User, text: str, clients: int, rounds: int) -> float:
    """All clients together, the median of some rounds."""
    url = user.status()["api_url"]
    asking = [[message("user", question)] for question in QUESTIONS]
    if text == "repetitive":
        asking = [again(url, *one) for one in asking]
    return median(rate(url, asking, clients) for _ in range(rounds))


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
