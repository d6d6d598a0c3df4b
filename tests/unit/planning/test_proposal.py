"""Which devices take part in a plan, in which order, with how much."""

from __future__ import annotations

import pytest

from backends.config import Config, PeerConfig
from backends.errors import PlanError
from backends.split.layout import counts, devices
from backends.state import PeerState
from tests.unit.planning.machines import (
    ADA,
    AWAY,
    BARE,
    BOB,
    GIB,
    MIB,
    PLAIN,
    WITH_GPU,
    device,
    here,
    model_of,
    peer,
    plan_for,
    shares,
)


def test_configured_workers_share_cores_and_layers() -> None:
    plan = plan_for(PLAIN)
    assert [worker.threads for worker in plan.workers] == [4, 4]
    assert counts(plan.split) in ((0, 6, 7), (0, 7, 6))
    assert devices(plan.split)[0] == "local/CPU"


def test_a_gpu_of_the_head_needs_no_workers() -> None:
    """CPU workers here are for trying things, never proposed beside a GPU."""
    plan = plan_for(WITH_GPU)
    assert plan.workers == ()
    assert shares(plan) == {"local/CPU": 0, "local/CUDA0": 13}


def test_workers_asked_for_share_with_the_gpu() -> None:
    plan = plan_for(WITH_GPU, workers=1)
    assert list(shares(plan)) == ["local/CPU", "worker1/CPU", "local/CUDA0"]
    assert counts(plan.split) in ((0, 6, 7), (0, 7, 6))


def test_ready_peers_take_part_and_the_heads_gpu_has_the_output() -> None:
    """82 to 18 where the head has 55 GiB and the other machine 12."""
    studio = here(device("local", "CPU", 64 * GIB), device("local", "MTL0", 55 * GIB))
    mini = peer("mini", device("mini", "CPU"), device("mini", "MTL0", 12 * GIB))
    plan = plan_for(studio, mini, AWAY)
    assert shares(plan) == {"local/CPU": 0, "mini/MTL0": 2, "local/MTL0": 11}
    assert [w.name for w in plan.workers] == ["mini"]


def test_every_accelerator_of_a_machine_works() -> None:
    plan = plan_for(PLAIN, ADA, BOB, AWAY)
    assert [w.name for w in plan.workers] == ["ada", "bob-CUDA0", "bob-CUDA1"]
    assert plan.workers[0].threads == 6, "performance cores"
    assert plan.workers[1].threads is None, "a GPU worker is left alone"
    assert devices(plan.split) == ("local/CPU", "ada/CPU", "bob/CUDA0", "bob/CUDA1")
    assert all(count for count in counts(plan.split)[1:])


def test_the_heads_cpu_computes_only_what_nobody_else_holds() -> None:
    """Thirteen parts of 100 MiB on a GPU of 1 GiB: four stay on the head's CPU."""
    machine = here(device("local", "CPU", 4 * GIB), device("local", "CUDA0", GIB))
    plan = plan_for(machine, model=model_of(100 * MIB))
    assert shares(plan) == {"local/CPU": 3, "local/CUDA0": 10}


def test_the_threads_of_the_settings_come_first() -> None:
    config = Config(peers={"ada": PeerConfig(ssh="ada", threads=3)})
    assert plan_for(PLAIN, ADA, config=config).workers[0].threads == 3


def test_a_peer_can_lead() -> None:
    plan = plan_for(PLAIN, ADA, BOB, head="ada", workers=1)
    assert plan.head == "ada"
    assert [w.peer for w in plan.workers] == ["local"]
    assert devices(plan.split) == ("ada/CPU", "worker1/CPU")


def test_our_gpu_works_for_another_head() -> None:
    plan = plan_for(WITH_GPU, ADA, head="ada")
    (worker,) = plan.workers
    assert (worker.name, worker.peer, worker.devices) == (
        "local-CUDA0",
        "local",
        ("CUDA0",),
    )
    assert shares(plan) == {"ada/CPU": 0, "local/CUDA0": 13}


def test_naming_the_head_adds_no_worker_beside_it() -> None:
    """Its devices take part in any case, under one name each."""
    plan = plan_for(PLAIN, ADA, BOB, head="bob", peers=("ada", "bob"))
    assert list(shares(plan)) == ["bob/CPU", "ada/CPU", "bob/CUDA0", "bob/CUDA1"]
    assert [w.name for w in plan.workers] == ["ada"]


def test_named_peers_keep_their_order() -> None:
    plan = plan_for(PLAIN, ADA, BOB, peers=("bob", "ada"), counts=(5, 4, 4))
    assert [w.peer for w in plan.workers] == ["bob", "bob", "ada"]
    assert counts(plan.split) == (0, 5, 4, 4)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("cy", "cy cannot take part now: it is unreachable"), ("dan", "no peer dan")],
)
def test_a_peer_that_cannot_is_named(name: str, sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence):
        plan_for(PLAIN, ADA, AWAY, peers=(name,))


def test_without_a_ready_peer_this_machine_works() -> None:
    plan = plan_for(PLAIN, AWAY)
    assert [w.name for w in plan.workers] == ["worker1", "worker2"]


def test_a_bare_peer_is_one_worker_with_all_its_devices() -> None:
    plan = plan_for(PLAIN, BARE)
    (worker,) = plan.workers
    assert worker.endpoint == "10.0.0.3:50052"
    assert worker.devices == ("RPC0", "RPC1")
    assert list(shares(plan)) == ["local/CPU", "box/RPC0", "box/RPC1"]


def test_an_unready_machine_takes_no_part_unasked() -> None:
    asking = peer("ada", "CPU", state=PeerState.ASKING)
    assert [w.peer for w in plan_for(PLAIN, asking).workers] == ["local", "local"]


@pytest.mark.parametrize(
    ("machine", "wanted"),
    [
        (PLAIN, {"local/CPU": 13}),
        (WITH_GPU, {"local/CPU": 0, "local/CUDA0": 13}),
    ],
)
def test_the_head_alone(machine: object, wanted: dict[str, int]) -> None:
    plan = plan_for(machine, ADA, BOB, workers=0)  # type: ignore[arg-type]
    assert plan.workers == ()
    assert shares(plan) == wanted


def test_excluded_devices_take_no_part() -> None:
    plan = plan_for(WITH_GPU, BOB, exclude=("bob/CUDA0", "local/CUDA0"))
    assert [w.devices for w in plan.workers] == [("CUDA1",)]
    assert list(shares(plan)) == ["local/CPU", "bob/CUDA1"]


def test_without_its_accelerators_a_machine_computes_on_its_cpu() -> None:
    plan = plan_for(PLAIN, BOB, exclude=("bob/CUDA0", "bob/CUDA1"))
    assert list(shares(plan)) == ["local/CPU", "bob/CPU"]


def test_an_excluded_device_of_a_bare_peer_still_counts() -> None:
    """Its server has it all the same, and llama-server numbers it."""
    plan = plan_for(PLAIN, BARE, exclude=("box/RPC0",))
    assert plan.workers[0].devices == ("RPC0", "RPC1")
    assert shares(plan) == {"local/CPU": 0, "box/RPC1": 13}


def test_the_heads_cpu_can_be_excluded() -> None:
    """Then nothing overflows to it: what does not fit is refused at the launch."""
    machine = here(device("local", "CPU", 4 * GIB), device("local", "CUDA0", GIB))
    big = model_of(100 * MIB)
    assert shares(plan_for(machine, model=big, exclude=("local/CPU",))) == {
        "local/CUDA0": 13
    }
    with pytest.raises(PlanError, match="No device is left"):
        plan_for(PLAIN, workers=0, exclude=("local/CPU",))


def test_an_unknown_device_cannot_be_excluded() -> None:
    with pytest.raises(PlanError, match="no device ada/CUDA0 to exclude"):
        plan_for(PLAIN, ADA, exclude=("ada/CUDA0",))


def test_a_head_elsewhere_that_is_its_only_peer_works_alone() -> None:
    """Nothing of this machine is put between: that would be the slowest of all."""
    plan = plan_for(PLAIN, ADA, head="ada", peers=("ada",))
    assert plan.workers == ()
    assert sum(counts(plan.split)) == counts(plan.split)[0]
