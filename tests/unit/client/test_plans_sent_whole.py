"""A plan that nobody proposed is held to what a proposed one keeps to."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backends.client.calls import RequestFailed
from backends.client.client import ControllerClient
from backends.demo import MODEL_PATH
from backends.paths import Paths
from backends.planning.proposal import local_workers
from backends.split.layout import make_split
from backends.state import ClusterState, Plan, ServerSettings

DEVICES = ("local/CPU", "worker1/CPU", "worker2/CPU")
PLAN = Plan(
    model=str(MODEL_PATH),
    split=make_split(12, DEVICES, (0, 6, 7)),
    workers=local_workers(2, 1, 2),
    ctx_size=512,
)
ELSEWHERE = make_split(12, ("local/CPU", "worker1/CPU", "mini/MTL0"), (0, 6, 7))


async def test_it_is_refused_before_anything_is_touched(paths: Paths) -> None:
    client = ControllerClient(paths)
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"ctx_size": -5}, "context of -5"),
        ({"ctx_size": 10**9}, "too large"),
        ({"api_port": 70_000}, "70000 as port"),
        ({"workers": local_workers(17, 1, 2)}, "17 workers cannot be started"),
        ({"workers": local_workers(2, 5000, 2)}, "5000 threads"),
        ({"server": ServerSettings(slots=0)}, "0 slots"),
        ({"server": ServerSettings(cache_type_k="q9")}, "no KV cache type q9"),
        ({"extra_args": ("--port", "9")}, "the plan decides it"),
        ({"extra_args": ("-md", "draft.gguf")}, "not a whole path"),
        ({"extra_args": ("-np", "4")}, "hold a setting"),
        ({"split": make_split(11, DEVICES, (0, 6, 6))}, "the model has 12"),
        ({"split": ELSEWHERE}, "no device mini/MTL0"),
    )
    for changes, why in wrong:
        plan = msgspec.structs.replace(PLAN, **changes)
        with pytest.raises(RequestFailed, match=why):
            await client.launch(plan)
    with pytest.raises(RequestFailed, match="no device mini/MTL0"):
        await client.prepare(msgspec.structs.replace(PLAN, split=ELSEWHERE))
    snapshot = await client.snapshot()
    assert snapshot.state is ClusterState.IDLE
    assert snapshot.plan is None
    await client.shutdown()
