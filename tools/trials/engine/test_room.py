"""A plan that is said to fit loads, and one that a worker has no room for is not."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from backends.engine.argv import server_argv
from backends.engine.fit_params import MemoryAsker, MemoryQuestion
from backends.engine.install import find_engine
from backends.engine.logs import LoadLog
from backends.models.layers import read_model
from backends.paths import relay_binary, user_paths
from backends.split.device_memory import (
    DeviceLoad,
    EngineFigures,
    device_loads,
    overcommitted,
)
from backends.split.layout import make_split
from backends.state import Device, EngineInfo, ServerSettings
from tests.engine.conftest import wait_for
from tests.kit.engines import flags_of
from tests.kit.models import write_llama
from tests.native.stock import engine as pinned_engine
from tests.native.stock import free_port, start, wait_for_port

pytestmark = [pytest.mark.trial, pytest.mark.engine]
N_LAYER = 24
CTX_SIZE = 8192
WORKER = "w0/CPU"
BOUNDARY = 0.02
KIB = 1024


@pytest.fixture(scope="module")
def engine() -> EngineInfo:
    return find_engine(str(pinned_engine("7.0.0")), user_paths())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Many small tensors: a worker holds one more while it is sent."""
    file = tmp_path_factory.mktemp("model") / "deep.gguf"
    write_llama(
        file,
        n_layer=N_LAYER,
        n_embd=512,
        n_ff=1536,
        n_ctx=CTX_SIZE,
        n_vocab=1024,
        repeating=True,
    )
    return file


@pytest.mark.parametrize("cache_type", ["f16", "q8_0"])
async def test_the_boundary_of_what_fits_is_that_of_what_loads(
    engine: EngineInfo, model: Path, tmp_path: Path, cache_type: str
) -> None:
    server = ServerSettings(cache_type_k=cache_type, cache_type_v=cache_type)
    question = MemoryQuestion(
        files=(str(model),),
        head_cpu="local/CPU",
        device_ids=(WORKER,),
        tensor_split=(N_LAYER + 1,),
        ctx_size=CTX_SIZE,
        server=server,
    )
    asker = MemoryAsker(tmp_path / "kept", relay_binary)
    answer = await asker.ask(engine, engine.rpc_protocol, question)
    needed = next(one.total_bytes for one in answer if one.device == WORKER)
    info = read_model(model)
    split = make_split(N_LAYER, ["local/CPU", WORKER], [0, N_LAYER + 1])
    told = EngineFigures(split=split, ctx_size=CTX_SIZE, memory=answer)
    alone = device_loads(info, split, CTX_SIZE, server=server)
    confirmed = device_loads(info, split, CTX_SIZE, server=server, told=(told,))
    flags = await flags_of(engine)

    def argv(port: int) -> tuple[str, ...]:
        return server_argv(
            engine,
            flags,
            model=str(model),
            rpc_endpoints=[f"127.0.0.1:{port}"],
            device_names=["RPC0"],
            n_gpu_layers=N_LAYER + 1,
            tensor_split=(N_LAYER + 1,),
            ctx_size=CTX_SIZE,
            server=server,
            port=free_port(),
            verbosity=4,
            extra=("--no-warmup",),
        )

    for room_part, is_enough in ((1 - BOUNDARY, False), (1 + BOUNDARY, True)):
        room = round(needed * room_part)
        with ExitStack() as stack:
            port = limited_worker(stack, engine, tmp_path / "worker.log", room)
            server_log = tmp_path / "server.log"
            assert loads(stack, argv(port), server_log) is is_enough
        assert fits(alone, room) is is_enough
        assert fits(confirmed, room) is is_enough


def fits(loads: Sequence[DeviceLoad], room: int) -> bool:
    return not overcommitted(loads, [Device(id=WORKER, name="CPU", free_bytes=room)])


def limited_worker(
    stack: ExitStack, engine: EngineInfo, log: Path, room_bytes: int
) -> int:
    """A worker that gets so much memory beyond what it has when it starts; its port."""
    port = free_port()
    options = ("-H", "127.0.0.1", "-p", str(port), "-t", "1")
    process = start(stack, [engine.worker_path, *options], log)
    wait_for_port(port)
    limit = held_bytes(process.pid) + room_bytes
    resource.prlimit(process.pid, resource.RLIMIT_DATA, (limit, limit))
    return port


def held_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kib = next(line.split()[1] for line in lines if line.startswith("VmData:"))
    return int(kib) * KIB


def loads(stack: ExitStack, argv: Sequence[str], log_file: Path) -> bool:
    """True if a llama-server has loaded its model; false if it gave up."""
    server: subprocess.Popen[bytes] = start(stack, list(argv), log_file)

    def is_ready() -> bool:
        log = LoadLog()
        log.feed(log_file.read_text(errors="replace"))
        return log.ready

    wait_for(lambda: is_ready() or server.poll() is not None, "a load or its end")
    return is_ready()
