"""A first plan for a model."""

from __future__ import annotations

import pytest

from backends.config import Config, PeerConfig
from backends.controller.proposal import ProposalRequest, propose
from backends.errors import PlanError
from backends.split.layout import counts, devices
from backends.state import (
    Device,
    DeviceKind,
    Layer,
    ModelInfo,
    Peer,
    PeerFacts,
    PeerState,
    Plan,
    Transport,
)

MODEL = ModelInfo(
    path="/m.gguf",
    arch="llama",
    n_layer=12,
    n_embd=8,
    n_vocab=8,
    n_ctx_train=1024,
    layers=tuple(Layer(index=i, bytes=1000) for i in range(12)),
    output_bytes=1000,
)
CPU = Device(
    id="local/CPU",
    name="CPU",
    kind=DeviceKind.CPU,
    free_bytes=1 << 30,
    memory_pool="local",
)
GPU = Device(id="local/CUDA0", name="CUDA0", kind=DeviceKind.CUDA, free_bytes=1 << 30)
HERE = Peer(name="local", devices=(CPU, GPU))


def plan_for(
    request: ProposalRequest, config: Config | None = None, peers: tuple[Peer, ...] = ()
) -> Plan:
    return propose(request, MODEL, config or Config(), [HERE, *peers], cores=8)


def test_configured_workers_share_cores_and_layers() -> None:
    plan = plan_for(ProposalRequest(model="/m.gguf"))
    assert [worker.threads for worker in plan.workers] == [4, 4]
    assert counts(plan.split) in ((0, 6, 7, 0), (0, 7, 6, 0))
    assert devices(plan.split)[0] == "local/CPU"
    assert devices(plan.split)[-1] == "local/CUDA0"


def test_counts_tell_how_many_workers() -> None:
    plan = plan_for(ProposalRequest(model="/m.gguf", counts=(4, 4, 5)))
    assert counts(plan.split) == (0, 4, 4, 5, 0)
    assert len(plan.workers) == 3


def test_the_context_stays_within_the_training() -> None:
    assert plan_for(ProposalRequest(model="/m.gguf")).ctx_size == 1024
    asked = plan_for(ProposalRequest(model="/m.gguf", ctx_size=2048))
    assert asked.ctx_size == 2048


def test_workers_and_counts_must_agree() -> None:
    with pytest.raises(PlanError, match="3 shares for 2"):
        plan_for(ProposalRequest(model="/m.gguf", workers=2, counts=(4, 4, 5)))


def test_too_many_workers_are_refused() -> None:
    with pytest.raises(PlanError, match="17 workers"):
        plan_for(ProposalRequest(model="/m.gguf", workers=17))


def peer(name: str, *names: str, state: PeerState = PeerState.READY) -> Peer:
    return Peer(
        name=name,
        state=state,
        transport=Transport.SSH,
        facts=PeerFacts(at=0, performance_cores=6),
        devices=tuple(
            Device(
                id=f"{name}/{device}",
                name=device,
                kind=DeviceKind.CPU if device == "CPU" else DeviceKind.CUDA,
                free_bytes=1 << 30,
            )
            for device in names
        ),
    )


ADA = peer("ada", "CPU")
BOB = peer("bob", "CPU", "CUDA0", "CUDA1")
AWAY = peer("cy", "CPU", state=PeerState.UNREACHABLE)


def test_ready_peers_take_part_and_this_machine_leads() -> None:
    plan = plan_for(ProposalRequest(model="/m.gguf"), peers=(ADA, BOB, AWAY))
    assert [w.name for w in plan.workers] == ["ada", "bob-CUDA0", "bob-CUDA1"]
    assert plan.head == "local"
    assert plan.workers[0].threads == 6, "performance cores"
    assert plan.workers[1].threads is None, "a GPU worker is left alone"
    assert devices(plan.split)[:3] == ("local/CPU", "ada/CPU", "bob-CUDA0/CUDA0")


def test_the_threads_of_the_settings_come_first() -> None:
    config = Config(peers={"ada": PeerConfig(ssh="ada", threads=3)})
    plan = plan_for(ProposalRequest(model="/m.gguf"), config, (ADA,))
    assert plan.workers[0].threads == 3


def test_a_peer_can_lead() -> None:
    request = ProposalRequest(model="/m.gguf", head="ada", workers=1)
    plan = plan_for(request, peers=(ADA, BOB))
    assert plan.head == "ada"
    assert [w.peer for w in plan.workers] == ["local"]
    assert devices(plan.split) == ("ada/CPU", "worker1/CPU")


def test_a_worker_beside_the_head_has_a_name_of_its_own() -> None:
    request = ProposalRequest(model="/m.gguf", head="ada", peers=("ada", "bob"))
    plan = plan_for(request, peers=(ADA, BOB))
    assert devices(plan.split)[:2] == ("ada/CPU", "ada-CPU/CPU")


def test_named_peers_keep_their_order() -> None:
    request = ProposalRequest(model="/m.gguf", peers=("bob", "ada"), counts=(5, 4, 4))
    plan = plan_for(request, peers=(ADA, BOB))
    assert [w.peer for w in plan.workers] == ["bob", "bob", "ada"]
    assert counts(plan.split) == (0, 5, 4, 4, 0)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("cy", "cy cannot take part now: it is unreachable"), ("dan", "no peer dan")],
)
def test_a_peer_that_cannot_is_named(name: str, sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence):
        plan_for(ProposalRequest(model="/m.gguf", peers=(name,)), peers=(ADA, AWAY))


def test_without_a_ready_peer_this_machine_works() -> None:
    plan = plan_for(ProposalRequest(model="/m.gguf"), peers=(AWAY,))
    assert [w.name for w in plan.workers] == ["worker1", "worker2"]


def test_a_bare_peer_is_reached_at_its_own_endpoint() -> None:
    rpc = Device(id="box/RPC", name="RPC", free_bytes=1 << 30)
    bare = Peer(
        name="box", transport=Transport.BARE, address="10.0.0.3:50052", devices=(rpc,)
    )
    plan = plan_for(ProposalRequest(model="/m.gguf"), peers=(bare,))
    assert plan.workers[0].endpoint == "10.0.0.3:50052"
    assert devices(plan.split)[1] == "box/RPC"
