"""The log parser, on text captured from real runs and on junk."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.engine.logs import LoadLog, clean_lines, end_reason

DATA = Path(__file__).parent / "data"
MIB = 1 << 20


def captured(name: str) -> str:
    return (DATA / f"{name}.log").read_text()


def fed(*texts: str) -> LoadLog:
    log = LoadLog()
    for text in texts:
        log.feed(text)
    return log


def test_every_layer_and_the_output_have_their_device() -> None:
    log = fed(captured("load_lv5"))
    assert log.layer_devices == {
        **dict.fromkeys(range(6), "RPC0"),
        **dict.fromkeys(range(6, 13), "RPC1"),
    }
    assert log.offloaded == (13, 13)
    assert log.device_endpoints == {
        "RPC0": "127.0.0.1:56211",
        "RPC1": "127.0.0.1:56212",
    }


@pytest.mark.parametrize("name", ["load_lv5", "load_lv4"])
def test_it_ends_ready_with_buffers_by_endpoint_and_kind(name: str) -> None:
    log = fed(captured(name))
    first, second = "RPC0[127.0.0.1:56211]", "RPC0[127.0.0.1:56212]"
    assert log.buffers == {
        ("CPU_Mapped", "model"): round(0.15 * MIB),
        (first, "model"): round(6.76 * MIB),
        (second, "model"): round(6.91 * MIB),
        (first, "kv"): 3 * MIB,
        (second, "kv"): 3 * MIB,
        (first, "compute"): round(10.04 * MIB),
        (second, "compute"): round(10.04 * MIB),
        ("CPU", "compute"): round(6.55 * MIB),
    }

    assert log.ready
    assert log.fraction == 1.0
    assert log.url == "http://127.0.0.1:56299"
    assert not log.errors


def test_phases_follow_the_load() -> None:
    log = LoadLog()
    phases = []
    for line in captured("load_lv4").splitlines(keepends=True):
        log.feed(line)
        phases.append(log.phase)
    assert list(dict.fromkeys(phases)) == [
        "starting",
        "reading the header",
        "loading weights",
        "reserving memory",
        "warming up",
        "ready",
    ]


@given(cuts=st.lists(st.integers(0, 13000), max_size=40))
def test_pieces_of_any_size_give_the_same_facts(cuts: list[int]) -> None:
    text = captured("load_lv5")
    edges = [0, *sorted(cuts), len(text)]
    log = fed(*(text[a:b] for a, b in pairwise(edges)))
    whole = fed(text)
    assert log.layer_devices == whole.layer_devices
    assert log.buffers == whole.buffers
    assert log.url == whole.url


def test_colours_and_carriage_returns_are_seen_through() -> None:
    line = (
        "\x1b[34m0.00.053.349\x1b[0m \x1b[33mD load_tensors: layer   7 assigned to "
        "device \x1b[1mRPC1\x1b[0m, is_swa = 0\x1b[0m\r\n"
    )
    assert fed(line).layer_devices == {7: "RPC1"}
    assert clean_lines("10 %\r20 %\r\x1b[1mdone\x1b[0m\x07\n\n \n") == ["done"]


def test_dots_of_older_builds_are_a_fraction() -> None:
    log = fed("load_tensors: loading model tensors, this can take a while...\n")
    assert log.fraction is None
    log.feed("." * 30)
    assert log.fraction == pytest.approx(0.30)
    log.feed("." * 20)
    assert log.fraction == pytest.approx(0.50)


def test_progress_told_to_a_router_is_a_fraction() -> None:
    state = '{"state":"loading","payload":{"current":"text_model","value":0.25}}'
    assert fed(f"\ncmd_child_to_router:state:{state}\n").fraction == 0.25
    assert fed('\ncmd_child_to_router:state:{"payload":7}\n').fraction is None


def test_a_draft_model_does_not_hide_the_first() -> None:
    draft = captured("load_lv5").replace("device RPC", "device CUDA")
    log = fed(captured("load_lv5").rpartition("srv  llama_server: model loaded")[0])
    before = log.layer_devices.copy(), log.buffers
    log.feed(draft)
    assert (log.layer_devices, log.buffers) == before


def test_layers_that_draft_do_not_hide_the_model() -> None:
    log = fed(captured("load_lv5").rpartition("srv  llama_server: model loaded")[0])
    before = log.buffers
    device = next(name for name, kind in before if kind == "compute")
    log.feed("I init: creating MTP draft context against the target model '/m.gguf'\n")
    log.feed(f"I llama_kv_cache: {device} KV buffer size = 1.00 MiB\n")
    log.feed(f"I sched_reserve: {device} compute buffer size = 4.64 MiB\n")
    assert log.buffers == before


def test_a_server_that_wakes_loads_anew() -> None:
    asleep = "I srv: server is exiting sleeping state\n"
    log = fed(captured("load_lv5"), asleep)
    assert (log.phase, log.layer_devices) == ("starting", {})
    log.feed(captured("load_lv5"))
    assert log.phase == "ready"
    assert len(log.layer_devices) == 13


def test_errors_are_kept() -> None:
    errors = fed(captured("fail_died") + "\n").errors
    assert errors[0] == "recv failed (bytes_recv=0, size_to_recv=8)"
    assert "Remote RPC server crashed" in errors[1]


@given(st.text(max_size=3000))
def test_junk_never_raises(text: str) -> None:
    log = fed(text, "\n")
    clean_lines(text)
    end_reason(clean_lines(text), None, None)
    assert log.fraction is None or 0 <= log.fraction <= 1


@given(
    st.lists(
        st.sampled_from(
            [
                *captured("load_lv5").splitlines()[:200:7],
                *captured("fail_died").splitlines(),
                "cmd_child_to_router:state:{",
                "....",
                "\x1b[",
                "\r",
                "load_tensors: layer 99999999999999999999 assigned to device x",
                "A model buffer size = 9999999999999999999999999999 MiB",
            ]
        )
    ),
    st.sampled_from(["\n", "\r\n", "\r", ""]),
)
def test_real_lines_in_any_order_never_raise(lines: list[str], end: str) -> None:
    log = fed(end.join(lines))
    log.feed(end)
    assert all(size >= 0 for size in log.buffers.values())
    end_reason(lines, 1, None)


@pytest.mark.parametrize(
    "text",
    ["x" * 400_000, "RPC0 " * 80_000, "\x1b]" * 200_000, "(" * 400_000, "." * 400_000],
)
def test_long_lines_cost_little(text: str) -> None:
    started = time.process_time()
    fed(text, "\n")
    end_reason(clean_lines(text[:32768]), 1, None)
    assert time.process_time() - started < 1.0
