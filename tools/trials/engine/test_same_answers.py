"""Weights that stay home change no answer: pairs with references against stock workers.

``DLLM_TEST_ANSWERS=all`` tries every case on both engines, with 256 tokens and a prompt
of 2,000; else a few are tried on one of them, with what tells a wrong weight.
"""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from backends.paths import relay_binary
from tests.kit.models import write_llama
from tests.native.pairing import paired
from tests.native.relaying import Relay
from tests.native.stock import SHORT_PROMPT, Cluster, engine, server, start_worker

pytestmark = [pytest.mark.trial, pytest.mark.engine]

EVERYTHING = os.environ.get("DLLM_TEST_ANSWERS") == "all"
WORKERS = 3
N_TOKENS = 256 if EVERYTHING else 24
LONG_PROMPT = [1, *(5 + i * 7 % 500 for i in range(2000 if EVERYTHING else 100))]
SHAPES: dict[str, dict[str, Any]] = {
    "dense": {},
    "moe": {"n_expert": 4},
    "tied": {"tied": True},
    "split": {"split": 20},
}
DRAFT = ("-devd", "none", "-ngld", "0", "--spec-type", "draft-simple")


class Case(NamedTuple):
    model: str
    workers: int = 2
    options: tuple[str, ...] = ()
    slots: int = 1
    beside: str = ""
    """The model beside the workers, where it is another file with the same tensors."""
    draft: bool = False


CASES = {
    "moe": Case("moe"),
    "split": Case("split"),
    "split at the head": Case("split", beside="dense"),
    "split at the worker": Case("dense", beside="split"),
    "slots": Case("dense", slots=4),
    "draft": Case("dense", draft=True),
    "-ot": Case("dense", options=("-ot", r"blk\.(2|4|6)\.ffn.*=CPU")),
    "-cmoe": Case("moe", options=("-cmoe",)),
    "-ngl": Case("tied", options=("-ngl", "4")),
    "tied": Case("tied", workers=1),
    "three workers": Case("tied", workers=3),
}
SELDOM = {"split", "-cmoe", "-ngl"}
EVERY = CASES | {
    f"{shape}, {workers} workers": Case(shape, workers)
    for shape in SHAPES
    for workers in range(1, WORKERS + 1)
}
SOME = [("8.0.0", name) for name in CASES if name not in SELDOM]
TRIALS = list(product(("7.0.0", "8.0.0"), EVERY)) if EVERYTHING else SOME


class Bench(NamedTuple):
    version: str
    ports: list[int]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Models by their shape; the output of each is asked for by its hash."""
    folder = tmp_path_factory.mktemp("models")
    for shape, special in SHAPES.items():
        file = folder / f"{shape}.gguf"
        write_llama(
            file,
            n_layer=8,
            n_embd=256,
            n_ff=512,
            n_vocab=24_000,
            n_ctx=4096,
            **special,
        )
    split = next(folder.glob("split-00001-of-*.gguf"))
    return {each: folder / f"{each}.gguf" for each in SHAPES} | {"split": split}


@pytest.fixture(scope="module")
def bench(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    """Named by its version."""
    folder = tmp_path_factory.mktemp("bench")
    with ExitStack() as stack:
        ports = [
            start_worker(stack, engine(request.param), folder / f"w{i}.log")
            for i in range(WORKERS)
        ]
        yield Bench(request.param, ports)


def answers(url: str, slots: int) -> list[list[int]]:
    alone = [
        Cluster(url).complete(each, N_TOKENS) for each in (SHORT_PROMPT, LONG_PROMPT)
    ]
    return alone + (together(url, slots) if slots > 1 else [])


def together(url: str, slots: int) -> list[list[int]]:
    body = {
        "prompt": [[1, *range(10 + i, 40 + i)] for i in range(slots)],
        "n_predict": N_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "return_tokens": True,
        "cache_prompt": False,
    }
    asked = urllib.request.Request(
        url + "/completion",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(asked, timeout=120) as answer:
        each = sorted(json.load(answer), key=lambda one: int(one["index"]))
    return [list(one["tokens"]) for one in each]


def options_of(case: Case, models: Mapping[str, Path]) -> list[str]:
    room = "4096" if EVERYTHING else "256"
    words = ["-c", str(int(room) * case.slots), "-np", str(case.slots), *case.options]
    return [*words, "-md", str(models["tied"]), *DRAFT] if case.draft else words


def counts(line: dict[str, Any]) -> dict[str, Any]:
    return line.get("pair") or {"weight_bytes_home": 0}


def kept_home(relay: Relay) -> None:
    """Every weight that this worker got was its own."""
    with relay.stats() as stats:
        stats.until(lambda line: counts(line)["weight_bytes_home"] > 0)
        # By the next one all of what it answered with is counted.
        pair = counts(stats.snapshot())
    assert pair["weight_bytes_sent"] == 0
    assert pair["tensors_differ"] == pair["tensors_missing"] == 0


@pytest.mark.parametrize(("bench", "name"), TRIALS, indirect=["bench"])
def test_the_same_tokens_with_weights_at_home(
    bench: Bench, models: Mapping[str, Path], tmp_path: Path, name: str
) -> None:
    case = EVERY[name]
    model, words = models[case.model], options_of(case, models)
    ports = bench.ports[: case.workers]
    with server(bench.version, model, ports, tmp_path / "direct.log", *words) as url:
        direct = answers(url, case.slots)
    beside = ("--model", str(models[case.beside or case.model]))
    with ExitStack() as stack:
        relays = [
            stack.enter_context(
                paired(
                    *(relay_binary(), port, tmp_path / f"w{i}.sock"),
                    far_options=beside,
                )
            )[0]
            for i, port in enumerate(ports)
        ]
        near = [relay.port for relay in relays]
        log = tmp_path / "paired.log"
        with server(bench.version, model, near, log, *words) as url:
            assert answers(url, case.slots) == direct
            for relay in relays:
                kept_home(relay)
    assert all(len(tokens) == N_TOKENS for tokens in direct)
