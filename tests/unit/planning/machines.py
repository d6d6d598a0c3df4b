"""A model and machines to plan with."""

from __future__ import annotations

from backends.config import Config
from backends.engine.ask import Engine
from backends.planning.proposal import propose
from backends.split.layout import make_split
from backends.state import (
    Ask,
    Device,
    DeviceKind,
    EngineInfo,
    EngineSource,
    Layer,
    ModelInfo,
    Peer,
    PeerFacts,
    PeerState,
    Plan,
    Transport,
    WorkerSpec,
)

GIB = 1 << 30
MIB = 1 << 20
PATH = "/m.gguf"


def model_of(layer_bytes: int = 1000, n_vocab: int = 8) -> ModelInfo:
    """Twelve layers and an output of one size."""
    return ModelInfo(
        path=PATH,
        arch="llama",
        n_layer=12,
        n_embd=8,
        n_vocab=n_vocab,
        n_ctx_train=1024,
        has_chat_template=True,
        layers=tuple(Layer(index=i, bytes=layer_bytes) for i in range(12)),
        output_bytes=layer_bytes,
    )


MODEL = model_of()


def device(machine: str, name: str, free_bytes: int = GIB) -> Device:
    return Device(
        id=f"{machine}/{name}",
        name=name,
        kind=DeviceKind.CPU if name == "CPU" else DeviceKind.CUDA,
        total_bytes=free_bytes,
        free_bytes=free_bytes,
    )


def peer(name: str, *devices: str | Device, state: PeerState = PeerState.READY) -> Peer:
    return Peer(
        name=name,
        state=state,
        transport=Transport.SSH,
        facts=PeerFacts(at=0, performance_cores=6),
        devices=tuple(
            device(name, found) if isinstance(found, str) else found
            for found in devices
        ),
    )


def here(*devices: str | Device) -> Peer:
    found = (device("local", d) if isinstance(d, str) else d for d in devices)
    return Peer(name="local", devices=tuple(found))


PLAIN = here("CPU")
WITH_GPU = here("CPU", "CUDA0")
ADA = peer("ada", "CPU")
BOB = peer("bob", "CPU", "CUDA0", "CUDA1")
AWAY = peer("cy", "CPU", state=PeerState.UNREACHABLE)
BARE = Peer(
    name="box",
    transport=Transport.BARE,
    address="10.0.0.3:50052",
    devices=(device("box", "RPC0"), device("box", "RPC1")),
)


def engine(machine: str) -> Engine:
    info = EngineInfo(
        directory=f"/{machine}",
        server_path=f"/{machine}/llama-server",
        worker_path=f"/{machine}/rpc-server",
        source=EngineSource.CONFIG,
    )
    return Engine(info=info, flags=frozenset())


def plan_for(
    *machines: Peer,
    config: Config | None = None,
    model: ModelInfo = MODEL,
    **asked: object,
) -> Plan:
    request = Ask(model=PATH, **asked)  # type: ignore[arg-type]
    return propose(request, model, config or Config(), machines, cores=8)


ON_BOB = Plan(
    model=PATH,
    split=make_split(12, ["bob/CPU"], [13]),
    workers=(WorkerSpec(name="bob", peer="bob"),),
)


def shares(plan: Plan) -> dict[str, int]:
    return {share.device: share.layers for share in plan.split.shares}
