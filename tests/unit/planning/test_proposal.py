"""Which devices take part in a plan, in which order, with how much; or why not."""

from __future__ import annotations

from typing import Any

import pytest

from backends.config import Config, PeerConfig
from backends.errors import PlanError
from backends.state import Peer, PeerState
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

STUDIO = here(device("local", "CPU", 64 * GIB), device("local", "MTL0", 55 * GIB))
MINI = peer("mini", device("mini", "CPU"), device("mini", "MTL0", 12 * GIB))
SMALL_GPU = here(device("local", "CPU", 4 * GIB), device("local", "CUDA0", GIB))
ASKING = peer("ada", "CPU", state=PeerState.ASKING)
BIG = model_of(100 * MIB)
ALONE = {"local/CPU": 13}
GPU_ALONE = {"local/CPU": 0, "local/CUDA0": 13}
OWN_TWO = {"local/CPU": 0, "worker1/CPU": 6, "worker2/CPU": 7}


@pytest.mark.parametrize(
    ("machines", "asked", "expected"),
    [
        # CPU workers here are for trying things, never proposed beside a GPU.
        ([PLAIN], {}, OWN_TWO),
        ([PLAIN, AWAY], {}, OWN_TWO),
        ([PLAIN, ASKING], {}, OWN_TWO),
        ([WITH_GPU], {}, GPU_ALONE),
        (
            [WITH_GPU],
            {"workers": 1},
            {"local/CPU": 0, "worker1/CPU": 6, "local/CUDA0": 7},
        ),
        # 82 to 18 where the head has 55 GiB and the other machine 12.
        (
            [STUDIO, MINI, AWAY],
            {},
            {"local/CPU": 0, "mini/MTL0": 2, "local/MTL0": 11},
        ),
        # Thirteen parts of 100 MiB on a GPU of 1 GiB: the head's CPU has the rest.
        ([SMALL_GPU], {"model": BIG}, {"local/CPU": 3, "local/CUDA0": 10}),
        ([SMALL_GPU], {"model": BIG, "exclude": ("local/CPU",)}, {"local/CUDA0": 13}),
        ([WITH_GPU, ADA], {"head": "ada"}, {"ada/CPU": 0, "local/CUDA0": 13}),
        # Nothing of this machine is put between: that would be the slowest of all.
        ([PLAIN, ADA], {"head": "ada", "peers": ("ada",)}, {"ada/CPU": 13}),
        ([PLAIN, ADA, BOB], {"workers": 0}, ALONE),
        ([WITH_GPU, ADA, BOB], {"workers": 0}, GPU_ALONE),
        # The server of a bare peer has a device that is excluded all the same.
        (
            [PLAIN, BARE],
            {"exclude": ("box/RPC0",)},
            {"local/CPU": 0, "box/RPC1": 13},
        ),
        # Counts follow the order of the plan; the head's CPU may be left out.
        (
            [WITH_GPU, ADA],
            {"counts": (2, 11)},
            {"local/CPU": 0, "ada/CPU": 2, "local/CUDA0": 11},
        ),
        (
            [WITH_GPU, ADA],
            {"counts": (1, 2, 10)},
            {"local/CPU": 1, "ada/CPU": 2, "local/CUDA0": 10},
        ),
        ([PLAIN], {"workers": 0, "counts": (13,)}, ALONE),
        (
            [PLAIN],
            {"counts": (4, 4, 5)},
            {"local/CPU": 0, "worker1/CPU": 4, "worker2/CPU": 4, "worker3/CPU": 5},
        ),
        (
            [WITH_GPU, ADA],
            {"split": {"local/CUDA0": 10, "ada/CPU": 3}},
            {"local/CPU": 0, "ada/CPU": 3, "local/CUDA0": 10},
        ),
        # Only machines the split names take part, with all their accelerators.
        (
            [WITH_GPU, ADA, BOB],
            {"split": {"bob/CUDA1": 13}},
            {"local/CPU": 0, "bob/CUDA0": 0, "bob/CUDA1": 13, "local/CUDA0": 0},
        ),
        # A CPU beside accelerators works where it is named.
        (
            [PLAIN, BOB],
            {"split": {"bob/CPU": 3, "bob/CUDA0": 10}},
            {"local/CPU": 0, "bob/CPU": 3, "bob/CUDA0": 10, "bob/CUDA1": 0},
        ),
        (
            [WITH_GPU],
            {"split": {"worker2/CPU": 3, "local/CUDA0": 10}},
            {"local/CPU": 0, "worker1/CPU": 0, "worker2/CPU": 3, "local/CUDA0": 10},
        ),
    ],
)
def test_the_layers_of_each_device(
    machines: list[Peer], asked: dict[str, Any], expected: dict[str, int]
) -> None:
    found = shares(plan_for(*machines, **asked))
    assert found == expected
    assert list(found) == list(expected)


@pytest.mark.parametrize(
    ("machines", "asked", "workers", "devices"),
    [
        (
            [PLAIN, ADA, BOB, AWAY],
            {},
            ["ada", "bob-CUDA0", "bob-CUDA1"],
            ["local/CPU", "ada/CPU", "bob/CUDA0", "bob/CUDA1"],
        ),
        (
            [PLAIN, ADA, BOB],
            {"head": "ada", "workers": 1},
            ["worker1"],
            ["ada/CPU", "worker1/CPU"],
        ),
        # The devices of a head that is named as a peer, too, take part once.
        (
            [PLAIN, ADA, BOB],
            {"head": "bob", "peers": ("ada", "bob")},
            ["ada"],
            ["bob/CPU", "ada/CPU", "bob/CUDA0", "bob/CUDA1"],
        ),
        (
            [PLAIN, ADA, BOB],
            {"peers": ("bob", "ada"), "counts": (5, 4, 4)},
            ["bob-CUDA0", "bob-CUDA1", "ada"],
            ["local/CPU", "bob/CUDA0", "bob/CUDA1", "ada/CPU"],
        ),
        ([PLAIN, BARE], {}, ["box"], ["local/CPU", "box/RPC0", "box/RPC1"]),
        (
            [WITH_GPU, BOB],
            {"exclude": ("bob/CUDA0", "local/CUDA0")},
            ["bob"],
            ["local/CPU", "bob/CUDA1"],
        ),
        # Without its accelerators a machine computes on its CPU.
        (
            [PLAIN, BOB],
            {"exclude": ("bob/CUDA0", "bob/CUDA1")},
            ["bob"],
            ["local/CPU", "bob/CPU"],
        ),
    ],
)
def test_workers_and_the_order_of_devices(
    machines: list[Peer],
    asked: dict[str, Any],
    workers: list[str],
    devices: list[str],
) -> None:
    plan = plan_for(*machines, **asked)
    assert [worker.name for worker in plan.workers] == workers
    assert list(shares(plan)) == devices
    assert plan.head == asked.get("head", "local")


def test_workers_on_a_cpu_share_cores_or_have_the_performance_cores() -> None:
    assert [worker.threads for worker in plan_for(PLAIN).workers] == [4, 4]
    assert [w.threads for w in plan_for(PLAIN, ADA, BOB).workers] == [6, None, None]
    config = Config(peers={"ada": PeerConfig(ssh="ada", threads=3)})
    assert plan_for(PLAIN, ADA, config=config).workers[0].threads == 3


def test_a_bare_peer_is_one_worker_with_all_its_devices() -> None:
    (worker,) = plan_for(PLAIN, BARE, exclude=("box/RPC0",)).workers
    assert worker.endpoint == "10.0.0.3:50052"
    assert worker.devices == ("RPC0", "RPC1")


def test_the_context_stays_within_the_training_unless_asked() -> None:
    assert plan_for(PLAIN).ctx_size == 1024
    assert plan_for(PLAIN, ctx_size=8192).ctx_size == 8192


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"ctx_size": -5}, "context of -5 tokens is too small"),
        ({"ctx_size": 0}, "context of 0 tokens is too small"),
        ({"ctx_size": 2_000_000_000}, "trained for 1024. At most 8192"),
        ({"workers": -1}, "-1 workers"),
        ({"workers": 17}, "17 workers"),
        ({"api_port": 0}, "0 as port"),
        ({"api_port": 65536}, "65536 as port"),
        ({"counts": (-1, 14)}, "negative share"),
        ({"exclude": ("ada/CPU",), "counts": (0,) * 17 + (13,)}, "18 workers"),
        ({"split": {"worker1/CPU": 14, "worker2/CPU": -1}}, "negative share"),
        ({"counts": (13,), "split": {"local/CPU": 13}}, "twice"),
        ({"workers": 2, "counts": (4, 4, 4, 1)}, "4 shares for 2 devices"),
        ({"workers": 2, "counts": (4, 4, 4, 1)}, "worker1/CPU, worker2/CPU"),
        ({"peers": ("cy",)}, "cy cannot take part now: it is unreachable"),
        ({"peers": ("dan",)}, "no peer dan"),
        ({"workers": 0, "exclude": ("local/CPU",)}, "No device is left"),
        ({"exclude": ("ada/CUDA0",)}, "no device ada/CUDA0 to exclude"),
        (
            {"split": {"mini/MTL0": 13}},
            "There is no peer mini. Known: local, ada, cy. Add it",
        ),
        (
            {"split": {"worker1/cpu": 6, "worker2/CPU": 7}},
            "Did you mean worker1/CPU? It has",
        ),
        (
            {"split": {"ada/cpu": 13}},
            "no device ada/cpu. Did you mean ada/CPU? It has local/CPU",
        ),
        (
            {"split": {"worker1": 13}},
            "no device worker1. Did you mean worker1/CPU? It has",
        ),
        (
            {"split": {"ada/CUDA7": 13}},
            "no device ada/CUDA7. It has local/CPU, ada/CPU",
        ),
        (
            {"peers": ("ada",), "split": {"studio/MTL0": 13}},
            "no device studio/MTL0. It has local/CPU, ada/CPU",
        ),
        # It is told as it was typed.
        (
            {"split": {"local/CPU": 9, "ada/CPU": 3}},
            "The split local/CPU=9,ada/CPU=3 sums to 12, but the model has 12 layers",
        ),
    ],
)
def test_what_cannot_be_meant_is_told_with_what_can(
    asked: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(PlanError) as refused:
        plan_for(PLAIN, ADA, AWAY, **asked)
    assert sentence in str(refused.value)
