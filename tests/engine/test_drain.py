"""A person drains the API, or applies another split: no client is cut off."""

from __future__ import annotations

import json
import threading
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from tests.engine.conftest import User, wait_for

pytestmark = pytest.mark.engine

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
TOKENS = 200
ASKED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "What is a split?"}],
    "max_tokens": TOKENS,
    "model": "m",
    "temperature": 0,
    "ignore_eos": True,
    "stream": True,
}
SLOWLY = ("lab", "set", "all", "--latency", "50ms")
"""A hundred tokens take 20 s then: none ends before it is held."""
QUICKLY = ("lab", "clear")


class Stream:
    """An answer that is read as it comes, by a client that knows of no drains."""

    def __init__(self, port: int, path: str, **body: object) -> None:
        self.lines: list[bytes] = []
        self._asked = port, path, json.dumps({**ASKED, **body})
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        port, path, body = self._asked
        connection = HTTPConnection("127.0.0.1", port, timeout=120)
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        for line in connection.getresponse():
            self.lines.append(line)
        connection.close()

    def flows(self, events: int) -> bool:
        return self._thread.is_alive() and len(self.lines) > 3 * events

    def whole(self) -> bytes:
        self._thread.join(120)
        return b"".join(self.lines)


def told(user: User) -> str:
    return " ".join(user.run("events").stdout.split())


def test_another_split_or_a_drain_cuts_nobody_off(user: User, demo_model: str) -> None:
    up = ("up", "--model", demo_model, "--workers", "2", "--slots", "2", "--detach")
    user.run(*up, "--split", "6,7")
    port = urlsplit(user.status()["api_url"]).port or 0
    expected = Stream(port, CHAT).whole()
    user.run(*SLOWLY)
    # One that nothing could go on with, and one that goes on where it was.
    worker = psutil.Process(user.pid("worker1"))
    fragile, other = Stream(port, MESSAGES, max_tokens=100), Stream(port, CHAT)
    wait_for(lambda: fragile.flows(2) and other.flows(2), "both under way")
    worker.suspend()
    wait_for(lambda: user.status()["requests"]["fragile"] == 1, "one is fragile")
    user.run(*QUICKLY)
    replacing = user.start(*up, "--replace", "--split", "9,4")
    wait_for(lambda: user.status()["requests"]["drains"], "it is waited for")
    worker.resume()
    _, err = replacing.communicate(timeout=180)
    assert replacing.returncode == 0, err
    assert b"message_stop" in fragile.whole()
    assert text_of(other.whole()) == text_of(expected)
    assert "1 answer that another split would break ended first" in told(user)
    # Then by hand: what runs ends, what comes waits.
    user.run(*SLOWLY)
    worker = psutil.Process(user.pid("worker1"))
    running = Stream(port, CHAT)
    wait_for(lambda: running.flows(2), "under way")
    worker.suspend()
    wait_for(lambda: user.status()["requests"]["in_flight"] == 1, "it is told")
    shown = json.loads(user.run("drain", "--limit", "0s", "--json", code=1).stdout)
    assert shown["requests"]["in_flight"] == 1
    held = Stream(port, CHAT, stream=False, max_tokens=4)
    wait_for(lambda: user.status()["requests"]["waiting"] == 1, "one waits")
    user.run(*QUICKLY)
    worker.resume()
    user.run("drain")
    assert b"[DONE]" in running.whole()
    assert "requests wait (dllm-tui resume)" in user.run("status").stdout
    assert not held.lines
    user.run("resume")
    assert b'"content"' in held.whole()
    wait_for(lambda: user.status()["requests"]["passed"] == 5, "all are told")
    counts = user.status()["requests"]
    assert counts["failed"] == counts["left"] == counts["waiting"] == 0
    assert "drained the API" in told(user)
    user.stop()


def text_of(stream: bytes) -> str:
    events = [x[6:] for x in stream.splitlines() if x.startswith(b"data: {")]
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)
