"""Fixed, realistic snapshots: the homelab of the design, and two local workers."""

from __future__ import annotations

from msgspec.structs import replace

from backends.split import tensor_parallel
from backends.split.cost import forecast, workload
from backends.split.device_memory import device_loads
from backends.split.layout import counts, make_split, ranges
from backends.state import (
    Alternative,
    ClusterSnapshot,
    ClusterSpeeds,
    ClusterState,
    Device,
    DeviceKind,
    DeviceMemory,
    DeviceSpeed,
    EngineInfo,
    EngineSource,
    Failure,
    Layer,
    Link,
    LinkSpeed,
    MeasuredSplit,
    MemorySource,
    ModelInfo,
    Objective,
    Peer,
    PeerRole,
    PeerState,
    Plan,
    ProcessInfo,
    ProcessRole,
    ProcessState,
    Speed,
    Step,
    StepState,
    WorkerSpec,
)
from tests.tui.links import BOX as BOX_LINK
from tests.tui.links import MINI as MINI_LINK

GIB = 1024**3
MIB = 1024**2
NOW = 1_760_000_000.0
URL = "http://127.0.0.1:8090/v1"


# --- the homelab ---------------------------------------------------------------

GLM = ModelInfo(
    path="/models/GLM-4.7-Flash-Q4_K_M.gguf",
    name="GLM-4.7-Flash",
    arch="deepseek2",
    file_type="Q4_K - Medium",
    size_bytes=int(16.9 * GIB),
    n_layer=47,
    n_embd=2048,
    n_vocab=154_880,
    n_ctx_train=202_752,
    has_chat_template=True,
    layers=tuple(
        Layer(index=i, bytes=int(0.353 * GIB), kv_bytes_per_token=2500)
        for i in range(47)
    ),
    output_bytes=int(0.31 * GIB),
    embedding_bytes=int(0.31 * GIB),
)


def device(device_id: str, about: str, total_gib: int, free_gib: float) -> Device:
    name = device_id.partition("/")[2]
    kinds = {"CPU": DeviceKind.CPU, "MTL": DeviceKind.METAL, "CUDA": DeviceKind.CUDA}
    return Device(
        id=device_id,
        name=name,
        kind=kinds.get(name.rstrip("01"), DeviceKind.OTHER),
        description=about,
        total_bytes=total_gib * GIB,
        free_bytes=int(free_gib * GIB),
    )


STUDIO = device("studio/MTL0", "Apple M2 Max", 64, 55)
MINI = device("mini/MTL0", "Apple M2", 16, 12)
BOX = device("box/CUDA0", "NVIDIA RTX 3060", 12, 11.4)


def homelab_peers(state: PeerState = PeerState.READY) -> tuple[Peer, ...]:
    """Three machines that answer and one that does not."""
    head = Peer(name="studio", role=PeerRole.HEAD, state=state, devices=(STUDIO,))
    worker = Peer(name="", role=PeerRole.WORKER, state=state, transport="ssh")
    gone = Peer(name="nuc", state=PeerState.UNREACHABLE, transport="ssh")
    return (
        head,
        replace(worker, name="mini", rtt_ms=3.1, devices=(MINI,)),
        replace(worker, name="box", rtt_ms=0.4, devices=(BOX,)),
        replace(gone, note="no answer for 2 m"),
    )


def pace(plan: Plan) -> ClusterSpeeds:
    """Each device slower than the one before, and 3 ms to each worker and back."""
    covariance = (0.05, *(0.0,) * 35)
    return ClusterSpeeds(
        head=DeviceSpeed(
            device="head", ms=(0, 0, 0, 0, 0, 1.5), covariance=(0.0,) * 36
        ),
        devices=tuple(
            DeviceSpeed(
                device=share.device,
                ms=(2.0 + index, 0.0, 3.0, 0.05, 0.02, 0.2),
                covariance=covariance,
            )
            for index, share in enumerate(plan.split.shares)
        ),
        links=tuple(
            LinkSpeed(worker=one.name, rtt_ms=3.0, rtt_sd_ms=0.2)
            for one in plan.workers
        ),
    )


def bests(plan: Plan) -> tuple[Alternative, ...]:
    """The plan, the best splits of the homelab, and others."""
    ids = tuple(share.device for share in plan.split.shares)
    fastest = _alternative(plan, "whole layers, most tok/s", ids, (48, 0, 0))
    first = _alternative(plan, "whole layers, first token", ids, (40, 0, 8))
    longest = _alternative(plan, "whole layers, longest context", ids, (30, 6, 12))
    mini = replace(plan, head="mini", workers=())
    faster = _alternative(plan, "with 2.5 GbE links", ids, (20, 14, 14))
    return (
        _alternative(plan, "as it is", ids, counts(plan.split)),
        replace(fastest, objectives=(Objective.DECODE, Objective.NETWORK)),
        replace(first, objectives=(Objective.FIRST_TOKEN,)),
        replace(longest, ctx_size=65536, objectives=(Objective.CONTEXT,)),
        _alternative(plan, "solo on studio/MTL0", ids[:1], (48,)),
        Alternative(name="solo on mini/MTL0", head="mini", why="does not fit"),
        _alternative(plan, "without mini", (ids[0], ids[2]), (30, 18)),
        replace(faster, imagined=True),
        _alternative(mini, "solo on box/CUDA0", ids[2:], (48,)),
        Alternative(
            name=tensor_parallel.NAME,
            head="studio",
            why="not worth it: 95 trips a token: 2.1 tok/s, by layers 25.6 tok/s",
        ),
    )


def _alternative(
    plan: Plan, name: str, ids: tuple[str, ...], held: tuple[int, ...]
) -> Alternative:
    there = replace(plan, split=make_split(47, ids, held))
    together = None
    if plan.server.slots > 1:
        load = workload(there, Objective.THROUGHPUT)
        together = forecast(GLM, there, pace(there), load).tok_per_s
    return Alternative(
        name=name,
        devices=ids,
        counts=held,
        head=plan.head,
        ctx_size=plan.ctx_size,
        forecast=forecast(GLM, there, pace(there), workload(there)),
        all_slots_tok_per_s=together,
    )


HOMELAB_PLAN = Plan(
    model=GLM.path,
    head="studio",
    split=make_split(47, ("studio/MTL0", "mini/MTL0", "box/CUDA0"), (26, 8, 14)),
    workers=(
        WorkerSpec(name="mini", peer="mini", devices=("MTL0",)),
        WorkerSpec(name="box", peer="box", devices=("CUDA0",)),
    ),
    ctx_size=8192,
    api_port=8090,
)


def measured(model: ModelInfo, plan: Plan) -> MeasuredSplit:
    return MeasuredSplit(
        layers=ranges(plan.split),
        buffers=tuple(
            DeviceMemory(
                device=load.device,
                model_bytes=load.weight_bytes,
                kv_bytes=load.kv_bytes,
                compute_bytes=int(load.compute_bytes * 0.8),
                source=MemorySource.MEASURED,
            )
            for load in device_loads(model, plan.split, plan.ctx_size)
            if load.n_layers
        ),
    )


def process(name: str, role: ProcessRole, rss_gib: float, port: int) -> ProcessInfo:
    """One process that runs."""
    server = role == ProcessRole.SERVER
    return ProcessInfo(
        name=name,
        role=role,
        state=ProcessState.RUNNING,
        pid=4000 + port % 1000,
        port=port,
        argv=(
            ("llama-server", "-m", GLM.path, "--rpc", "127.0.0.1:50052", "-ngl", "48")
            if server
            else ("rpc-server", "-p", str(port))
        ),
        started_at=NOW - 700,
        rss_bytes=int(rss_gib * GIB),
    )


def homelab_serving() -> ClusterSnapshot:
    """The homelab in the middle of an answer."""
    return ClusterSnapshot(
        seq=7,
        at=NOW,
        state=ClusterState.SERVING,
        peers=homelab_peers(PeerState.SERVING),
        plan=HOMELAB_PLAN,
        planned=ranges(HOMELAB_PLAN.split),
        measured=measured(GLM, HOMELAB_PLAN),
        model=GLM,
        processes=(
            process("llama-server", ProcessRole.SERVER, 9.8, 8090),
            process("mini", ProcessRole.WORKER, 3.0, 50052),
            process("box", ProcessRole.WORKER, 5.6, 50053),
        ),
        api_url=URL,
        speed=Speed(
            tok_per_s=21.3,
            last_tok_per_s=20.9,
            prompt_tok_per_s=512.4,
            requests_active=1,
            ctx_used=1204,
        ),
        links=(MINI_LINK, BOX_LINK),
        served_since=NOW - 640,
    )


def homelab_over(n_workers: int, *, links: tuple[Link, ...] = ()) -> ClusterSnapshot:
    """The homelab's head with so many workers of four layers each."""
    names = [f"node{number}" for number in range(1, 1 + n_workers)]
    devices = ["studio/MTL0", *(f"{name}/CUDA0" for name in names)]
    plan = replace(
        HOMELAB_PLAN,
        split=make_split(47, devices, (48 - 4 * n_workers, *[4] * n_workers)),
        workers=tuple(
            WorkerSpec(name=name, peer=name, devices=("CUDA0",)) for name in names
        ),
    )
    return replace(
        homelab_serving(),
        plan=plan,
        planned=ranges(plan.split),
        measured=measured(GLM, plan),
        links=links,
    )


def homelab_without_relays() -> ClusterSnapshot:
    serving = homelab_serving()
    assert serving.plan is not None
    plan = replace(serving.plan, relay=False)
    return replace(serving, plan=plan, links=())


# --- two workers on this machine -----------------------------------------------------

DEMO = ModelInfo(
    path="/opt/dllm/demo/dllm-demo-12L.gguf",
    name="dllm demo",
    arch="llama",
    file_type="F16",
    size_bytes=20 * MIB,
    n_layer=12,
    n_embd=256,
    n_vocab=4096,
    n_ctx_train=1024,
    has_chat_template=True,
    layers=tuple(
        Layer(
            index=i,
            bytes=int(1.5 * MIB),
            kv_bytes_per_token=1024,
            k_bytes_per_token=512,
        )
        for i in range(12)
    ),
    output_bytes=2 * MIB,
)

CPU = replace(device("local/CPU", "AMD EPYC", 16, 11), memory_pool="local")
ENGINE = EngineInfo(
    directory="/opt/llama.cpp",
    source=EngineSource.CONFIG,
    server_path="/opt/llama.cpp/llama-server",
    worker_path="/opt/llama.cpp/rpc-server",
    version="b6500",
    rpc_protocol="3.5.0",
    devices=(CPU,),
)
DEMO_PLAN = Plan(
    model=DEMO.path,
    split=make_split(12, ("local/CPU", "worker1/CPU", "worker2/CPU"), (0, 6, 7)),
    workers=(WorkerSpec(name="worker1"), WorkerSpec(name="worker2")),
    ctx_size=1024,
    api_port=8090,
)


def idle() -> ClusterSnapshot:
    """This machine, with nothing running."""
    return ClusterSnapshot(
        seq=1,
        at=NOW,
        peers=(Peer(name="local", role=PeerRole.HEAD, devices=(CPU,)),),
        engine=ENGINE,
    )


def _with_workers(state: PeerState) -> tuple[Peer, ...]:
    workers = (
        Peer(
            name=name,
            role=PeerRole.WORKER,
            state=state,
            devices=(replace(CPU, id=f"{name}/CPU"),),
        )
        for name in ("worker1", "worker2")
    )
    return (*idle().peers, *workers)


def demo_steps(n_done: int, progress: float | None = None) -> tuple[Step, ...]:
    """A launch of which the first steps are done and the next is under way."""
    titles = (
        ("engine", "engine b6500 found", ""),
        ("worker1", "worker1 listens", "127.0.0.1:50052"),
        ("worker2", "worker2 listens", "127.0.0.1:50053"),
        ("server", "llama-server starts", "127.0.0.1:8090"),
        ("load", "model loads", ""),
        ("verify", "split checked against the log", ""),
    )
    steps = []
    for index, (step_id, title, detail) in enumerate(titles):
        if index < n_done:
            state, seconds, started = StepState.DONE, 0.2 + index * 0.31, NOW - 9
        elif index == n_done:
            state, seconds, started = StepState.RUNNING, None, NOW - 8.2
        else:
            state, seconds, started = StepState.PENDING, None, None
        steps.append(
            Step(
                id=step_id,
                title=title,
                state=state,
                seconds=seconds,
                started_at=started,
                detail=detail if state == StepState.DONE else "",
                progress=progress if state == StepState.RUNNING else None,
            )
        )
    return tuple(steps)


def demo_starting(plan: Plan = DEMO_PLAN) -> ClusterSnapshot:
    """The model is being loaded."""
    return ClusterSnapshot(
        seq=3,
        at=NOW,
        state=ClusterState.LOADING,
        peers=_with_workers(PeerState.STARTING),
        plan=plan,
        planned=ranges(plan.split),
        model=DEMO,
        engine=ENGINE,
        steps=demo_steps(4, 0.61),
        processes=(
            process("llama-server", ProcessRole.SERVER, 0.1, 8090),
            process("worker1", ProcessRole.WORKER, 0.1, 50052),
            process("worker2", ProcessRole.WORKER, 0.1, 50053),
        ),
    )


def demo_serving(plan: Plan = DEMO_PLAN) -> ClusterSnapshot:
    """Two local workers serve, and nobody asks anything."""
    return replace(
        demo_starting(plan),
        seq=4,
        state=ClusterState.SERVING,
        peers=_with_workers(PeerState.SERVING),
        steps=(),
        measured=measured(DEMO, plan),
        api_url=URL,
        speed=Speed(last_tok_per_s=88.2, ctx_used=31),
        served_since=NOW - 60,
    )


def demo_failed() -> ClusterSnapshot:
    """A worker's port was taken."""
    return replace(
        idle(),
        seq=5,
        state=ClusterState.FAILED,
        plan=DEMO_PLAN,
        planned=ranges(DEMO_PLAN.split),
        model=DEMO,
        failure=Failure(
            what="worker2 ended while it was starting",
            hint="Another program listens on its port: free it or set another.",
            process="worker2",
            argv=(
                *("/opt/llama.cpp/rpc-server", "-H", "127.0.0.1", "-p", "50053"),
                *("-d", "CPU"),
            ),
            exit_code=1,
            log_tail=(
                "create_backend: using CPU backend",
                "Starting RPC server v3.5.0",
                "  endpoint       : 127.0.0.1:50053",
                "Failed to create server socket: [Address already in use]",
            ),
            at=NOW,
        ),
    )
