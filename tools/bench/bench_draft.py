"""Tokens per second with and without a draft, over links as slow as the lab makes them.

Run it with ``make bench-draft``: the bundled model over two workers, with every
speculation method side by side. ``TABLE=1`` has more links, and four clients at once;
``QUICK=1`` is a part of it. The draft model is the bundled model itself: nearly every
drafted token is accepted, and costs what a token costs without a network. ``auto``
compares anew on each network.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from backends.demo import MODEL_PATH
from tests.engine.conftest import User, somebody, wait_for
from tests.native.stock import engine

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

NAMES = ("none", "ngram", "draft model", "auto")
NOT_SLOWER, NEAR_BEST = 0.97, 0.95
"""``auto`` must reach these shares of none, and of the best of the others."""
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
"""With any draft, llama-server fetches what it keeps of a prompt from the workers, in
two trips a layer; which prompts it keeps depends on what was asked before.
"""
LEAST_S = 4.0
"""Rounds that are quick are repeated for so long: what else is done weighs less."""
SETTLING_S = 300.0


class Scope(NamedTuple):
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
Row = dict[str, float]
"""Tokens per second by draft."""


def main() -> None:
    """Try all, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--version", default="8.0.0")
    options = parser.parse_args()
    scope = QUICK if options.quick else TABLE if options.table else SHORT
    print(
        f"engine {options.version}, two workers, tok/s, the median of {scope.rounds}"
        " rounds, or more, of each in turn"
    )
    print("| slots | each way | text |", " | ".join(NAMES), "|")
    print("|---|---|---|", "---|" * len(NAMES), sep="", flush=True)
    rows: dict[Cell, Row] = {}
    for cell, row in measured(options.version, scope):
        rows[cell] = row
        told = (f"{rate:.1f} (×{rate / row['none']:.2f})" for rate in row.values())
        print(f"| {' | '.join(in_words(cell))} |", " | ".join(told), "|", flush=True)
    print("\n".join(verdicts(rows)))


def in_words(cell: Cell) -> tuple[str, str, str]:
    slots, latency_ms, text = cell
    return str(slots), f"{latency_ms} ms", text


def verdicts(rows: Mapping[Cell, Row]) -> Iterator[str]:
    others = NAMES[:-1]
    for limit, words, aims in (
        (NOT_SLOWER, "none", others[:1]),
        (NEAR_BEST, "the best of the others", others),
    ):
        part = {
            cell: row["auto"] / max(row[aim] for aim in aims)
            for cell, row in rows.items()
        }
        missed = {cell: share for cell, share in part.items() if share < limit}
        kept = len(part) - len(missed)
        yield f"auto reaches {limit:.0%} of {words} in {kept} of {len(part)} cells"
        for cell, share in missed.items():
            yield f"  {', '.join(in_words(cell))}: {share:.0%}"


def measured(version: str, scope: Scope) -> Iterator[tuple[Cell, Row]]:
    """Tokens per second, cell by cell, of four clusters that take turns."""
    for slots in scope.slots:
        with ExitStack() as clusters:
            users = {
                name: clusters.enter_context(serving(version, name, slots))
                for name in NAMES
            }
            for latency_ms in scope.latencies_ms:
                for user in users.values():
                    user.run("lab", "set", "all", "--latency", f"{latency_ms}ms")
                compare(users["auto"])
                for text in TEXTS:
                    row = median_rates(users, text, slots, scope.rounds)
                    yield (slots, latency_ms, text), row


@contextmanager
def serving(version: str, name: str, slots: int) -> Iterator[User]:
    with somebody() as user:
        user.env["DLLM_ENGINE_DIR"] = str(engine(version))
        launch(user, name, slots)
        yield user
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


def compare(user: User) -> None:
    """Have ``auto`` compare all drafts on the network as it is now."""
    since = time.time()
    model = user.status()["plan"]["model"]
    user.run("models", "drafts", model, "--measure")

    def is_settled() -> bool:
        status = user.status()
        now = status["draft_now"]
        measured = [one["at"] for one in now["trials"]] if now else []
        serves = status["state"] == "serving" and measured and not now["doing"]
        return bool(serves) and min(measured) >= since

    wait_for(is_settled, "auto settled", SETTLING_S)


def median_rates(
    users: Mapping[str, User], text: str, clients: int, rounds: int
) -> Row:
    """All clients together, the median of rounds that take so long for each."""
    asking = {name: Asking(user, text) for name, user in users.items()}
    found: dict[str, list[float]] = {name: [] for name in users}
    began = time.perf_counter()
    took_s = LEAST_S * len(users)
    while len(found["auto"]) < rounds or time.perf_counter() - began < took_s:
        for name, one in asking.items():
            found[name].append(rate(one.url, one.conversations, clients))
    return {name: median(each) for name, each in found.items()}


class Asking:
    def __init__(self, user: User, text: str) -> None:
        self.url: str = user.status()["api_url"]
        self.conversations = [[message("user", question)] for question in QUESTIONS]
        if text == "repetitive":
            self.conversations = [again(self.url, *one) for one in self.conversations]


def again(url: str, question: Message) -> list[Message]:
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
