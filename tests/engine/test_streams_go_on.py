"""kill -9 in the middle of a streamed answer: it goes on, word for word."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from tests.engine.conftest import User, wait_for

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

TRIALS = int(os.environ.get("DLLM_TEST_STREAM_KILLS", "1"))
"""Of each process that can be killed, in an answer of each kind."""
TOKENS = 240
CHAT, COMPLETIONS, NATIVE = "/v1/chat/completions", "/v1/completions", "/completion"
GREEDY = {"temperature": 0, "ignore_eos": True, "cache_prompt": False, "stream": True}
PROMPTED = {"prompt": "A split is", "n_predict": TOKENS, **GREEDY}
ASKED: dict[str, dict[str, Any]] = {
    CHAT: {
        "messages": [{"role": "user", "content": "What is a split?"}],
        "max_tokens": TOKENS,
        "stream_options": {"include_usage": True},
        **GREEDY,
    },
    COMPLETIONS: PROMPTED,
    NATIVE: PROMPTED,
}


@pytest.fixture(scope="module")
def expected(launched: User) -> dict[str, Answer]:
    return {path: Answer(launched, path) for path in ASKED}


class Answer:
    """A streamed answer as a client sees it that knows nothing of gateways.

    After ``at`` events ``then`` is called, while the answer goes on. ``port`` is that
    of the API, if it cannot be asked for. ``more`` is added to the request.
    """

    def __init__(
        self,
        user: User,
        path: str,
        at: int = 0,
        then: Callable[[], None] | None = None,
        port: int | None = None,
        **more: object,
    ) -> None:
        port = port or urlsplit(user.status()["api_url"]).port or 0
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        asked = {**ASKED[path], **more}
        connection.request("POST", path, json.dumps(asked).encode())
        response = connection.getresponse()
        assert response.status == 200
        self.text = ""
        self.events: list[dict[str, Any]] = []
        self.longest_pause_s = 0.0
        self.is_done = False
        last = time.monotonic()
        for line in response:
            if line.startswith(b"data: {"):
                self._add(json.loads(line.removeprefix(b"data: ")))
                now = time.monotonic()
                last, pause_s = now, now - last
                self.longest_pause_s = max(self.longest_pause_s, pause_s)
                if then is not None and len(self.events) == at:
                    then()
            self.is_done = self.is_done or line == b"data: [DONE]\n"
        connection.close()

    def _add(self, event: dict[str, Any]) -> None:
        assert "error" not in event, event
        self.events.append(event)
        self.text += event.get("content", "")
        for choice in event.get("choices", []):
            self.text += choice.get("text", "")
            self.text += choice.get("delta", {}).get("content") or ""

    @property
    def figures(self) -> dict[str, Any]:
        last = self.events[-1]
        names = ("tokens_predicted", "tokens_evaluated", "stop_type", "prompt")
        timings = last["timings"]
        return {
            "usage": last.get("usage"),
            "done": self.is_done,
            "reason": [e["choices"] for e in self.events[-2:] if e.get("choices")],
            **{name: last.get(name) for name in names},
            "counted": (timings["predicted_n"], timings["prompt_n"]),
        }


def relaunch(user: User, model: str) -> None:
    """Begin anew: five deaths within two minutes are too many for one launch."""
    user.run("stop")
    user.up(model, "--workers", "2")


@contextmanager
def slowed(user: User) -> Iterator[None]:
    """Some 20 ms a token: the second half of an answer takes longer than a kill."""
    user.run("lab", "set", "all", "--latency", "4ms")
    try:
        yield
    finally:
        user.run("lab", "clear")


BY_DEFAULT = {"worker1": CHAT, "relay-worker1": NATIVE, "llama-server": COMPLETIONS}
EVERY = [
    pytest.param(
        *(victim, path),
        marks=() if BY_DEFAULT.get(victim) == path else pytest.mark.trial,
    )
    for victim in ("worker1", "worker2", "relay-worker1", "llama-server")
    for path in (CHAT, NATIVE, COMPLETIONS)
]


@pytest.mark.parametrize(("victim", "path"), EVERY)
def test_a_stream_outlives_whoever_is_killed(
    launched: User,
    demo_model: str,
    expected: dict[str, Answer],
    victim: str,
    path: str,
) -> None:
    pauses_s = []
    before = launched.status()["requests"]["continued"]
    for trial in range(TRIALS):
        if trial and trial % 2 == 0:
            relaunch(launched, demo_model)
            before = 0
        at = random.randrange(1, TOKENS // 2)
        pid = launched.running(victim)
        kill = partial(os.kill, pid, signal.SIGKILL)
        with slowed(launched):
            answer = Answer(launched, path, at, kill)
        whole = expected[path]
        told = f"{victim} killed after {at} events of {path}"
        assert answer.text == whole.text, told
        assert len({event.get("id") for event in answer.events}) == 1, told
        if path == NATIVE:
            assert len(answer.events) == len(whole.events)
        assert answer.figures == whole.figures, told
        pauses_s.append(answer.longest_pause_s)
        launched.wait_serving()
        assert launched.status()["requests"]["failed"] == 0
    print(f"{victim}: {TRIALS} went on, after {max(pauses_s):.1f} s at most")
    wait_for(lambda: launched.status()["requests"]["continued"] > before, "it is told")


def test_a_chat_with_stop_words_loses_no_token(launched: User, demo_model: str) -> None:
    stop = [" azz", " tzz", "ezz"]
    whole = Answer(launched, CHAT, stop=stop)
    assert len(whole.events) < TOKENS
    for trial in range(TRIALS):
        if trial and trial % 2 == 0:
            relaunch(launched, demo_model)
        at = random.randrange(1, len(whole.events))
        pid = launched.running("llama-server")
        kill = partial(os.kill, pid, signal.SIGKILL)
        answer = Answer(launched, CHAT, at, kill, stop=stop)
        assert answer.text == whole.text, f"killed after {at} events"
        assert answer.figures == whole.figures
        launched.wait_serving()


@pytest.mark.trial
def test_nine_clients_at_once_all_get_their_answers_once(
    user: User, demo_model: str, expected: dict[str, Answer]
) -> None:
    """Eight are answered or wait for a slot, and one comes while it is mended."""
    ways = ("--workers", "2", "--slots", "4", "--ctx", "4096", "--detach")
    user.run("up", "--model", demo_model, *ways)
    port, pid = urlsplit(user.status()["api_url"]).port, user.running("worker1")
    late: list[Future[Answer]] = []
    with ThreadPoolExecutor(9) as clients:

        def disturb() -> None:
            os.kill(pid, signal.SIGKILL)
            late.append(clients.submit(Answer, user, CHAT, port=port))

        asked = [clients.submit(Answer, user, CHAT, port=port) for _ in range(7)]
        then = (TOKENS // 4, disturb, port)
        asked.append(clients.submit(Answer, user, CHAT, *then))
        answers = [one.result() for one in asked]
        answers += [one.result() for one in late]
    for answer in answers:
        assert answer.figures == expected[CHAT].figures
        assert len({event["id"] for event in answer.events}) == 1
    same = sum(answer.text == expected[CHAT].text for answer in answers)
    print(f"{same} of {len(answers)} word for word as alone and undisturbed")
    assert len(answers) == 9
    wait_for(lambda: user.status()["requests"]["passed"] == 9, "all are told")
    counts = user.status()["requests"]
    assert counts["failed"] == counts["left"] == counts["in_flight"] == 0
    assert counts["continued"] >= 1
    user.stop()


def test_openai_python_notices_nothing(
    launched: User, demo_model: str, expected: dict[str, Answer]
) -> None:
    """Its own client, unmodified, and without another try of its own."""
    # One after the other: two at once would round otherwise.
    launched.up(demo_model, "--workers", "2", "--slots", "1", "--replace")
    status, pid = launched.status(), launched.running("worker1")
    client = openai.OpenAI(base_url=status["api_url"], api_key="none", max_retries=0)
    create = client.chat.completions.create
    asked: dict[str, Any] = {
        "model": "any",
        "messages": ASKED[CHAT]["messages"],
        "max_tokens": TOKENS,
        "temperature": 0,
        "extra_body": {"ignore_eos": True, "cache_prompt": False},
    }
    text = ""
    with ThreadPoolExecutor(1) as clients, client, slowed(launched):
        for count, chunk in enumerate(create(**asked, stream=True)):
            text += chunk.choices[0].delta.content or ""
            if count == TOKENS // 4:
                os.kill(pid, signal.SIGKILL)
                asked_meanwhile = clients.submit(lambda: create(**asked))
        answer = asked_meanwhile.result()
    whole = expected[CHAT].text
    assert (text, answer.choices[0].message.content) == (whole, whole)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == TOKENS
    before = status["requests"]["continued"]
    assert launched.status()["requests"]["continued"] == before + 1
