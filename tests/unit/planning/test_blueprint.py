"""Every process of a plan as a command line, and what is worth knowing before."""

from __future__ import annotations

import dataclasses
import shlex

import msgspec
import pytest
from msgspec.structs import replace

from backends.direct_address import DirectAddress
from backends.engine.ask import TRACES, Engine
from backends.machines.agent import ProcessRecord, ProcessSpec
from backends.planning.blueprint import (
    Blueprint,
    Facts,
    Node,
    Site,
    commands,
    compare,
    draw,
    model_alias,
)
from backends.planning.checking import remarks, token_bytes
from backends.planning.proposal import plan_devices
from backends.planning.relay_pairs import Pairing
from backends.split.device_memory import plan_loads
from backends.split.flags import Placement
from backends.split.layout import make_split
from backends.state import Peer, Plan, ProcessRole, ProcessState
from tests.unit.planning.machines import (
    BARE,
    BOB,
    MODEL,
    ON_BOB,
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


def test_it_holds_all_by_the_protocol_of_the_engine() -> None:
    """Since 8.0.0 a device also has the vectors of tokens."""
    plan, model = plan_for(WITH_GPU, BOB), model_of(n_vocab=8)
    alone = make_split(model.n_layer, ["local/CUDA0"], [model.n_layer + 1])
    (load,) = plan_loads(model, replace(plan, split=alone), protocol="7.0.0")
    tight = replace(device("local", "CUDA0"), free_bytes=load.total_bytes)
    for protocol, is_said in ("7.0.0", True), ("8.0.0", False):
        notes = remarks(plan, model, [tight], {}, protocol=protocol)
        assert any("alone would hold" in note for note in notes) == is_said


@pytest.mark.parametrize("args", [(), ("--chat-template", "llama2")])
def test_a_model_without_a_chat_template_is_told_unless_one_is_given(
    args: tuple[str, ...],
) -> None:
    plan = replace(plan_for(PLAIN), extra_args=args)
    notes = remarks(plan, replace(model_of(), has_chat_template=False), [], {})
    assert any("no chat template" in note for note in notes) == (args == ())


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
def test_a_model_has_its_name(model: str, extra: tuple[str, ...], alias: str) -> None:
    plan = msgspec.structs.replace(plan_for(PLAIN), model=model, extra_args=extra)
    assert model_alias(plan) == alias


# --- What of a blueprint is kept: only what runs, is what is wanted, and stays ---

WORKER = Node(
    machine="here",
    short_name="worker1",
    spec=ProcessSpec(name="one/worker1", role=ProcessRole.WORKER, argv=("rpc", "1")),
)
RELAY = Node(
    machine="here",
    short_name="relay-worker1",
    spec=ProcessSpec(name="one/relay", role=ProcessRole.RELAY, argv=("relay",)),
    waits_for=("worker1",),
)


NOWHERE = Placement(rpc_endpoints=(), devices=(), n_gpu_layers=0)


def record(spec: ProcessSpec, state: ProcessState, pid: int = 7) -> ProcessRecord:
    return ProcessRecord(
        name=spec.name,
        role=spec.role,
        state=state,
        pid=pid,
        argv=spec.argv,
        digest=spec.digest,
        started_at=1.0,
    )


def missing(*records: ProcessRecord) -> list[str]:
    blueprint = Blueprint(nodes=(WORKER, RELAY), placement=NOWHERE)
    there = {("here", one.name): one for one in records}
    return [node.short_name for node in compare(blueprint, there, {}).missing]


def after(worker: ProcessRecord) -> ProcessSpec:
    return RELAY.specified({"worker1": worker.incarnation})


def test_what_runs_as_it_should_is_kept() -> None:
    worker = record(WORKER.spec, ProcessState.RUNNING)
    assert missing(worker, record(after(worker), ProcessState.RUNNING)) == []


@pytest.mark.parametrize("state", [ProcessState.STOPPING, ProcessState.EXITED])
def test_what_ends_is_not_kept_nor_what_depends_on_it(state: ProcessState) -> None:
    worker = record(WORKER.spec, state)
    relay = record(after(worker), ProcessState.RUNNING)
    assert missing(worker, relay) == ["worker1", "relay-worker1"]


def test_another_command_line_or_another_worker_is_another_process() -> None:
    worker = record(WORKER.spec, ProcessState.RUNNING)
    relay = record(after(worker), ProcessState.RUNNING)
    other = record(
        msgspec.structs.replace(WORKER.spec, argv=("rpc", "2")), ProcessState.RUNNING
    )
    assert missing(other, relay) == ["worker1", "relay-worker1"]
    again = record(WORKER.spec, ProcessState.RUNNING, pid=8)
    assert missing(again, relay) == ["relay-worker1"]


# --- The processes of a pair: their command lines, what they wait for, what is …

BESIDE = "worker-relay-bob"
KEY, IDENTITY = "5a" * 32, "5b" * 16
PAIRED = Pairing(
    why="bob has it",
    program="/bob/dllm-relay",
    models=("/models/the m.gguf",),
    key=KEY,
    identity=IDENTITY,
)
FACTS = Facts(
    cluster="one",
    engines={name: engine(name) for name in ("local", "bob")},
    model=MODEL,
    model_path="/here/m.gguf",
    ports={"bob": 1, BESIDE: 2, "relay-bob": 3, "llama-server": 4},
    ways={"bob": "unix:/run/bob.way"},
    relay="/here/dllm-relay",
    stats={"bob": "/run/bob.sock"},
    pairings={"bob": PAIRED},
    folders={"local": "/here/run/one", "bob": "/there/run/one"},
)


def nodes(facts: Facts) -> dict[str, Node]:
    return {node.short_name: node for node in draw(ON_BOB, facts).nodes}


def with_pairing(**changes: object) -> Facts:
    changed = msgspec.structs.replace(PAIRED, **changes)
    return dataclasses.replace(FACTS, pairings={"bob": changed})


def test_a_relay_stands_beside_the_worker_and_the_head_s_dials_it() -> None:
    found = nodes(FACTS)
    assert list(found) == ["bob", BESIDE, "relay-bob", "llama-server"]
    beside, head = found[BESIDE], found["relay-bob"]
    assert (beside.machine, head.machine) == ("bob", "local")
    assert beside.spec.role is ProcessRole.WORKER_RELAY
    assert shlex.join(beside.spec.argv) == (
        "/bob/dllm-relay worker --name bob --listen 127.0.0.1:2 --worker 127.0.0.1:1 "
        f"--key-file /there/run/one/{BESIDE}/private "
        "--model '/models/the m.gguf'"
    )
    assert shlex.join(head.spec.argv) == (
        "/here/dllm-relay head --name bob --listen 127.0.0.1:3 "
        f"--pair-dial unix:/run/bob.way --id {IDENTITY} --gone-after 90 "
        "--key-file /here/run/one/relay-bob/private --model /here/m.gguf "
        "--stats /run/bob.sock"
    )
    assert beside.spec.private == head.spec.private == KEY
    assert found["llama-server"].spec.private == ""


def test_a_worker_with_a_cache_is_told_its_folder() -> None:
    assert "LLAMA_CACHE" not in nodes(FACTS)["bob"].spec.env
    (bob,) = ON_BOB.workers
    caching = msgspec.structs.replace(bob, cache="/there/cache")
    plan = msgspec.structs.replace(ON_BOB, workers=(caching,))
    specs = {node.short_name: node.spec for node in draw(plan, FACTS).nodes}
    assert specs["bob"].env["LLAMA_CACHE"] == "/there/cache"
    assert specs["bob"].argv[-1] == "-c"
    assert "LLAMA_CACHE" not in specs["llama-server"].env


def test_a_place_of_its_own_is_listened_at_and_dialled_first() -> None:
    found = nodes(with_pairing(data=DirectAddress(address="10.0.0.7")))
    beside, head = shlex.join(found[BESIDE].spec.argv), found["relay-bob"].spec.argv
    assert "--listen 127.0.0.1:2 --listen 10.0.0.7:2 --worker" in beside
    dialled = "--pair-dial 10.0.0.7:2 --pair-dial unix:/run/bob.way"
    assert dialled in shlex.join(head)
    told = with_pairing(data=DirectAddress(address="fd00::7", port=9))
    assert "--pair-dial [fd00::7]:9" in " ".join(nodes(told)["relay-bob"].spec.argv)


def test_each_waits_for_what_it_talks_to() -> None:
    found = nodes(FACTS)
    assert found[BESIDE].waits_for == ("bob",)
    assert found["relay-bob"].waits_for == ("bob", BESIDE, "way:bob")
    assert BESIDE in found["llama-server"].waits_for


def test_without_model_none_is_named() -> None:
    found = nodes(with_pairing(models=()))
    for name in (BESIDE, "relay-bob"):
        assert "--model" not in found[name].spec.argv


def test_a_head_s_relay_alone_is_what_it_was() -> None:
    """Also to the digest: what runs is kept."""
    alone = nodes(with_pairing(program=""))
    assert list(alone) == ["bob", "relay-bob", "llama-server"]
    before = nodes(dataclasses.replace(FACTS, pairings={}, folders={}))
    for name, node in alone.items():
        assert node.spec.digest == before[name].spec.digest
    assert "--worker unix:/run/bob.way" in " ".join(alone["relay-bob"].spec.argv)


def test_a_launch_that_is_only_shown_has_neither_key_nor_ports() -> None:
    site = Site(
        engines=FACTS.engines,
        relay=FACTS.relay,
        model_path=FACTS.model_path,
        pairings=FACTS.pairings,
    )
    shown = {c.name: " ".join(c.argv) for c in commands(ON_BOB, site)}
    assert "--key-file <key file>" in shown[BESIDE]
    assert "--id <id> --gone-after 90 --key-file <key file>" in shown["relay-bob"]
    assert "--pair-dial 127.0.0.1:<port>" in shown["relay-bob"]
    alone = dataclasses.replace(site, pairings={})
    assert BESIDE not in {command.name for command in commands(ON_BOB, alone)}
