"""The processes of a pair: their command lines, what they wait for, what is private."""

from __future__ import annotations

import dataclasses
import shlex

import msgspec

from backends.data_place import DataPlace
from backends.planning.blueprint import Facts, Node, draw
from backends.planning.commands import Site, commands
from backends.planning.pairing import Pairing
from backends.split.layout import make_split
from backends.state import (
    Plan,
    ProcessRole,
    WorkerSpec,
)
from tests.unit.planning.machines import MODEL, engine

BESIDE = "worker-relay-bob"
KEY, IDENTITY = "5a" * 32, "5b" * 16
PAIRED = Pairing(
    why="bob has it",
    program="/bob/dllm-relay",
    models=("/models/the m.gguf",),
    key=KEY,
    identity=IDENTITY,
)
PLAN = Plan(
    model=MODEL.path,
    split=make_split(12, ["bob/CPU"], [13]),
    workers=(WorkerSpec(name="bob", peer="bob"),),
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
    return {node.short_name: node for node in draw(PLAN, facts).nodes}


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


def test_a_place_of_its_own_is_listened_at_and_dialled_first() -> None:
    found = nodes(with_pairing(data=DataPlace(address="10.0.0.7")))
    beside, head = shlex.join(found[BESIDE].spec.argv), found["relay-bob"].spec.argv
    assert "--listen 127.0.0.1:2 --listen 10.0.0.7:2 --worker" in beside
    dialled = "--pair-dial 10.0.0.7:2 --pair-dial unix:/run/bob.way"
    assert dialled in shlex.join(head)
    told = with_pairing(data=DataPlace(address="fd00::7", port=9))
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
    shown = {c.name: " ".join(c.argv) for c in commands(PLAN, site)}
    assert "--key-file <key file>" in shown[BESIDE]
    assert "--id <id> --gone-after 90 --key-file <key file>" in shown["relay-bob"]
    assert "--pair-dial 127.0.0.1:<port>" in shown["relay-bob"]
    alone = dataclasses.replace(site, pairings={})
    assert BESIDE not in {command.name for command in commands(PLAN, alone)}
