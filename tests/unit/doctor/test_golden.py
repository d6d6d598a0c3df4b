"""The known answer, and how answers are judged."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from backends.demo import MODEL_PATH
from backends.doctor import golden
from backends.doctor.check import Verdict
from backends.doctor.examine import golden_check, operator_check
from backends.doctor.golden import BUNDLED, SMOLLM2, GoldenRun, KnownAnswer, known_model
from backends.engine.llama_client import GreedyToken, parse_greedy
from backends.models.download import DEMO_PACKAGE, PACKAGES
from backends.paths import user_paths
from backends.state import Device, Peer

RIGHT = tuple(
    GreedyToken(id=token, logprob=first, second_logprob=second)
    for token, first, second in zip(
        BUNDLED.tokens, BUNDLED.logprobs, BUNDLED.second_logprobs, strict=True
    )
)


def changed(at: int, **values: float) -> tuple[GreedyToken, ...]:
    return (*RIGHT[:at], replace(RIGHT[at], **values), *RIGHT[at + 1 :])


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (RIGHT, ""),
        (changed(3, logprob=-0.02, second_logprob=-12.0), ""),
        (changed(6, id=0), "another from token 7 of 24 on"),
        (RIGHT[:-1], "has 23 tokens instead of 24"),
        (changed(6, id=0)[:-1], "another from token 7 of 24 on"),
        (changed(0, logprob=-0.4), "off by up to 0.38"),
        (changed(9, second_logprob=-9.0), "off by up to 3.18"),
        (changed(9, second_logprob=math.nan), "probabilities are off"),
        (changed(0, logprob=-math.inf), "probabilities are off"),
    ],
)
def test_the_answer_is_compared(answer: tuple[GreedyToken, ...], says: str) -> None:
    found = BUNDLED.difference(answer)
    assert says in found
    assert bool(says) is bool(found)


@pytest.mark.parametrize("known", [BUNDLED, SMOLLM2])
def test_no_rounding_changes_a_token(known: KnownAnswer) -> None:
    pairs = zip(known.logprobs, known.second_logprobs, strict=True)
    assert min(first - second for first, second in pairs) > 2.0
    assert len(known.tokens) == len(known.logprobs)


def test_without_a_checkout_the_models_that_were_got_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert known_model([str(tmp_path)]) == (MODEL_PATH, BUNDLED)
    monkeypatch.setattr(golden, "is_bundled", lambda: False)
    assert known_model([str(tmp_path)]) is None
    package = PACKAGES[DEMO_PACKAGE]
    file = tmp_path / package.file
    file.touch()
    assert known_model([str(tmp_path)]) is None
    os.truncate(file, package.size_bytes)
    assert known_model([str(tmp_path)]) == (file, SMOLLM2)


@pytest.mark.parametrize(("peers", "at_once"), [(0, 1), (1, 2), (9, 3)])
async def test_runs_at_once_have_as_many_times_as_long(
    monkeypatch: pytest.MonkeyPatch, peers: int, at_once: int
) -> None:
    @contextlib.asynccontextmanager
    async def never(*args: Any) -> AsyncIterator[None]:
        launch_s = args[-1]
        assert launch_s == at_once * golden.LAUNCH_S
        raise TimeoutError
        yield

    async def plan(*_: object, **__: object) -> None:
        pass

    monkeypatch.setattr(golden, "_launched", never)
    monkeypatch.setattr(golden, "_plan", plan)
    device = Device(id="CPU", name="CPU")
    machines = [Peer(name=f"n{n}", devices=(device,)) for n in range(peers)]
    runs = await golden.operator_runs(user_paths(), machines, "truncated.gguf")
    assert len(runs) == 1 + peers
    assert {run.wrong for run in runs} == {f"it did not serve within {60 * at_once} s"}


def test_an_answer_that_is_none() -> None:
    step = {"id": 7, "top_logprobs": [{"logprob": -0.5}, {"logprob": -1}]}
    assert parse_greedy([step])[0].second_logprob == -1.0
    (odd,) = parse_greedy([{"id": 7, "top_logprobs": [{"logprob": None}] * 2}])
    assert math.isnan(odd.logprob)
    bodies: tuple[object, ...] = (
        None,
        {},
        [1],
        [{"id": 7}],
        [{**step, "top_logprobs": [{}]}],
    )
    for body in bodies:
        assert parse_greedy(body) == ()


def test_who_is_blamed() -> None:
    runs = (
        GoldenRun(machines=("local",)),
        GoldenRun(machines=("ada",), wrong="its answer is another"),
        GoldenRun(machines=("bob",), skipped="it is offline"),
        GoldenRun(machines=("cy",), wrong="it ended", operator="ROPE", culprit="cy"),
        GoldenRun(machines=("dora", "eve"), wrong="its answer is another"),
    )
    check = golden_check(runs, beside=())
    assert check.verdict is Verdict.FAIL
    assert check.machines == ("ada", "cy", "dora", "eve")
    assert "dora + eve: only together: its answer is another" in check.detail
    assert "bob is not known: it is offline" in check.detail
    assert "operator" in check.fix
    unknown = golden_check(runs[2:3], beside=())
    assert (unknown.verdict, unknown.machines) == (Verdict.WARN, ())
    fine = golden_check(runs[:1], beside=("ada",))
    assert fine.detail.endswith("local, on workers of its own beside what serves")


def test_what_was_not_tried_is_not_called_right() -> None:
    away = GoldenRun(machines=("bob",), skipped="it is offline")
    check = operator_check([away], "m.gguf")
    assert (check.verdict, check.detail) == (
        Verdict.WARN,
        "bob is not known: it is offline",
    )
