"""kill -9 in the middle of answers without ids: told once more, and the seam unseen."""

from __future__ import annotations

import http.client
import json
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from backends.gateway.telling import Telling

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engine.conftest import User

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
KILLED_AFTER = 15
"""Events, of more than twenty."""
TEXT = {"type": "string", "minLength": 150, "maxLength": 200}
SCHEMA = {"type": "object", "properties": {"id": TEXT}, "required": ["id"]}
TURNS = {"messages": [{"role": "user", "content": "What is a split?"}]}
LONG = {"max_tokens": 80, "stream": True}
JSON = {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}
TOOL = {"name": "add", "input_schema": SCHEMA}
GREEDY = {"temperature": 0}
ASKED: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {**TURNS, **LONG, **JSON, **GREEDY}),
    (MESSAGES, {**TURNS, **LONG, **GREEDY, "tools": [TOOL]}),
    (RESPONSES, {"input": "What is a split?", **LONG, **GREEDY}),
    # Drawn: the client chose no seed.
    (CHAT, {**TURNS, **LONG, **JSON, "temperature": 1.5}),
]


def answer(
    port: int,
    path: str,
    body: dict[str, Any],
    then: Callable[[], None] = lambda: None,
) -> list[bytes]:
    """The events of an answer; after some of them ``then`` is done."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", path, json.dumps(body).encode())
    response = connection.getresponse()
    assert response.status == 200, response.read()
    events = []
    for line in response:
        if line.startswith(b"data: "):
            events.append(line)
            assert b'"error"' not in line, line
            if len(events) == KILLED_AFTER:
                then()
    connection.close()
    return events


def told(events: list[bytes]) -> list[int]:
    """Events without their names and times; a name that changes shows."""
    telling = Telling()
    return [telling.sum_of(event) for event in events]


def kill_a_worker(user: User) -> None:
    """Whichever."""
    workers = (p for p in user.processes() if p.name() == "ggml-rpc-server")
    next(workers).kill()


def test_what_has_no_ids_outlives_a_worker(user: User, demo_model: str) -> None:
    user.run("up", "--model", demo_model, "--workers", "2", "--detach")
    user.run("lab", "set", "all", "--latency", "2ms")
    port = urlsplit(user.status()["api_url"]).port or 0
    for path, body in ASKED:
        whole = told(answer(port, path, body)) if body["temperature"] == 0 else []
        events = answer(port, path, body, partial(kill_a_worker, user))
        assert told(events) == whole or not whole, (path, events)
        assert len(events) > KILLED_AFTER
    counts = user.status()["requests"]
    assert (counts["failed"], counts["continued"]) == (0, len(ASKED))
    user.run("stop")
    user.assert_nothing_left()
