"""Plans as a person asks for them, on the real engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from backends.engine.install import find_engine
from backends.paths import user_paths
from tests.engine.conftest import User, wait_for
from tests.native.stock import free_port, start_worker

pytestmark = pytest.mark.engine
ASK = "Who are you?"


def test_a_dry_run_shows_all_and_starts_nothing(user: User, demo_model: str) -> None:
    shown = user.json("plan", "--model", demo_model, "--workers", "2")
    user.assert_nothing_left()
    assert shown["plan"]["layers"][-1][2] == 12
    devices = [share["device"] for share in shown["plan"]["split"]["shares"]]
    assert [m["device"] for m in shown["memory"]] == devices
    assert {"model_bytes", "kv_bytes", "compute_bytes"} <= set(shown["memory"][0])
    assert {m["source"] for m in shown["memory"]} == {"engine"}
    engines = ["worker1", "worker2", "relay-worker1", "relay-worker2", "llama-server"]
    assert [c["name"] for c in shown["commands"]] == [*engines, "api-gateway"]
    assert {c["machine"] for c in shown["commands"]} == {"local"}
    text = user.run("plan", "--model", demo_model).stdout
    assert "--device RPC0,RPC1 -ngl 13" in text
    refused = user.up(demo_model, "--split", "6,6", code=1)
    assert "sum to 13" in refused.stderr
    user.assert_nothing_left()


def test_what_is_started_is_what_was_shown_then_the_head_alone(
    user: User, demo_model: str
) -> None:
    # A relative path counts from the user's directory.
    draft = user.home / "my draft [1].gguf"
    draft.symlink_to(demo_model)
    asked = ("--model", demo_model, "--split", "6,7", "--ctx", "512")
    drafts = ("--", "-md", draft.name, "--spec-draft-n-max", "2")
    planned = json.loads(user.run("plan", "--json", *asked, *drafts).stdout)
    shown = {c["name"]: c["argv"] for c in planned["commands"]}
    assert str(draft) in shown["llama-server"]
    user.run("up", *asked, "--detach", *drafts)
    started = {p["name"]: p["argv"] for p in user.status()["processes"]}
    assert set(started) == set(shown)
    for name, argv in shown.items():
        for wanted, found in zip(argv, started[name], strict=True):
            unknown = "<socket>" if "<socket>" in wanted else "<port>"
            before, port, after = wanted.partition(unknown)
            assert found.startswith(before), (wanted, found)
            assert port or not after
            assert port or found == wanted
    by_workers = user.ask(ASK)
    alone = ("--workers", "0", "--replace", "--detach")
    up = user.json("up", "--model", demo_model, *alone)
    assert up["measured"]["layers"] == [["local/CPU", 0, 12]]
    assert up["measured"]["mismatches"] == []
    names = [p["name"] for p in user.status()["processes"]]
    assert names == ["api-gateway", "llama-server"]
    assert user.ask(ASK) == by_workers
    # Some layers on the head's CPU, by name.
    split = "worker2/CPU=4,local/CPU=3,worker1/CPU=6"
    named = ("--split", split, "--replace", "--detach")
    up = user.json("up", "--model", demo_model, *named)
    assert up["measured"]["mismatches"] == []
    assert up["measured"]["layers"] == [
        ["local/CPU", 0, 2],
        ["worker1/CPU", 3, 8],
        ["worker2/CPU", 9, 12],
    ]
    user.stop()


@pytest.fixture
def two_devices(tmp_path: Path) -> Iterator[int]:
    folder = Path(find_engine(None, user_paths()).directory)
    with ExitStack() as stack:
        yield start_worker(stack, folder, tmp_path / "worker.log", "-d", "CPU,CPU")


@pytest.mark.parametrize(
    "relayed", [True, pytest.param(False, marks=pytest.mark.trial)]
)
def test_a_server_with_two_devices_is_split_right(
    user: User, demo_model: str, two_devices: int, relayed: bool
) -> None:
    """Layers on its second device only, and on our worker that comes after both.

    llama-server calls that worker RPC2: the first device, without layers, counts.
    """
    user.run("peers", "add", "box", "--bare", f"127.0.0.1:{two_devices}")
    split = "box/RPC1=5,worker1/CPU=8"
    asked = ("up", "--model", demo_model, "--split", split, "--detach")
    up = user.json(*asked, *(() if relayed else ("--relay", "off")))
    assert up["measured"]["mismatches"] == []
    assert up["measured"]["layers"] == [["box/RPC1", 0, 4], ["worker1/CPU", 5, 12]]
    held = {b["device"]: b["model_bytes"] for b in up["measured"]["buffers"]}
    assert held["box/RPC1"] > 0
    assert held["worker1/CPU"] > 0
    assert "box/RPC0" not in held
    (server,) = (p for p in user.status()["processes"] if p["name"] == "llama-server")
    assert "RPC1,RPC2" in server["argv"]
    assert user.ask(ASK)


# --- A serving cluster keeps the settings of its launch, and a plan that worked ---


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


def test_a_launch_that_fails_and_other_settings_leave_what_serves(
    user: User, demo_model: str
) -> None:
    up(user, demo_model)
    told = up(user, demo_model, "--ctx", "512", "--", "--no-such-flag", code=1)
    assert "no-such-flag" in told
    assert "The plan before it is brought back" in told
    status = user.wait_serving()
    assert status["plan"]["extra_args"] == []
    assert status["plan"]["ctx_size"] != 512
    assert "back to the plan before it" in status["message"]
    assert user.ask("Hi", max_tokens=2)
    # Settings of the API count from a launch on.
    before = status
    port = free_port()
    write(user, f"api_wait_s = 7\napi_request_mib = 3\napi_port = {port}\n")
    gateway = user.pid("api-gateway")
    kill_a_worker(user)
    assert user.wait_serving()["api_url"] == before["api_url"]
    assert user.pid("api-gateway") == gateway
    server = user.pid("llama-server")
    assert "is already running" not in up(user, demo_model)
    assert user.wait_serving()["api_url"] == f"http://127.0.0.1:{port}/v1"
    assert user.pid("llama-server") == server, "only the gateway is another"
    assert "is already running" in up(user, demo_model)
    assert user.pid("llama-server") == server
    write(user, 'api_host = "0.0.0.0"\n')
    assert "no API key" in up(user, demo_model, code=1).replace("\n", " ")
    assert user.wait_serving()["api_url"] == f"http://127.0.0.1:{port}/v1"
    user.stop()
