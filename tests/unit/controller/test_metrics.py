"""What whoever scrapes the controller's socket is told of links."""

from __future__ import annotations

from backends.controller.metrics import prometheus_text
from backends.state import Acceptance, ClusterSnapshot, Link, LinkCommand, Speed

PAIRED = Link(
    worker="mini",
    mode="pair",
    bytes_up=100,
    bytes_down=40,
    wire_bytes_up=10,
    wire_bytes_down=41,
    weight_bytes_home=90,
    weight_bytes_sent=0,
    commands={"HELLO": LinkCommand(bytes_up=9, wire_bytes_up=4, wire_bytes_down=5)},
)


def test_a_pair_tells_what_crossed_and_what_stayed_home() -> None:
    alone = Link(worker="box", bytes_up=7, commands={"HELLO": LinkCommand()})
    text = prometheus_text(ClusterSnapshot(links=(PAIRED, alone)))
    said = [line for line in text.splitlines() if not line.startswith("#")]
    assert 'dllm_link_mode{mode="pair",worker="mini"} 1.0' in said
    assert 'dllm_link_mode{mode="metered",worker="box"} 1.0' in said
    assert 'dllm_link_wire_bytes_up_total{worker="mini"} 10.0' in said
    assert 'dllm_link_weight_bytes_home_total{worker="mini"} 90.0' in said
    assert 'dllm_link_bytes_up_total{worker="box"} 7.0' in said
    crossed = 'dllm_command_wire_bytes_up_total{command="HELLO",worker="mini"} 4.0'
    assert crossed in said
    assert not [line for line in said if "wire_bytes" in line and "box" in line]


def test_drafted_tokens_are_counted() -> None:
    acceptance = Acceptance(drafted=8, accepted=6, passes=1)
    text = prometheus_text(ClusterSnapshot(speed=Speed(acceptance=acceptance)))
    assert "dllm_draft_accepted_total 6.0" in text.splitlines()
    assert "dllm_draft" not in prometheus_text(ClusterSnapshot())
