"""kill -9 in the middle of answers without ids: told once more, and the seam unseen."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from backends.gateway.resumable_stream import Replay
from tests.engine.conftest import User, wait_for
from tests.kit.processes import with_word

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
KILLED_AFTER = 10
"""Events, of more than twenty."""
TEXT = {"type": "string", "minLength": 100, "maxLength": 140}
SCHEMA = {"type": "object", "properties": {"id": TEXT}, "required": ["id"]}
TURNS = {"messages": [{"role": "user", "content": "What is a split?"}]}
LONG = {"max_tokens": 150, "stream": True}
JSON = {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}
TOOL = {"name": "add", "input_schema": SCHEMA}
TEMPLATE = """\
{% if tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>
{% endif %}\
{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or "" }}\
{% for call in message.tool_calls or [] %}\
<tool_call>{"name": "{{ call.function.name }}", \
"arguments": {{ call.function.arguments | tojson }}}</tool_call>\
{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""The bundled model's own, and words for a call: of tools it knows nothing."""
CALLED: dict[str, Any] = {
    "messages": [*TURNS["messages"], {"role": "assistant", "content": "<tool_call>"}],
    "tools": [{"type": "function", "function": {"name": "add", "parameters": SCHEMA}}],
    "tool_choice": "required",
    "cache_prompt": False,
}
"""Made to begin with a call it can say nothing but one. It is not read again ahead."""
GREEDY = {"temperature": 0}
ASKED: list[tuple[str, dict[str, Any], bytes]] = [
    (MESSAGES, {**TURNS, **LONG, **GREEDY, "tools": [TOOL]}, b"text_delta"),
    (RESPONSES, {"input": "What is a split?", **LONG, **GREEDY}, b"output_text.delta"),
    (CHAT, {**CALLED, **LONG, **GREEDY}, b'"tool_calls":[{"index":0,"function":{"arg'),
]
"""Path, body, and a part of the middle of the answer."""
DRAWN: dict[str, Any] = {**TURNS, **LONG, **JSON, "temperature": 1.5}
"""The client chose no seed."""


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
    telling = Replay()
    return [telling.sum_of(event) for event in events]


def next_worker(user: User) -> psutil.Process:
    workers = with_word(user.processes(), "-p", "ggml-rpc-server")
    return min(workers, key=psutil.Process.create_time)


def answer_killed(
    user: User, port: int, path: str, body: dict[str, Any]
) -> list[bytes]:
    """The events of an answer in which a worker is killed.

    It is found before: to look for it takes as long as what is left of an answer.
    """
    return answer(port, path, body, next_worker(user).kill)


def text_of(events: list[bytes]) -> str:
    said = [json.loads(event[6:]) for event in events if event != b"data: [DONE]\n"]
    choices = [choice for event in said for choice in event["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def arguments_of(events: list[bytes]) -> str:
    said = [json.loads(event[6:]) for event in events if event != b"data: [DONE]\n"]
    choices = [choice for event in said for choice in event["choices"]]
    calls = [
        call for choice in choices for call in choice["delta"].get("tool_calls", ())
    ]
    return "".join(c["function"]["arguments"] for c in calls if c["index"] == 0)


@pytest.mark.trial
def test_what_has_no_ids_outlives_a_worker(
    user: User, demo_model: str, tmp_path: Path
) -> None:
    template = tmp_path / "with-tools.jinja"
    template.write_text(TEMPLATE)
    launch = ("up", "--model", demo_model, "--workers", "2", "--detach")
    user.run(*launch, "--", "--chat-template-file", str(template))
    user.run("lab", "set", "all", "--latency", "2ms")
    port = urlsplit(user.status()["api_url"]).port or 0
    for path, body, middle in ASKED:
        whole = told(answer(port, path, body))
        events = answer_killed(user, port, path, body)
        assert told(events) == whole, path
        assert len(whole) > KILLED_AFTER
        assert middle in events[KILLED_AFTER - 1], events[KILLED_AFTER - 1]
    assert len(json.loads(arguments_of(events))["id"]) >= 100
    drawn = text_of(answer_killed(user, port, CHAT, DRAWN))
    assert len(json.loads(drawn)["id"]) >= 100
    wait_for(lambda: user.status()["requests"]["continued"] == 4, "all are told")
    assert user.status()["requests"]["failed"] == 0
    user.stop()
