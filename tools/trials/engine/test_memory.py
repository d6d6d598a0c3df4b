"""The engine's memory estimate of a plan against what a real load takes.

Every case runs on the first pinned engine, and some on the other. With
``DLLM_TEST_MEMORY=all`` every case runs on both, and every figure is printed.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from backends.engine.argv import server_argv
from backends.engine.fit_params import MemoryAsker, MemoryQuestion
from backends.engine.install import find_engine
from backends.engine.logs import LoadLog
from backends.models.layers import read_model
from backends.paths import relay_binary, user_paths
from backends.split.device_memory import plan_loads
from backends.split.experts import CPU_BUFFER, override_tensor
from backends.split.layout import even_counts, make_split
from backends.state import (
    DeviceMemory,
    EngineInfo,
    FlashAttention,
    LayerRange,
    Plan,
    ServerSettings,
)
from tests.engine.conftest import wait_for
from tests.kit.engines import flags_of
from tests.kit.models import write_llama
from tests.native.stock import engine as pinned_engine
from tests.native.stock import free_port, start, start_worker

pytestmark = [pytest.mark.trial, pytest.mark.engine]
MIB = 1 << 20
SHAPES = {"dense": {}, "moe": {"n_expert": 4}, "tied": {"tied": True}}
N_LAYER = 6
EVERYTHING = os.environ.get("DLLM_TEST_MEMORY") == "all"
FIRST, OTHER = "7.0.0", "8.0.0"
LOADS = [
    (version, kind, ctx_size, n_workers)
    for version in (FIRST, OTHER)
    for kind in SHAPES
    for ctx_size in (2048, 8192)
    for n_workers in (1, 2, 3)
    if EVERYTHING or version == FIRST or (ctx_size, n_workers) == (8192, 3)
]
PLAIN = ServerSettings()


class Parts(NamedTuple):
    model: int
    kv: int
    compute: int


@pytest.fixture(scope="module")
def engine(request: pytest.FixtureRequest) -> EngineInfo:
    location = find_engine(str(pinned_engine(request.param)), user_paths())
    assert location.fit_path, "run: make engines"
    return location


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    for kind, shape in SHAPES.items():
        write_llama(
            folder / f"{kind}.gguf",
            n_layer=N_LAYER,
            n_embd=256,
            n_ff=768,
            n_ctx=32_768,
            n_vocab=32_000,
            **shape,  # type: ignore[arg-type]
        )
    return {kind: folder / f"{kind}.gguf" for kind in SHAPES}


@pytest.fixture(scope="module")
def workers(
    engine: EngineInfo, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[int, ...]]:
    folder = tmp_path_factory.mktemp("workers")
    with ExitStack() as stack:
        yield tuple(
            start_worker(stack, Path(engine.directory), folder / f"{i}.log")
            for i in range(3)
        )


def loaded(argv: Sequence[str], log_file: Path) -> LoadLog:
    """The log of a llama-server that was started, loaded its model, and was ended."""
    with ExitStack() as stack:
        server = start(stack, list(argv), log_file)
        wait_for(lambda: ready(server, log_file), "the model is loaded")
        log = LoadLog()
        log.feed(log_file.read_text(errors="replace"))
        return log


def ready(server: subprocess.Popen[bytes], log_file: Path) -> bool:
    log = LoadLog()
    text = log_file.read_text(errors="replace")
    log.feed(text)
    assert server.poll() is None, text[-2000:]
    return log.ready


def buffers(log: LoadLog, ports: Sequence[int]) -> dict[str, Parts]:
    """Bytes by device id, everything that is no worker's being the head's CPU."""
    found: dict[str, dict[str, int]] = {}
    for (name, kind), size in log.buffers.items():
        owners = (f"w{i}/CPU" for i, p in enumerate(ports) if name.endswith(f":{p}]"))
        sizes = found.setdefault(next(owners, "local/CPU"), {})
        sizes[kind] = sizes.get(kind, 0) + size
    return {
        device: Parts(s.get("model", 0), s.get("kv", 0), s.get("compute", 0))
        for device, s in found.items()
    }


def assert_close(memory: Sequence[DeviceMemory], truth: Mapping[str, Parts]) -> None:
    """Within 1 % or 16 MiB, per device and part."""
    assert {m.device for m in memory} >= set(truth)
    for device in memory:
        told = Parts(device.model_bytes, device.kv_bytes, device.compute_bytes)
        for part, said, true in zip(
            Parts._fields, told, truth.get(device.device, Parts(0, 0, 0)), strict=True
        ):
            if EVERYTHING:
                print(f"{device.source} {device.device} {part}: {said} for {true}")
            allowed = max(true // 100, 16 * MIB)
            assert abs(said - true) <= allowed, (device.device, part, said, true)


@pytest.mark.parametrize(
    ("engine", "kind", "ctx_size", "n_workers"), LOADS, indirect=["engine"]
)
async def test_what_the_engine_says_is_what_a_load_takes(
    trial: Trial, kind: str, ctx_size: int, n_workers: int
) -> None:
    await trial.holds(kind, even_counts(N_LAYER, n_workers), ctx_size)


@pytest.mark.parametrize("engine", [FIRST, OTHER], indirect=True)
@pytest.mark.parametrize("counts", [(), (4,), (3, 2), (3, 3, 1)])
async def test_it_is_so_with_layers_on_the_head_and_with_the_output_alone(
    trial: Trial, counts: tuple[int, ...]
) -> None:
    await trial.holds("tied", counts, 2048)


@pytest.mark.parametrize("engine", [FIRST, OTHER], indirect=True)
@pytest.mark.parametrize("counts", [(4, 3), (3, 2)])
async def test_it_is_so_with_experts_elsewhere(
    trial: Trial, counts: tuple[int, ...]
) -> None:
    """From a worker to the head and to another worker; 4.5 MiB a layer."""
    moved = (LayerRange("local/CPU", 2, 3), LayerRange("w0/CPU", 5, 5))
    there = await trial.holds("moe", counts, 2048, PLAIN, moved)
    plain = await trial.holds("moe", counts, 2048)
    more = {name: there[name].model - plain[name].model for name in plain}
    assert more["local/CPU"] > 8 * MIB
    assert more["w0/CPU"] + more["w1/CPU"] < -8 * MIB


@pytest.mark.parametrize("engine", [FIRST], indirect=True)
@pytest.mark.parametrize(
    "server",
    [
        ServerSettings(cache_type_k="q8_0", cache_type_v="q4_0"),
        ServerSettings(cache_type_k="f32", cache_type_v="q5_1", slots=3),
        ServerSettings(cache_type_k="q8_0", flash_attention=FlashAttention.OFF),
    ],
)
async def test_with_other_settings_too(trial: Trial, server: ServerSettings) -> None:
    truth = await trial.holds("dense", (4, 3), 32_768, server)
    plain = await trial.told("dense", (4, 3), 32_768, ServerSettings())
    was = next(memory for memory in plain if memory.device == "w0/CPU")
    # The figures are large enough that one type taken for another would show.
    now = truth["w0/CPU"]
    assert abs(now.kv + now.compute - was.kv_bytes - was.compute_bytes) > 32 * MIB


class Trial(NamedTuple):
    """One engine, its workers and some models."""

    engine: EngineInfo
    models: Mapping[str, Path]
    ports: tuple[int, ...]
    folder: Path

    async def holds(
        self,
        kind: str,
        counts: tuple[int, ...],
        ctx_size: int,
        server: ServerSettings = PLAIN,
        experts: tuple[LayerRange, ...] = (),
    ) -> Mapping[str, Parts]:
        asked = (kind, counts, ctx_size, server, experts)
        argv = await self._argv(self._question(*asked))
        truth = buffers(loaded(argv, self.folder / "log"), self.ports)
        assert_close(await self.told(*asked), truth)
        self._check_prediction(self._question(*asked), truth)
        return truth

    async def told(
        self,
        kind: str,
        counts: tuple[int, ...],
        ctx_size: int,
        server: ServerSettings,
        experts: tuple[LayerRange, ...] = (),
    ) -> Sequence[DeviceMemory]:
        question = self._question(kind, counts, ctx_size, server, experts)
        asker = MemoryAsker(self.folder / "kept", relay_binary)
        return await asker.ask(self.engine, self.engine.rpc_protocol, question)

    def _question(
        self,
        kind: str,
        counts: tuple[int, ...],
        ctx_size: int,
        server: ServerSettings,
        experts: tuple[LayerRange, ...],
    ) -> MemoryQuestion:
        return MemoryQuestion(
            files=(str(self.models[kind]),),
            head_cpu="local/CPU",
            device_ids=tuple(f"w{i}/CPU" for i in range(len(counts))),
            tensor_split=counts,
            head_layers=N_LAYER + 1 - sum(counts),
            ctx_size=ctx_size,
            server=server,
            experts=experts,
        )

    def _check_prediction(
        self, question: MemoryQuestion, truth: Mapping[str, Parts]
    ) -> None:
        """Our own arithmetic is near; it is what is shown while a boundary moves."""
        split = make_split(
            N_LAYER,
            [question.head_cpu, *question.device_ids],
            [question.head_layers, *question.tensor_split],
        )
        model = read_model(Path(question.files[0]))
        plan = Plan(
            model=model.path,
            split=split,
            ctx_size=question.ctx_size,
            server=question.server,
            experts=question.experts,
        )
        loads = plan_loads(model, plan)
        assert_close([load.memory for load in loads], truth)

    async def _argv(self, question: MemoryQuestion) -> tuple[str, ...]:
        ports = dict(zip(question.device_ids, self.ports, strict=False))
        buffers_of = {d: f"RPC0[127.0.0.1:{port}]" for d, port in ports.items()}
        return server_argv(
            self.engine,
            await flags_of(self.engine),
            model=question.files[0],
            rpc_endpoints=[f"127.0.0.1:{port}" for port in ports.values()],
            device_names=[f"RPC{i}" for i in range(len(ports))],
            n_gpu_layers=sum(question.tensor_split),
            tensor_split=question.tensor_split,
            overrides=override_tensor(
                question.experts, {question.head_cpu: CPU_BUFFER} | buffers_of
            ),
            ctx_size=question.ctx_size,
            server=question.server,
            port=free_port(),
            verbosity=4,
            extra=("--no-warmup",),
        )


@pytest.fixture
def trial(
    engine: EngineInfo,
    models: Mapping[str, Path],
    workers: tuple[int, ...],
    tmp_path: Path,
) -> Trial:
    return Trial(engine, models, workers, tmp_path)
