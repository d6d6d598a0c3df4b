"""Passes, trips and tokens, against llama-server's own timings.

By default the smallest set that catches each defect; with ``DLLM_FIGURES=all`` every
case on every engine, with every figure printed.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shlex
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from backends.demo import MODEL_PATH
from tests.engine.conftest import User, wait_for
from tests.native.stock import engine, start_worker

pytestmark = [pytest.mark.trial, pytest.mark.engine]

EVERYTHING = os.environ.get("DLLM_FIGURES") == "all"
TOLERANCE = 0.02
SPLIT = "7,6"
DRAFT = ("-md", str(MODEL_PATH), "-devd", "none", "-ngld", "0")
SPECULATION = (*DRAFT, "--spec-type", "draft-simple")
DETOURS = ("-ot", r"blk\.(2|4|6)\.ffn.*=CPU")
OUTPUT_AT_HEAD = ("-ot", "^output=CPU")
"""No logits cross a wire; which rows are wanted does, to the last layer."""
SPARE = ("--cache-ram", "0")
"""Conversations that are put aside are fetched from the workers: trips of no pass."""
PROMPT_TOKENS = 520
"""A batch of 512, and a remainder of 8."""
QUESTIONS = ("GET_TENSOR", "GET_ALLOC_SIZE", "COPY_TENSOR")
"""Commands of a pass that are waited for."""


HELD = 2
"""Layers of that device: the last one, and the output."""


@contextmanager
def engine_with_device(version: str, split: str, folder: Path) -> Iterator[Path]:
    """The directory of a stock engine whose llama-server has one more device, the last.

    It takes what it holds from the last worker of a ``split`` over two workers.
    """
    stock = engine(version)
    first, last = map(int, split.split(","))
    folder.mkdir()
    for each in stock.iterdir():
        (folder / each.name).symlink_to(each)
    with ExitStack() as stack:
        port = start_worker(stack, stock, folder / "device.log")
        more = f"--rpc 127.0.0.1:{port} --device RPC0,RPC1,RPC2"
        more += f" -ts {first},{last - HELD},{HELD}"
        server = folder / "llama-server"
        server.unlink()
        server.write_text(
            "#!/bin/sh\n"
            f'case "$*" in *"--device RPC0,RPC1"*) set -- "$@" {more} ;; esac\n'
            f'exec {shlex.quote(str(stock / "llama-server"))} "$@"\n'
        )
        server.chmod(0o755)
        yield folder


class Work(NamedTuple):
    slots: int = 1
    answers: int = 1
    tokens: int = 600
    prompt_tokens: int = 12
    cancel_at: int = 0
    """The client leaves after so many tokens; 0: it stays."""


class Case(NamedTuple):
    """A launch and the work it gets."""

    work: Work
    extra: tuple[str, ...] = ()
    source: str = "wire"
    trips: tuple[int, int] = (1, 1)
    """Per pass, at either worker."""
    head_last: bool = False
    """A device that no relay sees has the last layer."""


CANCELLED = Work(answers=3, cancel_at=400, tokens=900)
CASES = {
    "one slot": Case(Work()),
    "four slots": Case(Work(slots=4, answers=4)),
    "sixteen slots": Case(Work(slots=16, answers=16, tokens=300)),
    "draft": Case(Work(), SPECULATION, "server"),
    "draft, four slots": Case(Work(slots=4, answers=4), SPECULATION, "server"),
    "detours": Case(Work(tokens=300), DETOURS, trips=(4, 1)),
    "together": Case(
        Work(slots=4, answers=5, tokens=300, prompt_tokens=PROMPT_TOKENS), DETOURS
    ),
    "prompt": Case(Work(prompt_tokens=PROMPT_TOKENS, answers=3, tokens=300)),
    "output on the head": Case(Work(tokens=300), OUTPUT_AT_HEAD),
    "head last": Case(Work(answers=2), source="server", head_last=True),
    "head last, four slots": Case(
        Work(slots=4, answers=4), source="server", head_last=True
    ),
    "head last, prompt": Case(
        Work(prompt_tokens=PROMPT_TOKENS, answers=3, tokens=300),
        source="server",
        head_last=True,
    ),
    "cancelled": Case(CANCELLED),
    "cancelled draft": Case(CANCELLED, SPECULATION, "server"),
}
SMALL = (("7.0.0", "together"), ("8.0.0", "cancelled draft"))
ALL = [(version, name) for version in ("7.0.0", "8.0.0") for name in CASES]


class Server:
    """llama-server's own API."""

    def __init__(self, url: str) -> None:
        self.host = url.split("/")[2]

    def complete(self, work: Work, index: int) -> int:
        """Tokens of one answer, as its timings have them."""
        rest = work.prompt_tokens - 1
        body = {
            "prompt": [1, *(5 + (7 * index + i) % 200 for i in range(rest))],
            "n_predict": work.tokens,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
            "stream": True,
            "timings_per_token": True,
        }
        connection = http.client.HTTPConnection(self.host, timeout=120)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/completion", json.dumps(body), headers)
        with connection.getresponse() as answer:
            predicted = 0
            for line in answer:
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    predicted = event.get("timings", {}).get("predicted_n", predicted)
                if work.cancel_at and predicted >= work.cancel_at:
                    break
        connection.close()
        return int(predicted)

    def count(self, name: str) -> int:
        with urllib.request.urlopen(f"http://{self.host}/metrics") as answer:
            text = answer.read().decode()
        found = re.search(rf"^llamacpp:{name} (\d+)$", text, re.M)
        assert found, text
        return int(found[1])

    def tokens(self) -> int:
        return self.count("tokens_predicted_total")


def waited_for(link: Any) -> int:
    commands = link["commands"]
    found = (commands.get(name, {}) for name in QUESTIONS)
    return sum(each.get("count", 0) - each.get("answered", 0) for each in found)


def quiet(user: User, tokens: int) -> Any:
    """The status once nothing moves any more and all the tokens are counted."""

    def settled() -> Any:
        status = user.status()
        speed, links = status["speed"], status["links"]
        done = not speed["requests_active"] and speed["tokens"] >= tokens
        still = not any(link["bytes_per_s_up"] for link in links)
        return done and still and status

    return wait_for(settled, f"{tokens} tokens counted")


def near(found: float, wanted: float) -> bool:
    return abs(found - wanted) <= TOLERANCE * wanted


class Outcome(NamedTuple):
    said: int
    """Tokens, by the timings of the answers."""
    counted: int
    """Tokens, by the server."""
    decodes: int
    """Batches it computed, prompts' too; one may take several passes."""
    before: Any
    after: Any
    """The links."""
    prompts: tuple[list[Any], ...]
    """Per worker, the passes that were taken for prompts."""

    def trips(self, worker: int) -> int:
        all_trips = waited_for(self.after[worker]) - waited_for(self.before[worker])
        of_prompts = sum(int(each["round_trips"]) for each in self.prompts[worker])
        return all_trips - of_prompts


def run(user: User, work: Work) -> Outcome:
    server = Server(user.status()["api_url"])
    before, decodes = quiet(user, 0)["links"], server.count("n_decode_total")
    warmed_up = [
        sum(not each["generated"] for each in link["passes"]) for link in before
    ]
    with ThreadPoolExecutor(work.slots) as pool:
        said = list(pool.map(lambda i: server.complete(work, i), range(work.answers)))
    wait_for(lambda: server.tokens() >= sum(said), "the server counted")
    counted = server.tokens()
    after = quiet(user, counted)["links"]
    decodes = server.count("n_decode_total") - decodes
    all_prompts = prompts_of(user, len(after))
    prompts = tuple(found[n:] for found, n in zip(all_prompts, warmed_up, strict=True))
    return Outcome(sum(said), counted, decodes, before, after, prompts)


def prompts_of(user: User, workers: int) -> tuple[list[Any], ...]:
    events = user.json("trace")["traceEvents"]
    prompts = [
        event
        for event in events
        if event["name"] == "compute" and not event["args"]["generated"]
    ]
    return tuple(
        [event["args"] for event in prompts if event["tid"] == row]
        for row in range(1, workers + 1)
    )


def describe(title: str, found: Outcome) -> None:
    print(f"\n{title}: answers said {found.said}, server counted {found.counted}")
    for index, link in enumerate(found.after):
        figures = {**link["generation"], "waited_for": found.trips(index)}
        figures["trips_per_token"] = link["round_trips_per_token"]
        print(" ", link["worker"], json.dumps(figures))


@pytest.mark.parametrize(("version", "name"), ALL if EVERYTHING else SMALL)
def test_figures_agree_with_the_server_s_own(
    user: User, demo_model: str, tmp_path: Path, version: str, name: str
) -> None:
    case = CASES[name]
    with ExitStack() as stack:
        directory = engine(version)
        if case.head_last:
            folder = engine_with_device(version, SPLIT, tmp_path / "engine")
            directory = stack.enter_context(folder)
        user.env["DLLM_ENGINE_DIR"] = str(directory)
        found = launch_and_run(user, demo_model, case)
        user.run("stop")
    describe(f"{version} {name}", found)
    compare(found, case)


def launch_and_run(user: User, model: str, case: Case) -> Outcome:
    work = case.work
    launch = ("up", "--model", model, "--split", SPLIT, "--detach")
    context = ("--ctx", str(min(1024 * work.slots, 8192)))
    user.run(*launch, *context, "--", "-np", str(work.slots), *SPARE, *case.extra)
    return run(user, work)


def compare(found: Outcome, case: Case) -> None:
    work = case.work
    # An answer's first token comes out of its prompt's pass.
    decoded = found.counted - work.answers
    assert found.counted >= found.said
    assert work.cancel_at or found.counted == found.said
    for index, link in enumerate(found.after):
        made = link["generation"]
        assert made["tokens_from"] == case.source
        assert near(made["tokens"], found.counted)
        assert near(made["trips"], found.trips(index))
        # Which slots share a pass is chance, and the last answers are alone.
        if work.slots == 1:
            assert len(found.prompts[index]) == prompt_passes(work)
            assert made["passes"] == found.decodes - work.answers
            assert near(made["trips_per_pass"], case.trips[index])
            trips = case.trips[index] * made["passes"]
            assert near(link["round_trips_per_token"] * decoded, trips)


def prompt_passes(work: Work) -> int:
    return work.answers * -(-work.prompt_tokens // 512)
