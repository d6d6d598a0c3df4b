"""The workers that get a relay beside them, why, and with which keys."""

from __future__ import annotations

import pytest

from backends.direct_address import DirectAddress
from backends.planning.blueprint import needed_names
from backends.planning.relay_pairs import (
    CAN_COMPRESS,
    CAN_SEAL,
    PairEnd,
    Pairing,
    alone_by_plan,
    pairing_of,
)
from backends.split.layout import make_split
from backends.state import PairMode, Plan, WorkerSpec

ALL = (CAN_SEAL, CAN_COMPRESS)
DATA = DirectAddress(address="10.0.0.7")
SECRET = "5a" * 32
OWN = WorkerSpec(name="worker1")
BOB = WorkerSpec(name="bob", peer="bob")
BARE = WorkerSpec(name="box", peer="box", endpoint="10.0.0.3:50052")


def plan(mode: PairMode = PairMode.AUTO, *, relay: bool = True) -> Plan:
    workers = (OWN, BOB, BARE)
    devices = [worker.device_ids[0] for worker in workers]
    split = make_split(2, devices, [1, 1, 1])
    return Plan(model="/m.gguf", split=split, workers=workers, pair=mode, relay=relay)


@pytest.mark.parametrize(
    ("mode", "beside"),
    [
        (PairMode.AUTO, {"worker-relay-bob": "bob"}),
        (PairMode.ALWAYS, {"worker-relay-worker1": "local", "worker-relay-bob": "bob"}),
        (PairMode.NEVER, {}),
    ],
)
def test_which_workers_a_plan_pairs(mode: PairMode, beside: dict[str, str]) -> None:
    def relays(of: Plan) -> dict[str, str]:
        needed = needed_names(of)
        return {n: m for n, m in needed.items() if n.startswith("worker-relay-")}

    assert relays(plan(mode)) == beside
    assert relays(plan(mode, relay=False)) == {}


def test_every_worker_alone_has_a_reason() -> None:
    def why(worker: WorkerSpec, mode: PairMode = PairMode.AUTO) -> str:
        return alone_by_plan(plan(mode), worker)

    assert why(OWN) == "no network in between"
    assert why(BOB, PairMode.NEVER) == "pairs are turned off (pair = never)"
    for mode in PairMode:
        assert why(BARE, mode).startswith("somebody else started its rpc-server")
    assert why(BOB) == why(OWN, PairMode.ALWAYS) == ""


def pairing(
    there: tuple[str, ...] = ALL,
    models: tuple[str, ...] = ("/models/m.gguf",),
    secret: str = SECRET,
    worker: WorkerSpec = BOB,
    head: str = "local",
) -> Pairing:
    beside = PairEnd(
        machine="bob",
        program="/bin/relay",
        features=there,
        models=models,
        searched=" in ~/.models",
        data=DATA,
    )
    found = pairing_of(beside, PairEnd(machine=head, features=ALL))
    return found.keyed(worker.name, secret) if found.paired else found


def test_a_pair_keeps_weights_at_home_and_has_a_key() -> None:
    found = pairing()
    assert found.paired
    assert found.models == ("/models/m.gguf",)
    assert found.why == "bob has the model on disk: weights that are equal stay there"
    assert len(bytes.fromhex(found.key)) == 32
    assert len(bytes.fromhex(found.identity)) == 16
    assert pairing(models=()).why == (
        "bob has no copy of the model in ~/.models: its weights cross"
    )


def test_data_go_directly_between_machines() -> None:
    assert pairing().data == DATA
    assert pairing(head="bob").data == DirectAddress(), "nothing lies between"


def test_keys_differ_by_launch_and_by_link_and_come_again() -> None:
    other = WorkerSpec(name="bob-CPU", peer="bob")
    keys = {
        pairing().key,
        pairing(secret="5b" * 32).key,
        pairing(worker=other).key,
        pairing().identity,
    }
    assert len(keys) == 4
    assert pairing() == pairing()
    assert pairing().key not in repr(pairing())


def test_a_helper_without_zstd_is_said() -> None:
    plain = pairing(there=(CAN_SEAL,))
    assert plain.paired
    assert plain.why.endswith(
        "; not compressed, for dllm-relay on bob was built without zstd"
    )
    assert "zstd" not in pairing().why


def test_without_tls_no_relay_stands_beside_a_worker() -> None:
    """Every user of its machine could dial that, and read files of ours."""
    unsealed = pairing(there=())
    assert not unsealed.paired
    assert unsealed.why == (
        "dllm-relay on bob was built without TLS, which a pair needs: install OpenSSL's"
        " headers there (Debian: libssl-dev), then dllm-tui peers setup bob"
    )
