"""A real cluster whose API other machines may reach: with a key, and not without."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from http.client import HTTPConnection
from urllib.parse import urlsplit

import psutil
import pytest

from tests.engine.conftest import User, wait_for

pytestmark = pytest.mark.engine

CHAT = "/v1/chat/completions"
QUESTION = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
ELSEWHERE = {"X-Forwarded-For": "10.0.0.9"}


def ask(host: str, port: int, path: str = CHAT, **headers: str) -> tuple[int, bytes]:
    connection = HTTPConnection(host, port, timeout=60)
    body = json.dumps(QUESTION) if path == CHAT else None
    connection.request("POST" if body else "GET", path, body, headers)
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def own_address() -> str:
    """Of this machine, as others see it; the loopback where it has none."""
    for addresses in psutil.net_if_addrs().values():
        for one in addresses:
            is_ours = one.family is socket.AF_INET
            if is_ours and not one.address.startswith("127."):
                return str(one.address)
    return "127.0.0.1"


PROGRAMS = {"curl": ("sh", "-c"), "openai-python": (sys.executable, "-c")}


def assert_is_answered(user: User, client: str, *url: str, **env: str) -> None:
    """It does as it is told."""
    told = user.run("connect", client, *url).stdout
    done = subprocess.run(
        [*PROGRAMS[client], told],
        env={**user.env, **env},
        capture_output=True,
        text=True,
    )
    assert "tiny model that only knows this console" in done.stdout, done.stderr


def test_other_machines_need_a_key(user: User, demo_model: str) -> None:
    launch = ("up", "--model", demo_model, "--workers", "0", "--detach")
    user.run("config", "set", "api_host", "0.0.0.0")
    refused = user.run(*launch, code=1)
    assert "dllm-tui keys add NAME" in refused.stderr
    assert not [p for p in user.status()["processes"] if p["state"] != "exited"]
    made = user.json("key", "add", "laptop")
    user.run(*launch)
    status = user.status()
    port = urlsplit(status["api_url"]).port or 0
    bearer = {"Authorization": f"Bearer {made['key']}"}
    ours = own_address()
    for path in (CHAT, "/v1/models", "/metrics", "/"):
        assert ask("127.0.0.1", port, path, **ELSEWHERE)[0] == 401
        assert ask("127.0.0.1", port, path, **ELSEWHERE, **bearer)[0] != 401
        assert ask("127.0.0.1", port, path)[0] != 401
        assert ours == "127.0.0.1" or ask(ours, port, path)[0] == 401
    assert ask(ours, port, **bearer)[0] == 200
    figures = ask("127.0.0.1", port, "/metrics")[1].decode()
    assert 'dllm_key_requests_total{key="laptop"}' in figures
    assert "llamacpp:" in figures
    # Counts are told a moment later.
    wait_for(lambda: user.status()["requests"]["keys"], "the key is counted")
    assert "key      laptop" in user.run("status").stdout
    (gateway,) = [p for p in user.status()["processes"] if p["name"] == "api-gateway"]
    assert made["key"] not in json.dumps(gateway)
    assert_is_answered(user, "curl", DLLM_API_KEY=made["key"])
    elsewhere = ("--url", f"http://{ours}:{port}")
    assert_is_answered(user, "openai-python", *elsewhere, DLLM_API_KEY=made["key"])
    user.run("key", "remove", "laptop")
    assert ask("127.0.0.1", port, **ELSEWHERE, **bearer)[0] == 401
    user.run("chat", "Hi")
    user.stop()
