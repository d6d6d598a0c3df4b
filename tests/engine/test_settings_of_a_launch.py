"""A serving cluster keeps the settings of its launch, and a plan that worked."""

from __future__ import annotations

import pytest

from tests.engine.conftest import User, wait_for

pytestmark = pytest.mark.engine


def up(user: User, model: str, *more: str, code: int = 0) -> str:
    plan = ("--model", model, "--workers", "1")
    return user.run("up", *plan, "--detach", "--replace", *more, code=code).stderr


def write(user: User, settings: str) -> None:
    folder = user.home / "config/dllm-tui"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(settings)


def kill_a_worker(user: User) -> None:
    server = user.pid("llama-server")
    user.kill("worker1")
    wait_for(lambda: user.pid("llama-server") not in (server, None), "another server")
    user.wait_serving()


def test_a_launch_that_fails_leaves_what_served(user: User, demo_model: str) -> None:
    up(user, demo_model)
    told = up(user, demo_model, "--ctx", "512", "--", "--no-such-flag", code=1)
    assert "no-such-flag" in told
    assert "The plan before it is brought back" in told
    status = user.wait_serving()
    assert status["plan"]["extra_args"] == []
    assert status["plan"]["ctx_size"] != 512
    assert "back to the plan before it" in status["message"]
    assert user.run("chat", "Hi", "--max-tokens", "2").stdout
    user.stop()


def test_settings_of_the_api_count_from_a_launch_on(
    user: User, demo_model: str
) -> None:
    up(user, demo_model)
    before = user.wait_serving()
    write(user, "api_wait_s = 7\napi_request_mib = 3\napi_port = 8764\n")
    gateway = user.pid("api-gateway")
    kill_a_worker(user)
    assert user.wait_serving()["api_url"] == before["api_url"]
    assert user.pid("api-gateway") == gateway
    server = user.pid("llama-server")
    assert "is already running" not in up(user, demo_model)
    assert user.wait_serving()["api_url"] == "http://127.0.0.1:8764/v1"
    assert user.pid("llama-server") == server, "only the gateway is another"
    assert "is already running" in up(user, demo_model)
    assert user.pid("llama-server") == server
    write(user, 'api_host = "0.0.0.0"\n')
    assert "no API key" in up(user, demo_model, code=1).replace("\n", " ")
    assert user.wait_serving()["api_url"] == "http://127.0.0.1:8764/v1"
    user.stop()
