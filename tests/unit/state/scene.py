"""A cluster at work: four links, four peers, a model of 80 layers."""

from __future__ import annotations

from backends.split.layout import make_split, ranges
from backends.state import (
    ClusterSnapshot,
    ClusterState,
    Device,
    EngineInfo,
    EngineSource,
    Layer,
    LayerBytes,
    Link,
    LinkCommand,
    ModelFile,
    ModelInfo,
    Pass,
    Peer,
    PeerFacts,
    Plan,
    ProcessInfo,
    ProcessRole,
    ProcessState,
    Speed,
    Transport,
    WorkerSpec,
)

N_LAYER = 80
WORKERS = tuple(f"worker{n}" for n in range(1, 5))
TOKENS_PER_TICK = 5
PASSES_KEPT = 32
COMMANDS = ("SET_TENSOR", "GET_TENSOR", "GRAPH_COMPUTE", "GRAPH_RECOMPUTE")
START_COMMANDS = ("HELLO", "DEVICE_COUNT", "ALLOC_BUFFER", "BUFFER_GET_BASE", "INIT")


def busy_scene(
    tick: int, workers: tuple[str, ...] = WORKERS, n_layer: int = N_LAYER
) -> ClusterSnapshot:
    """The snapshot of that quarter of a second, while an answer is generated."""
    plan = _plan(workers, n_layer)
    return ClusterSnapshot(
        seq=tick + 1,
        at=1_800_000_000.0 + tick / 4,
        state=ClusterState.SERVING,
        peers=tuple(_peer(name, tick) for name in workers),
        plan=plan,
        planned=ranges(plan.split),
        model=_model(n_layer),
        processes=tuple(_process(name) for name in ("llama-server", *workers)),
        api_url="http://127.0.0.1:8090/v1",
        speed=Speed(tok_per_s=20 + tick % 7 / 10, requests_active=1, ctx_used=tick),
        links=tuple(_link(name, tick) for name in workers),
        controller_pid=4711,
    )


def _plan(workers: tuple[str, ...], n_layer: int) -> Plan:
    devices = [f"{name}/CPU" for name in workers]
    each, rest = divmod(n_layer + 1, len(workers))
    counts = [each] * (len(workers) - 1)
    return Plan(
        model="/models/large-00001-of-00004.gguf",
        split=make_split(n_layer, devices, [*counts, each + rest]),
        workers=tuple(WorkerSpec(name=name, peer=name) for name in workers),
    )


def _model(n_layer: int) -> ModelInfo:
    groups = LayerBytes(attention=120_000_000, ffn=400_000_000, other=65_536)
    layers = tuple(
        Layer(
            index=index,
            bytes=520_065_536,
            groups=groups,
            quants={"Q4_K": 400_000_000, "Q6_K": 120_000_000, "F32": 65_536},
            kv_bytes_per_token=4096,
        )
        for index in range(n_layer)
    )
    return ModelInfo(
        path="/models/large-00001-of-00004.gguf",
        arch="llama",
        n_layer=n_layer,
        n_embd=8192,
        n_vocab=128_256,
        layers=layers,
    )


def _peer(name: str, tick: int) -> Peer:
    device = Device(id=f"{name}/CPU", name="CPU", total_bytes=64 << 30)
    models = tuple(
        ModelFile(
            path=f"/home/ada/.models/m{n}.gguf",
            name=f"m{n}",
            size_bytes=n << 30,
            source="models",
        )
        for n in range(20)
    )
    facts = PeerFacts(
        at=1_800_000_000.0,
        os="Linux",
        arch="x86_64",
        cores=16,
        devices=(device,),
        engines=(
            EngineInfo(
                directory="/x",
                source=EngineSource.PATH,
                server_path="/x/s",
                worker_path="/x/w",
            ),
        ),
        models=models,
    )
    return Peer(
        name=name,
        transport=Transport.SSH,
        address=name,
        rtt_ms=round(3 + (tick // 4) % 3 / 10, 1),
        devices=(device,),
        facts=facts,
    )


def _process(name: str) -> ProcessInfo:
    role = ProcessRole.SERVER if name == "llama-server" else ProcessRole.WORKER
    return ProcessInfo(
        name=name,
        role=role,
        state=ProcessState.RUNNING,
        pid=42,
        argv=tuple(f"--argument-{n}" for n in range(24)),
        rss_bytes=4 << 30,
    )


def _link(worker: str, tick: int) -> Link:
    tokens = tick * TOKENS_PER_TICK + 100
    at_work = {name: _command(tokens, spread=24) for name in COMMANDS}
    at_start = {name: _command(12, spread=6) for name in START_COMMANDS}
    return Link(
        worker=worker,
        protocol="7.0.0",
        rtt_ms=3.1,
        bytes_up=tokens * 11_900,
        bytes_down=tokens * 8_200,
        bytes_per_s_up=238_000.0 + tick,
        bytes_per_s_down=164_000.0 + tick,
        round_trips_per_token=1.0,
        pass_p50_ms=46.0,
        commands=at_work | at_start,
        passes=tuple(_pass(tokens - PASSES_KEPT + n) for n in range(PASSES_KEPT)),
    )


def _command(count: int, *, spread: int) -> LinkCommand:
    """Its latest calls fell into one of its buckets."""
    histogram = tuple(
        (100.0 * 1.2**n, 40 + (count if n == spread // 2 else 0)) for n in range(spread)
    )
    return LinkCommand(
        count=count,
        bytes_up=count * 4096,
        bytes_down=count * 128,
        p50_us=812.5,
        p99_us=1903.25,
        max_us=4000.0,
        histogram_us=histogram,
    )


def _pass(number: int) -> Pass:
    return Pass(
        at_ms=number * 50.125,
        round_trips=1,
        bytes_up=11_900,
        bytes_down=8_200,
        head_ms=30.5,
        up_ms=1.625,
        compute_ms=9.75,
        down_ms=1.5,
        wait_ms=0.375,
    )
