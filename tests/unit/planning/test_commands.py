"""Every process of a plan as a command line, and what is worth knowing before."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from backends.engine.ask import TRACES, Engine
from backends.planning.commands import Site, commands, model_alias
from backends.planning.proposal import plan_devices
from backends.planning.remarks import remarks, token_bytes
from backends.state import Peer, Plan
from tests.unit.planning.machines import (
    BARE,
    BOB,
    PLAIN,
    WITH_GPU,
    device,
    engine,
    model_of,
    plan_for,
)

SITE = Site(
    engines={name: engine(name) for name in ("local", "bob")},
    relay="/local/dllm-relay",
    model_path="/models/m.gguf",
    stats={"box": "/run/box.sock"},
)


def lines(plan: Plan, site: Site = SITE) -> dict[str, str]:
    return {c.name: f"{c.machine}: {' '.join(c.argv)}" for c in commands(plan, site)}


def test_workers_relays_and_server_in_the_order_of_their_start() -> None:
    plan = plan_for(WITH_GPU, BOB, BARE, exclude=("bob/CUDA0",))
    found = lines(plan)
    assert list(found) == ["bob", "relay-bob", "relay-box", "llama-server"]
    assert found["bob"] == "bob: /bob/rpc-server -H 127.0.0.1 -p <port> -d CUDA1"
    assert "--worker 10.0.0.3:50052 --stats /run/box.sock" in found["relay-box"]
    server = found["llama-server"]
    assert server.startswith("local: /local/llama-server -m /models/m.gguf -c 1024")
    assert "--rpc 127.0.0.1:<port>,127.0.0.1:<port>" in server
    assert "--device RPC0,RPC1,RPC2,CUDA0 -ngl 13 -ts " in server


def test_known_ports_and_ways_are_shown() -> None:
    plan = plan_for(PLAIN, BOB, peers=("bob",), exclude=("bob/CUDA0",), relay=False)
    site = Site(
        engines=SITE.engines,
        model_path="/m.gguf",
        ports={"llama-server": 8090, "bob": 5000},
        ways={"bob": "127.0.0.1:7000"},
    )
    found = lines(plan, site)
    assert list(found) == ["bob", "llama-server"]
    assert "-p 5000" in found["bob"]
    assert "--rpc 127.0.0.1:7000" in found["llama-server"]
    assert "--port 8090" in found["llama-server"]


def test_the_head_alone_is_one_process() -> None:
    assert list(lines(plan_for(PLAIN, workers=0))) == ["llama-server"]
    assert "--device none -ngl 0" in lines(plan_for(PLAIN, workers=0))["llama-server"]


def test_only_without_relays_the_log_is_verbose_and_that_is_said() -> None:
    knows = Engine(info=engine("local").info, flags=frozenset({"-lv", TRACES}))
    site = dataclasses.replace(SITE, engines={**SITE.engines, "local": knows})
    for plan, level in (
        (plan_for(PLAIN, BOB, peers=("bob",)), "4"),
        (plan_for(PLAIN, workers=0, relay=False), "4"),
        (plan_for(PLAIN, BOB, peers=("bob",), relay=False), "5"),
    ):
        assert f"-lv {level}" in lines(plan, site)["llama-server"]
        said = any("every prompt and every answer" in note for note in told(plan))
        assert said == (level == "5")


def told(plan: Plan, *machines: Peer, n_vocab: int = 8) -> tuple[str, ...]:
    by_name = {machine.name: machine for machine in machines}
    devices = plan_devices(plan.head, plan.workers, by_name)
    return remarks(plan, model_of(n_vocab=n_vocab), devices, by_name)


def test_a_head_that_computes_nothing_is_said_to_be_slow_and_how_much() -> None:
    """Two machines at 5 ms: 10 ms a token at least, and the logits on the wire."""
    near = [
        Peer(
            name=name,
            transport="ssh",
            rtt_ms=5.0,
            devices=(device(name, "CPU"), device(name, "CUDA0")),
        )
        for name in ("ada", "bob")
    ]
    plan = plan_for(PLAIN, *near)
    (sentence,) = told(plan, PLAIN, *near, n_vocab=150_000)
    assert sentence == (
        "Slow: local computes no layer, so that every token makes 2 round trips and "
        "the last worker sends 586 KiB for it (586 KiB in all): ~10.0 ms of network a "
        "token, ~100.0 tok/s at the most."
    )
    assert token_bytes(plan, model_of(n_vocab=150_000)) == 4 * (150_000 + 3 * 8)


def test_workers_beside_the_head_are_for_trying_things() -> None:
    assert told(plan_for(PLAIN), PLAIN) == ()


def test_a_head_that_computes_is_not_called_slow() -> None:
    plan = plan_for(WITH_GPU, BOB)
    assert not any("Slow" in sentence for sentence in told(plan, WITH_GPU, BOB))


def test_one_gpu_that_holds_all_is_named() -> None:
    plan = plan_for(WITH_GPU, BOB)
    assert told(plan, WITH_GPU, BOB) == (
        "local/CUDA0 alone would hold the model, without a network between: "
        "--workers 0.",
    )
    assert told(plan_for(WITH_GPU, BOB, workers=0), WITH_GPU, BOB) == ()


def test_layers_on_the_heads_cpu_are_told() -> None:
    plan = plan_for(WITH_GPU, counts=(3, 10))
    assert told(plan, WITH_GPU) == ("local/CPU computes the first 3 layers itself.",)


@pytest.mark.parametrize(
    ("model", "extra", "alias"),
    [
        ("/models/GLM-4.7-Flash-Q4_K_M.gguf", (), "GLM-4.7-Flash-Q4_K_M"),
        ("/m/big-00001-of-00003.gguf", (), "big"),
        ("/m/a,b.gguf", (), "a-b"),
        ("/m/x.gguf", ("--alias", "mine,other"), "mine"),
        ("/m/x.gguf", ("-a", "mine"), "mine"),
        ("/m/x.gguf", ("--alias", ""), "x"),
    ],
)
def test_a_model_is_called_by_its_name(
    model: str, extra: tuple[str, ...], alias: str
) -> None:
    plan = msgspec.structs.replace(plan_for(PLAIN), model=model, extra_args=extra)
    assert model_alias(plan) == alias
