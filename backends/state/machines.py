"""Machines and what computes on them."""

from __future__ import annotations

from enum import StrEnum

from backends.state.base import Value
from backends.state.models import ModelFile


class DeviceKind(StrEnum):
    CPU = "cpu"
    CUDA = "cuda"
    METAL = "metal"
    VULKAN = "vulkan"
    HIP = "hip"
    OTHER = "other"


class Device(Value, frozen=True, kw_only=True):
    """Something that can hold layers."""

    id: str
    """``worker1/CPU``: unique in the cluster; what a split names."""
    name: str
    """``CPU``, ``CUDA0``, ``MTL0``: what the engine calls it on its own machine."""
    kind: DeviceKind = DeviceKind.OTHER
    description: str = ""
    total_bytes: int = 0
    free_bytes: int = 0
    budget_bytes: int | None = None
    """The user's limit; None means all that is free."""
    memory_pool: str = ""
    """Devices with the same pool draw on the same physical memory."""
    cores: int = 0
    """Of a CPU: those that llama.cpp computes on by itself; 0: not known."""

    @property
    def usable_bytes(self) -> int:
        """Bytes a plan may put here: the user's budget, else what is free."""
        return self.free_bytes if self.budget_bytes is None else self.budget_bytes


class PeerRole(StrEnum):
    HEAD = "head"
    WORKER = "worker"
    IDLE = "idle"


class PeerState(StrEnum):
    PROBING = "probing"
    """Being reached and looked at."""
    ASKING = "asking"
    """Waits for the user: a host key to trust, a password."""
    NO_ENGINE = "no engine"
    """Reached, but without an engine that fits: to be provisioned."""
    PROVISIONING = "provisioning"
    READY = "ready"
    STARTING = "starting"
    SERVING = "serving"
    FAILED = "failed"
    MISMATCH = "mismatch"
    """Its engine speaks another RPC protocol than the head's."""
    UNREACHABLE = "unreachable"
    KNOWN = "known"
    """No peer yet: another console of its owner has told of it."""


class Transport(StrEnum):
    LOCAL = "local"
    SSH = "ssh"
    INVITED = "invited"
    """A worker that its owner lends: ``dllm-tui worker`` runs there."""
    BARE = "bare"
    """An rpc-server somebody else started; we only know its ``host:port``."""


class QuestionKind(StrEnum):
    """Questions that only the user can answer before a peer can be reached."""

    HOST_KEY = "host_key"
    PASSWORD = "password"
    PASSPHRASE = "passphrase"


class PeerQuestion(Value, frozen=True, kw_only=True):
    """A question that a connection waits for; no answer is stored but a trusted key."""

    kind: QuestionKind
    text: str
    """The question, in one sentence."""
    fingerprint: str = ""
    """Of a host key, as OpenSSH prints it: ``SHA256:…``. The answer repeats it."""
    key_type: str = ""


class PeerAnswer(Value, frozen=True, kw_only=True):
    kind: QuestionKind
    text: str


class PeerInvitation(Value, frozen=True, kw_only=True):
    """A token for a machine that is to join, shown once."""

    id: str
    """For asking who has used it."""
    token: str
    expires_at: int
    """Unix seconds."""
    addresses: tuple[str, ...]
    port: int

    def __repr__(self) -> str:
        return f"PeerInvitation(port={self.port})"


class FoundWorker(Value, frozen=True, kw_only=True):
    """A worker that announces itself on the network; nothing of it is proved."""

    name: str
    address: str
    """``10.0.0.7:50080``, where it answers."""
    version: str = ""
    id: str = ""
    """The fingerprint of its key."""
    peer: str = ""
    """The peer of ours that has this key."""


class FoundWorkers(Value, frozen=True, kw_only=True):
    """The workers that are known on this network now."""

    workers: tuple[FoundWorker, ...] = ()
    settled: bool = False
    """True once those that are there have had time to answer."""
    problem: str = ""
    """One sentence: why it cannot be looked for them."""


class PeerPairing(Value, frozen=True, kw_only=True):
    """A pairing by digits, which both screens show now."""

    name: str = ""
    """As the worker calls itself."""
    digits: str = ""
    """Empty: no worker listens there."""


class ProvisionMode(StrEnum):
    AUTO = "auto"
    """Copied where the head's runs there, else built."""
    COPY = "copy"
    BUILD = "build"


class EngineSource(StrEnum):
    CONFIG = "config"
    ENV = "env"
    CACHE = "cache"
    PROVISIONED = "provisioned"
    """In the cache of a peer, where we put it, and may remove it."""
    PATH = "path"


class EngineInfo(Value, frozen=True, kw_only=True):
    """One llama.cpp on a machine: where it is and, once it was asked, what it is."""

    directory: str
    source: EngineSource
    server_path: str
    worker_path: str
    fit_path: str = ""
    """llama-fit-params, which tells what memory a plan takes; empty: it has none."""
    version: str = ""
    """Build number and commit as llama-server prints them."""
    rpc_protocol: str = ""
    """``major.minor.patch``; empty when unknown."""
    backends: tuple[str, ...] = ()
    devices: tuple[Device, ...] = ()


class EngineStage(StrEnum):
    WAIT = "wait"
    DOWNLOAD = "download"
    TRY = "try"
    FETCH = "fetch"
    UNPACK = "unpack"
    CONFIGURE = "configure"
    COMPILE = "compile"
    INSTALL = "install"
    DONE = "done"


class EngineProgress(Value, frozen=True, kw_only=True):
    stage: EngineStage
    fraction: float | None = None
    """0…1 of this stage; None where it cannot be known."""
    text: str = ""
    done_bytes: int = 0
    """Of a download."""
    size_bytes: int = 0
    engine: EngineInfo | None = None
    """Over the API, in the last one: what is there now."""


class PeerFacts(Value, frozen=True, kw_only=True):
    at: float
    """Unix seconds by our own clock."""
    os: str = ""
    """``Linux`` or ``Darwin``."""
    arch: str = ""
    """``x86_64``, ``aarch64``, ``arm64``."""
    libc: str = ""
    """``glibc 2.36``, ``musl``; empty where unknown."""
    system: str = ""
    """The distribution or release in the machine's own words."""
    hostname: str = ""
    cores: int = 0
    performance_cores: int = 0
    """Physical cores, without efficiency cores: the threads a worker gets."""
    memory_bytes: int = 0
    memory_free_bytes: int = 0
    devices: tuple[Device, ...] = ()
    """As its engine lists them, the CPU first."""
    disk_free_bytes: int = 0
    """Of the file system for engines and models."""
    engines: tuple[EngineInfo, ...] = ()
    """The preferred first; without the helper they are seen, not asked."""
    relay_version: str = ""
    """Of our helper program there; empty when it is not there or does not run."""
    relay_path: str = ""
    compiler: str = ""
    cmake: str = ""
    problems: tuple[str, ...] = ()
    """Faults, one sentence each."""
    models: tuple[ModelFile, ...] = ()
    model_dirs: tuple[str, ...] = ()
    """The folders that were searched for them, ``~`` for the user's home."""
    clock_offset_s: float = 0.0
    """Its clock minus ours."""
    rtt_ms: float | None = None
    """Through the connection, so with the cost of its encryption."""
    bandwidth_mb_s: float | None = None
    seconds: float = 0.0
    """The duration of the probe."""


class PeerWork(Value, frozen=True, kw_only=True):
    """Something long that goes on at a peer."""

    title: str
    detail: str = ""
    progress: float | None = None
    """0…1 where known."""
    log_tail: tuple[str, ...] = ()


class PeerData(Value, frozen=True, kw_only=True):
    """The route of data to the workers of a peer reached over SSH."""

    wanted: str = "auto"
    """By its settings: ``auto``, ``tunnel``, or an address of it."""
    ways: tuple[str, ...] = ()
    """``direct``, ``tunnel``: how the cluster's data go or, where it does not serve,
    went last; several where workers differ, none before it did."""
    why: str = ""
    """Why not directly."""
    now: bool = False
    """True if they go that way now."""


class PeerPath(Value, frozen=True, kw_only=True):
    """The path of the connection to a lent machine now: by QUIC, or an SSH host."""

    relayed: bool = False
    address: str
    """Of the peer, as seen from here or from the SSH host, or of the relay."""
    via: str = ""
    """The SSH host between; empty: by QUIC."""
    rtt_ms: float = 0.0
    """By QUIC, as are the lost."""
    loss: float = 0.0
    """Share of our datagrams that were lost, 0…1."""


class Peer(Value, frozen=True, kw_only=True):
    """A machine (or a local worker standing for one) the console knows."""

    name: str
    role: PeerRole = PeerRole.IDLE
    state: PeerState = PeerState.READY
    since: float | None = None
    """Unix seconds at which this state began, where it matters."""
    transport: str = Transport.LOCAL
    address: str = ""
    """The argument for ``ssh``, or ``host:port`` of a bare rpc-server."""
    rtt_ms: float | None = None
    """Of the newest heartbeat; None while it does not answer."""
    path: PeerPath | None = None
    """None where it is not reached by QUIC."""
    silent_since: float | None = None
    """Unix seconds of its last answer, while it is suspect: connected, but without a
    sign of life for two seconds."""
    devices: tuple[Device, ...] = ()
    note: str = ""
    """One sentence: why it is unreachable, what is missing, what to do."""
    revoked: bool = False
    """True if its owner lets us in no more, which has ended what ran there for us."""
    withheld: bool = False
    """True if its owner lends nothing now, which has ended what ran there."""
    data: PeerData | None = None
    """None where there is no choice: this machine, bare rpc-servers."""
    question: PeerQuestion | None = None
    work: PeerWork | None = None
    facts: PeerFacts | None = None


class KnownMachine(Value, frozen=True, kw_only=True):
    """A machine that may be added: of the ssh config, or told by another console."""

    name: str
    address: str
    """The argument for ``ssh``."""
    told_by: str = ""
    """The machine of that console; empty: the ssh config names it."""
    fingerprints: tuple[str, ...] = ()
    """Of its host keys, as that console trusts them."""
    devices: tuple[Device, ...] = ()
    models: tuple[ModelFile, ...] = ()

    @property
    def peer(self) -> Peer:
        """The peer that it is, once it is added."""
        return Peer(
            name=self.name,
            state=PeerState.KNOWN,
            transport=Transport.SSH,
            address=self.address,
            devices=self.devices,
            facts=PeerFacts(at=0.0, devices=self.devices, models=self.models),
            note=f"told by {self.told_by}: dllm-tui peers add {self.name}",
        )
