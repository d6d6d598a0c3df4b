"""A first plan for a model."""

from __future__ import annotations

import pytest

from backends.config import Config
from backends.controller.proposal import ProposalRequest, propose
from backends.errors import PlanError
from backends.split.layout import counts, devices
from backends.state import Device, Layer, ModelInfo

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
CPU = Device(id="local/CPU", name="CPU", free_bytes=1 << 30, memory_pool="local")
GPU = Device(id="local/CUDA0", name="CUDA0", free_bytes=1 << 30)


def plan_for(request: ProposalRequest, config: Config | None = None):  # type: ignore[no-untyped-def]
    return propose(request, MODEL, config or Config(), [CPU, GPU], cores=8)


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
