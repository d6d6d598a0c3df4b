"""A real cluster behind its gateway: everything passes, and nobody is cut off."""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
import time
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from tests.engine.conftest import User, running_pid, wait_for
from tests.kit.processes import with_word

pytestmark = pytest.mark.engine

CHAT, COMPLETION = "/v1/chat/completions", "/completion"
QUESTION = {"messages": [{"role": "user", "content": "What is a split?"}]}
GREEDY = {"temperature": 0, "seed": 1, "cache_prompt": False}
STREAM = {"n_predict": 8, "stream": True}
VARY = (
    "id",
    "created",
    "created_at",
    "timings",
    "id_slot",
    "completed_at",
    "usage",
    "time_ms",
)


def ports(user: User) -> tuple[int, int]:
    status = user.status()
    (server,) = [p for p in status["processes"] if p["name"] == "llama-server"]
    return urlsplit(status["api_url"]).port or 0, server["port"]


def ask(
    port: int, path: str, body: object = None, method: str = ""
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    raw = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "Origin": "http://a.localhost"}
    connection.request(method or ("GET" if raw is None else "POST"), path, raw, headers)
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read()
    connection.close()
    return found


def steady(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: "…" if k in VARY else steady(v) for k, v in value.items()}
    return [steady(item) for item in value] if isinstance(value, list) else value


def read(raw: bytes) -> list[Any]:
    lines = [line.partition(b": ")[2] for line in raw.splitlines() if b": {" in line]
    return [steady(json.loads(line)) for line in lines or [raw]]


MESSAGES = {**QUESTION, "max_tokens": 8, "model": "m", **GREEDY}
ASKED = [
    (CHAT, {**MESSAGES}),
    (CHAT, {**MESSAGES, "stream": True}),
    (CHAT, {**MESSAGES, "stream": True, "logprobs": True}),
    (CHAT, {**MESSAGES, "stream": True, "stop": "says"}),
    (CHAT, {**MESSAGES, "stream": True, "return_progress": True}),
    (CHAT, {**MESSAGES, "stream": True, "timings_per_token": True}),
    (CHAT, {**MESSAGES, "stream": True, "stream_options": {"include_usage": True}}),
    ("/v1/completions", {"prompt": "A split", **GREEDY, **STREAM}),
    (COMPLETION, {"prompt": "A", "response_fields": ["content"], **GREEDY, **STREAM}),
    (COMPLETION, {"prompt": "A split", "n_predict": 8, "stream": True, **GREEDY}),
    ("/v1/completions", {"prompt": "A split", "max_tokens": 8, **GREEDY}),
    ("/v1/messages", {**MESSAGES}),
    ("/v1/messages", {**MESSAGES, "stream": True}),
    ("/tokenize", {"content": "one two"}),
    ("/apply-template", QUESTION),
    ("/v1/embeddings", {"input": "x"}),
    (CHAT, {"messages": "none"}),
    ("/nowhere", {}),
    ("/props", None),
    ("/slots", None),
    ("/health", None),
    ("/", None),
]


@pytest.mark.parametrize(("path", "body"), ASKED)
def test_answers_are_llama_servers_own(launched: User, path: str, body: object) -> None:
    through, direct = (ask(port, path, body) for port in ports(launched))
    assert through[0] == direct[0]
    own = ("Date", "Keep-Alive", "Connection", "Content-Length")
    fields = [
        {k: v for k, v in a[1].items() if k not in own} for a in (through, direct)
    ]
    assert fields[0] == fields[1]
    if through[2].startswith((b"{", b"[", b"data", b"event")):
        expected = read(direct[2])
        if isinstance(body, dict) and "stop" in body:
            # Nobody asked for those of the text before a stop word.
            del expected[-2]["timings"]
        assert read(through[2]) == expected
    else:
        assert through[2] == direct[2]


def test_the_model_has_a_name_and_no_path(launched: User) -> None:
    for port in ports(launched):
        (model,) = json.loads(ask(port, "/v1/models")[2])["data"]
        assert model["id"] == "dllm-demo"
    answer = json.loads(ask(ports(launched)[0], CHAT, MESSAGES)[2])
    assert answer["model"] == "dllm-demo"


def test_live_speed_is_shown_to_everybody(launched: User) -> None:
    """A client of the API that we know nothing of moves the live figures."""
    body = {"prompt": "a", "n_predict": 3000, "ignore_eos": True, "stream": True}
    # Or its context may be full before anybody looks.
    launched.run("links", "slow", "all", "--latency", "10ms")
    connection = http.client.HTTPConnection("127.0.0.1", ports(launched)[0], timeout=60)
    connection.request("POST", COMPLETION, json.dumps(body).encode())
    with connection.getresponse():
        speed = wait_for(
            lambda: (s := launched.status()["speed"])["tok_per_s"] and s, "a live speed"
        )
    connection.close()
    assert speed["requests_active"] == 1
    wait_for(lambda: not launched.status()["speed"]["requests_active"], "idle again")
    launched.run("links", "reset")


def test_the_port_of_a_gateway_that_is_killed_stays_open(launched: User) -> None:
    """The controller has it meanwhile; who connects waits for the next gateway."""
    before, server = ports(launched)[0], launched.pid("llama-server")
    killed = launched.kill("api-gateway")
    waits_s = []
    wait_for(lambda: not psutil.pid_exists(killed) or is_gone(killed), "it is gone")
    for _ in range(20):
        begun = time.monotonic()
        assert ask(before, "/health")[0] == 200
        waits_s.append(time.monotonic() - begun)
    print(f"a request waited {max(waits_s):.2f} s at most")
    assert launched.pid("llama-server") == server
    assert launched.pid("api-gateway") not in (None, killed)
    assert launched.status()["state"] == "serving"
    wait_for(lambda: "api-gateway was started again" in told(launched), "it is told")


def told(user: User) -> str:
    return " ".join(user.run("events").stdout.split())


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class Held:
    def __init__(self, port: int, **body: object) -> None:
        self.answer: tuple[int, dict[str, str], bytes] | None = None
        self._asked = port, CHAT, {**MESSAGES, **body}
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        self.answer = ask(*self._asked)

    def result(self) -> tuple[int, dict[str, str], bytes]:
        self._thread.join(60)
        assert self.answer, "no answer"
        return self.answer


def stopped(user: User, name: str) -> psutil.Process:
    process = psutil.Process(running_pid(user.status(), name))
    process.suspend()
    return process


def test_requests_wait_while_the_cluster_is_mended(launched: User) -> None:
    port = ports(launched)[0]
    expected = read(ask(port, CHAT, MESSAGES)[2])
    # Asked of a llama-server that is about to die with its relay, plainly and streamed.
    relay = stopped(launched, "relay-worker1")
    held = [Held(port), Held(port, stream=True)]
    wait_for(lambda: launched.status()["requests"]["in_flight"] == 2, "both in flight")
    relay.kill()
    status, _, body = held[0].result()
    assert (status, read(body)) == (200, expected)
    status, _, body = held[1].result()
    assert status == 200
    assert body.endswith(b"data: [DONE]\n\n")
    launched.wait_serving()

    def settled() -> Any:
        counts = launched.status()["requests"]
        return not counts["waiting"] and not counts["in_flight"] and counts

    counts = wait_for(settled, "both are told")
    assert counts["failed"] == 0
    # The second waits for the slot; a server that is dying may still accept it then.
    assert counts["held"] == 2
    assert counts["replayed"] in (1, 2)
    waited = "2 requests to the API waited up to"
    wait_for(lambda: waited in told(launched), "it is told")


def test_a_stream_goes_on_without_its_controller(launched: User) -> None:
    body = {"prompt": "A", "n_predict": 200, "ignore_eos": True, "stream": True}
    port = ports(launched)[0]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", COMPLETION, json.dumps({**body, **GREEDY}).encode())
    answer = connection.getresponse()
    begun = answer.readline()
    controller = psutil.Process(launched.status()["controller_pid"])
    controller.kill()
    whole = begun + answer.read()
    connection.close()
    assert len(read(whole)) == 201
    assert b'"stop":true' in whole
    assert ask(port, CHAT, MESSAGES)[0] == 200
    assert launched.status()["controller_pid"] != controller.pid
    wait_for(lambda: launched.status()["requests"], "counts told to the next one")
    assert ports(launched)[0] == port


def test_who_waits_has_a_controller_started(launched: User) -> None:
    """The controller died with llama-server, and nobody gives a command."""
    port, server = ports(launched)[0], launched.running("llama-server")
    (controller,) = with_word(launched.processes(), "backends.controller")
    for pid in (controller.pid, server):
        os.kill(pid, signal.SIGKILL)
    assert ask(port, CHAT, MESSAGES)[0] == 200
    assert launched.look()["state"] == "serving"
    # What a gateway has started does not end with it.
    launched.kill("api-gateway")
    wait_for(lambda: launched.pid("api-gateway"), "the gateway is back")
    assert ask(port, "/health")[0] == 200
    assert launched.look()["state"] == "serving"


def test_those_who_wait_are_told_of_the_end(user: User, demo_model: str) -> None:
    user.run("up", "--model", demo_model, "--workers", "1", "--detach")
    port = ports(user)[0]
    worker = stopped(user, "worker1")
    held = Held(port)
    wait_for(lambda: user.status()["requests"]["in_flight"] == 1, "in flight")
    user.run("stop")
    status, headers, body = held.result()
    error = json.loads(body)["error"]
    assert status == error["code"] == 503
    assert "Retry-After" in headers
    assert "the cluster was stopped" in error["message"]
    assert not worker.is_running()
    user.assert_nothing_left()
