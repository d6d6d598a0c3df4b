"""Peers in every state there is, and plans that run on them."""

from __future__ import annotations

from typing import Any

import msgspec

from backends.split.layout import make_split
from backends.state import (
    ClusterSnapshot,
    ClusterState,
    Device,
    EngineInfo,
    EngineSource,
    Failure,
    ModelFile,
    Peer,
    PeerData,
    PeerFacts,
    PeerQuestion,
    PeerState,
    PeerWork,
    Plan,
    QuestionKind,
    Transport,
    WorkerSpec,
)
from tests.tui import scenes
from tests.tui.scenes import GIB, NOW

FINGERPRINT = "SHA256:uNiVztksCsDhcc0u9e8BgrJXVGDQdVmcEM8vqQ3m1aY"


def device(device_id: str, total_gib: int) -> Device:
    """A device a third of which is taken."""
    pool = device_id.removesuffix("/CPU")
    made = scenes.device(device_id, "", total_gib, total_gib * 2 / 3)
    return msgspec.structs.replace(made, memory_pool=pool)


ADA_FACTS = PeerFacts(
    at=NOW - 130,
    os="Linux",
    arch="x86_64",
    libc="glibc 2.36",
    system="Debian GNU/Linux 12 (bookworm)",
    hostname="ada",
    cores=24,
    performance_cores=8,
    memory_bytes=64 * GIB,
    memory_free_bytes=51 * GIB,
    disk_free_bytes=212 * GIB,
    engines=(
        EngineInfo(
            directory="/home/ada/.cache/dllm-tui/engines/b6500-cuda",
            server_path="/home/ada/.cache/dllm-tui/engines/b6500-cuda/llama-server",
            worker_path="/home/ada/.cache/dllm-tui/engines/b6500-cuda/rpc-server",
            version="b6500",
            rpc_protocol="3.5.0",
            source=EngineSource.PROVISIONED,
        ),
    ),
    relay_version="0.3.0",
    relay_path="/home/ada/.cache/dllm-tui/relay/0.3.0/dllm-relay",
    compiler="gcc 12.2.0",
    cmake="cmake 3.25.1",
    models=(
        ModelFile(
            name="glm",
            source="models",
            path="/home/ada/models/GLM-4.7-Flash-Q4_K_M.gguf",
            size_bytes=int(16.9 * GIB),
        ),
    ),
    clock_offset_s=0.4,
    rtt_ms=0.6,
    bandwidth_mb_s=112.0,
    seconds=1.42,
)


def over_ssh(name: str, address: str = "", **facts: Any) -> Peer:
    return Peer(name=name, transport=Transport.SSH, address=address or name, **facts)


ADA = over_ssh(
    "ada",
    "ada@ada.lan",
    rtt_ms=0.6,
    devices=(
        device("ada/CPU", 64),
        device("ada/CUDA0", 24),
    ),
    facts=ADA_FACTS,
    data=PeerData(ways=("direct",)),
)
BOB = over_ssh(
    "bob",
    rtt_ms=12.4,
    devices=(
        device("bob/CPU", 32),
        device("bob/CUDA0", 12),
        device("bob/CUDA1", 12),
    ),
)
BOX = Peer(
    name="box",
    transport=Transport.BARE,
    address="10.0.0.9:50052",
    rtt_ms=0.4,
    devices=(device("box/RPC", 16),),
)
HOST_KEY = PeerQuestion(
    kind=QuestionKind.HOST_KEY,
    text=f"The host key of mini is not known yet: ssh-ed25519 {FINGERPRINT}. Trust it?",
    fingerprint=FINGERPRINT,
    key_type="ssh-ed25519",
)
PASSWORD = PeerQuestion(
    kind=QuestionKind.PASSWORD, text="Password for ada@mini.lan on [mini]?"
)
PASSPHRASE = PeerQuestion(
    kind=QuestionKind.PASSPHRASE, text="Passphrase for the key ~/.ssh/id_ed25519?"
)
MINI = over_ssh(
    "mini",
    "ada@mini.lan",
    state=PeerState.ASKING,
    since=NOW - 4,
    note=HOST_KEY.text,
    question=HOST_KEY,
)
EVE = over_ssh(
    "eve",
    state=PeerState.NO_ENGINE,
    rtt_ms=2.0,
    note="No llama.cpp with RPC there. Provision it: dllm-tui peers setup eve.",
)
OLD = over_ssh(
    "oldbox",
    state=PeerState.MISMATCH,
    rtt_ms=1.1,
    note="It speaks RPC 2.0.0, this machine RPC 3.5.0. "
    "Provision it: dllm-tui peers setup oldbox.",
    devices=(device("oldbox/CPU", 16),),
)
FRED = over_ssh(
    "fred",
    state=PeerState.PROVISIONING,
    rtt_ms=3.3,
    work=PeerWork(
        title="Installing on fred",
        detail="compiling ggml-cuda (214 of 402 files)",
        progress=0.53,
    ),
)
NUC = over_ssh(
    "nuc",
    "nuc.home.arpa",
    state=PeerState.UNREACHABLE,
    since=NOW - 130,
    note="nuc.home.arpa does not answer within 10 s. "
    "Is the machine on, and is SSH allowed through its firewall?",
)
GUS = over_ssh(
    "gus",
    state=PeerState.FAILED,
    rtt_ms=5.2,
    note="The probe ended with exit code 127: sh: awk: not found",
)
NEW = over_ssh(
    "a-machine-with-a-long-name",
    "a-machine-with-a-long-name.example.org",
    state=PeerState.PROBING,
)
LENT = Peer(
    name="kay",
    transport=Transport.INVITED,
    address="192.0.2.9:50080",
    state=PeerState.UNREACHABLE,
    note="kay is not lent now: its owner has paused it",
)
EVERY = (
    *(*scenes.idle().peers, ADA, BOB, BOX, NEW),
    *(MINI, EVE, FRED, OLD, GUS, NUC, LENT),
)


def here(*peers: Peer, quiet: bool = False) -> ClusterSnapshot:
    peers = (*scenes.idle().peers, *peers) if peers else EVERY
    if quiet:
        peers = tuple(peer for peer in peers if peer.question is None)
    return msgspec.structs.replace(scenes.idle(), peers=peers)


SPREAD_PLAN = Plan(
    model=scenes.GLM.path,
    split=make_split(
        47,
        ("local/CPU", "ada/CUDA0", "bob-CUDA0/CUDA0", "bob-CUDA1/CUDA1", "box/RPC"),
        (0, 20, 9, 9, 10),
    ),
    workers=(
        WorkerSpec(name="ada", peer="ada", devices=("CUDA0",)),
        WorkerSpec(name="bob-CUDA0", peer="bob", devices=("CUDA0",)),
        WorkerSpec(name="bob-CUDA1", peer="bob", devices=("CUDA1",)),
        WorkerSpec(name="box", peer="box", devices=("RPC",), endpoint="10.0.0.9:50052"),
    ),
    ctx_size=8192,
)


def refused() -> ClusterSnapshot:
    """A launch that was refused: a peer's engine does not fit."""
    plan = msgspec.structs.replace(
        SPREAD_PLAN,
        split=make_split(47, ("local/CPU", "ada/CUDA0", "oldbox/CPU"), (0, 30, 18)),
        workers=(
            WorkerSpec(name="ada", peer="ada", devices=("CUDA0",)),
            WorkerSpec(name="oldbox", peer="oldbox", devices=("CPU",)),
        ),
    )
    return msgspec.structs.replace(
        here(ADA, OLD),
        state=ClusterState.FAILED,
        plan=plan,
        model=scenes.GLM,
        failure=Failure(
            what="The engine of oldbox speaks RPC 2.0.0, the head's RPC 3.5.0",
            hint="Install the head's engine there: dllm-tui peers setup oldbox.",
            at=NOW,
        ),
    )
