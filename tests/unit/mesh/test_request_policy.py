"""Any request of a console is passed on as it may be, or denied."""

from __future__ import annotations

import json
import socket
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from backends.mesh.owner_limits import OwnerLimits
from backends.mesh.request_policy import FREE, PROCESSES_MAX, AgentPolicy, Denied

VERBS = (
    *sorted(FREE),
    "listens",
    "start",
    "run",
    "find",
    "read",
    "identity",
    "tensors",
    "seed",
)
TEXTS = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        [
            *("/bin/sh", "/engines/x/rpc-server", "/relay", "worker", "head", "probe"),
            *("-H", "-p", "-d", "127.0.0.1", "5000", "CPU", "--listen", "--worker"),
            *("--model", "/models/a.gguf", "/models/../etc/passwd", "--version", "-m"),
        ]
    ),
)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(string.ascii_lowercase, max_size=6), inner, max_size=4
        )
    ),
    max_leaves=12,
)
REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "id": st.integers() | JSON,
        "do": st.sampled_from(VERBS) | JSON,
        "argv": st.lists(TEXTS, max_size=8) | JSON,
        "env": st.dictionaries(TEXTS, TEXTS, max_size=3) | JSON,
        "path": TEXTS | JSON,
        "folders": st.lists(TEXTS, max_size=4) | JSON,
        "name": JSON,
        "cwd": JSON,
        "unset": JSON,
        "log_limit": JSON,
    },
)


def policy(**limits: Any) -> AgentPolicy:
    made = AgentPolicy(
        OwnerLimits(models=("/models",), **limits),
        relay=Path("/relay"),
        engines_dir=Path("/engines"),
        run_dir=Path("/run/lent"),
    )
    made.address = "10.0.0.7"
    return made


@settings(max_examples=150)
@given(REQUESTS)
@example({"id": 1, "do": "find", "folders": ["\0", "\ud800"]})
@example({"id": 1, "do": "start", "argv": ["\0"]})
def test_whatever_is_asked_only_workers_are_started(request: dict[str, Any]) -> None:
    try:
        passed = policy().request(request)
    except Denied:
        return
    assert passed["do"] in VERBS
    if passed["do"] in ("start", "run"):
        assert passed["argv"][0] in ("/engines/x/rpc-server", "/relay")
        assert not {"cwd", "unset"} & set(passed)
    if passed["do"] == "find":
        assert all(f.startswith(("/models", "/engines")) for f in passed["folders"])
    json.dumps(passed)


@given(JSON, JSON)
def test_any_answer_of_an_agent_is_passed_on(number: Any, told: Any) -> None:
    looked_at = policy(memory_bytes=1000)
    for each, verb in enumerate(("memory", "machine", "usage")):
        looked_at.request({"id": each, "do": verb})
    for each in (0, 1, 2, number):
        looked_at.answer({"id": each, "ok": told}, used_bytes=1)


def test_memory_that_is_lent_counts_what_all_consoles_use() -> None:
    looked_at = policy(memory_bytes=1000)
    looked_at.request({"id": 1, "do": "memory"})
    memory = {"total_bytes": 5000, "available_bytes": 4000, "limits": []}
    told = looked_at.answer({"id": 1, "ok": memory}, used_bytes=300)
    assert told["ok"]["limits"] == [{"limit_bytes": 1000, "available_bytes": 700}]
    # Asked for once, changed once.
    assert looked_at.answer({"id": 1, "ok": memory}, used_bytes=300)["ok"] == memory


def test_the_load_of_what_is_lent_is_told_and_no_more() -> None:
    load = {
        "cores_permille": [500],
        "memory_total_bytes": 5000,
        "memory_available_bytes": 4000,
        "swap_used_bytes": 7,
        "sent_bytes_per_s": 9,
        "agent_rss_bytes": 3,
        "gpus": [{"name": "A"}],
    }

    def told(**limits: Any) -> dict[str, Any]:
        looked_at = policy(**limits)
        looked_at.request({"id": 1, "do": "usage"})
        answer: dict[str, Any] = looked_at.answer({"id": 1, "ok": load}, 300)["ok"]
        return answer

    whole = dict(load)
    del whole["swap_used_bytes"], whole["sent_bytes_per_s"]
    assert told() == whole
    lent = {"memory_total_bytes": 1000, "memory_available_bytes": 700}
    assert told(memory_bytes=1000) == whole | lent
    none = {"memory_total_bytes": 0, "memory_available_bytes": 0, "agent_rss_bytes": 3}
    assert told(devices=("CUDA0",)) == none


def test_a_number_is_used_once_at_a_time() -> None:
    """The answer to another request would take the filter's turn."""
    looked_at = policy(memory_bytes=1000)
    looked_at.request({"id": 1, "do": "machine"})
    for number in (1, True, -1, 1 << 70, 1.0):
        with pytest.raises(Denied):
            looked_at.request({"id": number, "do": "records"})
    # Every session counts from 1.
    other = looked_at.for_session()
    other.request({"id": 1, "do": "memory"})
    for one in (looked_at, other):
        told = one.answer({"id": 1, "ok": {"memory": {}}}, 0)
        assert "limit_bytes" in json.dumps(told)


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as made:
        return str(made.getsockname()[1])


def worker_argv(port: str, *more: str) -> list[str]:
    return ["/engines/x/rpc-server", "-H", "127.0.0.1", "-p", port, *more]


def test_no_environment_makes_one_gpu_of_another() -> None:
    looked_at = policy(devices=("CUDA0",))
    argv = worker_argv(free_port(), "-d", "CUDA0")
    start = {"id": 1, "do": "start", "name": "w", "argv": argv}
    with pytest.raises(Denied, match="CUDA_VISIBLE_DEVICES"):
        looked_at.request({**start, "env": {"CUDA_VISIBLE_DEVICES": "1"}})
    assert looked_at.request({**start, "env": {}})


def test_a_worker_that_is_tried_serves_nobody() -> None:
    """It is in no record, so that its memory is not measured."""
    looked_at, first, second = policy(), free_port(), free_port()

    def ask(number: int, do: str, argv: list[str], **more: Any) -> object:
        return looked_at.request(
            {"id": number, "do": do, "name": "w", "argv": argv, **more}
        )

    ask(1, "start", worker_argv(first, "-d", "CPU"))
    with pytest.raises(Denied, match="taken"):
        ask(2, "run", worker_argv(first, "-d", "CPU"))
    with pytest.raises(Denied, match="CPU only"):
        ask(3, "run", worker_argv(second))
    with pytest.raises(Denied, match="touched"):
        ask(4, "run", worker_argv(second, "-d", "CPU"), touch=22)
    ask(5, "run", worker_argv(second, "-d", "CPU"), touch=int(second))
    with pytest.raises(Denied, match="taken"):
        ask(6, "start", worker_argv(second, "-d", "CPU"))


def test_programs_of_a_console_are_few_and_small() -> None:
    argv = worker_argv(free_port(), "-d", "CPU")
    start = {"id": 1, "do": "start", "name": "w", "argv": argv}
    with pytest.raises(Denied, match="too long"):
        policy().request({**start, "meta": "x" * 100_000})


def test_programs_that_a_console_keeps_are_counted(tmp_path: Path) -> None:
    for number in range(PROCESSES_MAX):
        folder = tmp_path / f"c{number}" / "w"
        folder.mkdir(parents=True)
        (folder / "process.json").touch()
    looked_at = AgentPolicy(
        OwnerLimits(), relay=Path("/r"), engines_dir=Path("/engines"), run_dir=tmp_path
    )
    argv = worker_argv(free_port(), "-d", "CPU")
    with pytest.raises(Denied, match="keeps 64 programs"):
        looked_at.request({"id": 1, "do": "start", "name": "d/w", "argv": argv})
    again = {"id": 2, "do": "start", "name": "c0/w", "argv": argv}
    assert looked_at.request(again)


def test_devices_that_are_not_lent_are_not_told() -> None:
    looked_at = policy(devices=("CUDA1",))
    argv = ["/engines/x/llama-server", "--list-devices"]
    looked_at.request({"id": 1, "do": "run", "argv": argv})
    listed = (
        "Available devices:\n"
        "  CUDA0: NVIDIA RTX 4090 (24209 MiB, 23000 MiB free)\n"
        "  CUDA1: NVIDIA RTX 3060 (12000 MiB, 11000 MiB free)\n"
    )
    told = looked_at.answer({"id": 1, "ok": {"stdout": listed, "code": 0}}, 0)
    assert "CUDA0" not in told["ok"]["stdout"]
    assert "CUDA1" in told["ok"]["stdout"]


def test_who_has_a_port_is_not_told() -> None:
    looked_at = policy()
    looked_at.request({"id": 1, "do": "port_owner", "port": 5432})
    told = {"used": True, "pid": 7, "name": "postgres"}
    assert looked_at.answer({"id": 1, "ok": told}, 0)["ok"] == {"used": True}


def test_who_listens_is_told_of_the_consoles_own_processes_alone(
    tmp_path: Path,
) -> None:
    ends = {"w": (7, False), "ended": (8, True), "broken": ("9", False)}
    for name, (pid, ended) in ends.items():
        folder = tmp_path / "c" / name
        folder.mkdir(parents=True)
        (folder / "process.json").write_text(json.dumps({"pid": pid, "argv": []}))
        if ended:
            (folder / "exit.json").touch()
    looked_at = AgentPolicy(
        OwnerLimits(), relay=Path("/r"), engines_dir=Path("/engines"), run_dir=tmp_path
    )
    asked = {"do": "listens", "port": 5432}
    assert looked_at.request({**asked, "id": 1, "pid": 7})["pid"] == 7
    for pid in (1, 8, 9, 7.0, "7", None, [7]):
        with pytest.raises(Denied, match="no process of this console"):
            looked_at.request({**asked, "id": 2, "pid": pid})


def test_a_probe_listens_on_loopback_or_where_the_console_came_in() -> None:
    looked_at = policy()
    for place in ("10.0.0.8:1025", "0.0.0.0:1025", "[::]:1025", ":1025", "x"):
        argv = ["/relay", "probe", "--listen", place]
        with pytest.raises(Denied):
            looked_at.request({"id": 1, "do": "run", "argv": argv})
    with socket.create_server(("127.0.0.1", 0)) as made:
        free = made.getsockname()[1]
    argv = ["/relay", "probe", "--listen", f"127.0.0.1:{free}"]
    assert looked_at.request({"id": 1, "do": "run", "argv": argv})["argv"] == argv
