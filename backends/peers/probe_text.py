"""What ``scripts/probe.sh`` prints, read into values.

Nothing in it is trusted to be there: a line that is missing or cannot be understood
leaves its value empty, and a broken engine is a sentence, not a failure.
"""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from backends.engine.ask import parse_devices, parse_version
from backends.errors import HostError
from backends.peers.processors import Processors, cpu_set
from backends.state import Device, DeviceKind, PeerEngine, PeerModel, Value

if TYPE_CHECKING:
    from collections.abc import Iterable

FORMAT = "1"
_KIB = 1024
_SOURCES = ("config", "cache", "path")
"""Where an engine was found, the preferred first."""
_LIBC = re.compile(r"(glibc|musl)\s*([\d.]*)")
_NUMBER = re.compile(r"\d+(\.\d+)*")
# A GPU that has no memory of its own, by what drivers call it.
_SHARES_MEMORY = re.compile(
    r"Apple|Orin|Xavier|Tegra|Thor|GB10\b|Radeon(\(TM\))? (Graphics|\d{3}M|\d{4}S)|"
    r"(UHD|HD|Iris|Arc\(TM\)) .*Graphics|Mali|Adreno|V3D|llvmpipe",
    re.I,
)


class Tool(Value, frozen=True, kw_only=True):
    """A program a build may need."""

    path: str
    text: str = ""
    """The line in which it tells its version."""

    @property
    def version(self) -> str:
        """``3.25.1``; empty when its line has no number."""
        return version_in(self.text)


class Probed(Value, frozen=True, kw_only=True):
    """Everything one run of the script told."""

    os: str = ""
    arch: str = ""
    libc: str = ""
    system: str = ""
    hostname: str = ""
    cache_dir: str = ""
    """Where our engines go there: ``…/dllm-tui``."""
    cpu_name: str = ""
    cpu_flags: frozenset[str] = frozenset()
    cores: int = 0
    performance_cores: int = 0
    memory_bytes: int = 0
    memory_free_bytes: int = 0
    disk_free_bytes: int = 0
    tools: dict[str, Tool] = {}
    """By ``cc``, ``cxx``, ``make``, ``cmake``, ``ninja``, ``nvcc``, ``hipcc``,
    ``glslc``."""
    gpus: frozenset[str] = frozenset()
    """What the system shows of GPUs: ``metal``, ``nvidia``, ``rocm``, ``render``."""
    vulkan_headers: str = ""
    engines: tuple[PeerEngine, ...] = ()
    """Those that run, in the order of preference."""
    engine_flags: dict[str, tuple[str, ...]] = {}
    """CMake's options by the directory of each engine with a manifest."""
    accelerators: tuple[Device, ...] = ()
    """As the first engine lists them; their ids lack the peer."""
    relays: dict[str, str] = {}
    """Path of each relay by its version."""
    models: tuple[PeerModel, ...] = ()
    hashes: dict[str, str] = {}
    """Full SHA-256 by path, where asked for."""
    clock: float | None = None
    """Unix seconds there when the script began."""
    problems: tuple[str, ...] = ()
    """One sentence for each engine that does not run."""


class _Manifest(Value, frozen=True, kw_only=True):
    """The part of ``engine.json`` that is used here."""

    rpc_protocol: str = ""
    built_at: float = 0.0
    flags: tuple[str, ...] = ()


class _Lines:
    """The values of each key, in the order they came."""

    def __init__(self, text: str) -> None:
        self._rows: dict[str, list[tuple[str, ...]]] = defaultdict(list)
        for line in text.splitlines():
            key, *values = line.split("\t")
            self._rows[key].append(tuple(values))

    def rows(self, key: str, width: int) -> Iterable[tuple[str, ...]]:
        """Every line of a key with at least so many values, cut to as many."""
        return (row[:width] for row in self._rows[key] if len(row) >= width)

    def one(self, key: str) -> str:
        return next((row[0].strip() for row in self.rows(key, 1)), "")

    def integer(self, key: str) -> int:
        return _integer(self.one(key))

    def of(self, key: str, number: str) -> list[str]:
        """The lines told about one engine."""
        return [text for owner, text in self.rows(key, 2) if owner == number]


def parse_probe(text: str) -> Probed:
    """Everything in the output of ``probe.sh``; whatever surrounds it is ignored.

    Raises:
        HostError: it is not its output, or only part of it.
    """
    # What a login shell prints comes before; a name of ours is not in it.
    _, begun, rest = text.rpartition(f"dllm-probe\t{FORMAT}\n")
    body, ended, _ = rest.rpartition("end\n")
    if not begun or not ended:
        raise HostError("Its answer to the probe is not complete")
    lines = _Lines(body)
    processors = _processors(lines)
    os_name, arch = next(iter(lines.rows("uname", 2)), ("", ""))
    total_bytes, free_bytes = _memory(lines)
    engines = _engines(lines)
    return Probed(
        os=os_name,
        arch=arch,
        libc=_libc(lines.one("libc")),
        system=lines.one("system"),
        hostname=lines.one("hostname"),
        cache_dir=lines.one("cache"),
        cpu_name=" ".join(lines.one("cpu_name").split()),
        cpu_flags=frozenset(lines.one("cpu_flags").split()),
        cores=processors.usable,
        performance_cores=processors.performance,
        memory_bytes=total_bytes,
        memory_free_bytes=free_bytes,
        disk_free_bytes=lines.integer("disk_free_kib") * _KIB,
        tools={k: Tool(path=p, text=t) for k, p, t in lines.rows("tool", 3)},
        gpus=frozenset(name for (name,) in lines.rows("gpu", 1)),
        vulkan_headers=lines.one("vulkan_headers"),
        engines=tuple(engine for _, engine in engines),
        engine_flags={
            engine.directory: _manifest(lines.of("engine_manifest", number)).flags
            for number, engine in engines
        },
        accelerators=_accelerators(lines, [number for number, _ in engines]),
        relays={version: path for path, version in lines.rows("relay", 2)},
        models=_models(lines),
        hashes={path: digest for digest, path in lines.rows("sha256", 2)},
        clock=parse_clock(lines.one("clock")),
        problems=_problems(lines),
    )


def version_in(text: str) -> str:
    """The last number with dots in a line (``11.1`` of ``release 11.1``)."""
    found = [match[0] for match in _NUMBER.finditer(text) if "." in match[0]]
    return found[-1] if found else ""


def parse_clock(text: str) -> float | None:
    """Unix seconds of ``date +%s.%N``; half a second is added where it lacks %N."""
    whole, _, rest = text.partition(".")
    if not whole.isdigit():
        return None
    return float(f"{whole}.{rest}") if rest.isdigit() else int(whole) + 0.5


def _integer(text: str) -> int:
    return int(text) if text.strip().isdigit() else 0


def _libc(text: str) -> str:
    match = _LIBC.search(text)
    return f"{match[1]} {match[2]}".strip() if match else ""


def _processors(lines: _Lines) -> Processors:
    quotas = [(_integer(q), _integer(p)) for q, p in lines.rows("cpu_quota", 2)]
    return Processors(
        online=lines.integer("cores"),
        physical=lines.integer("hw.physicalcpu"),
        first_level=lines.integer("hw.perflevel0.physicalcpu"),
        allowed=cpu_set(lines.one("cpus_allowed")),
        big=cpu_set(lines.one("cpus_performance")),
        siblings={_integer(n): cpu_set(s) for n, s in lines.rows("cpu_list", 2)},
        capacities={_integer(n): _integer(c) for n, c in lines.rows("cpu_capacity", 2)},
        quotas=tuple(quota / period for quota, period in quotas if period),
    )


def _memory(lines: _Lines) -> tuple[int, int]:
    """Total and available bytes, as far as a container or slice allows."""
    total = lines.integer("MemTotal") * _KIB or lines.integer("hw.memsize")
    free = lines.integer("MemAvailable") * _KIB or _vm_stat_free(lines)
    for row in lines.rows("memory_limit", 3):
        limit, used, cached = map(_integer, row)
        # The page cache is given back on demand.
        left = max(limit - used + cached, 0)
        total, free = min(total, limit), min(free, left)
    return total, free


def _vm_stat_free(lines: _Lines) -> int:
    """What macOS can give without swapping: free and inactive pages."""
    text = "\n".join(line for (line,) in lines.rows("vm_stat", 1))
    page = re.search(r"page size of (\d+) bytes", text)
    pages = re.findall(r"^Pages (?:free|inactive):\s+(\d+)", text, re.M)
    return sum(map(int, pages)) * (int(page[1]) if page else 4096)


def _engines(lines: _Lines) -> list[tuple[str, PeerEngine]]:
    """The engines that told their version, with the script's number for each."""
    ranked: list[tuple[tuple[int, float], str, PeerEngine]] = []
    for number, folder, server, worker, source, ours in lines.rows("engine", 6):
        told = lines.of("engine_version", number)
        if not told:
            continue
        manifest = _manifest(lines.of("engine_manifest", number))
        protocol = manifest.rpc_protocol or lines.of("engine_protocol", number)[:1]
        engine = PeerEngine(
            directory=folder,
            server_path=server,
            worker_path=worker,
            version=parse_version("\n".join(told)),
            rpc_protocol="".join(protocol),
            ours=ours == "yes",
        )
        rank = _SOURCES.index(source) if source in _SOURCES else len(_SOURCES)
        ranked.append(((rank, -manifest.built_at), number, engine))
    ranked.sort(key=lambda entry: entry[0])
    return [(number, engine) for _, number, engine in ranked]


def _manifest(texts: list[str]) -> _Manifest:
    with contextlib.suppress(msgspec.DecodeError, IndexError):
        return msgspec.json.decode(texts[0], type=_Manifest)
    return _Manifest()


def _accelerators(lines: _Lines, numbers: list[str]) -> tuple[Device, ...]:
    for number in numbers:
        if told := lines.of("engine_devices", number):
            devices = parse_devices("\n".join(told))
            # An accelerator library such as BLAS is listed too, without memory.
            return tuple(device for device in devices if device.total_bytes)
    return ()


def shares_memory(device: Device) -> bool:
    """Whether a GPU draws on the machine's main memory."""
    if device.kind is DeviceKind.METAL:
        return device.description.startswith("Apple")
    return bool(_SHARES_MEMORY.search(device.description))


def _models(lines: _Lines) -> tuple[PeerModel, ...]:
    identities = {path: identity for identity, path in lines.rows("identity", 2)}
    sizes = {path: _integer(size) for size, path in lines.rows("model", 2)}
    # Files asked for by name come with their identity only, which tells the size.
    for path, identity in identities.items():
        sizes.setdefault(path, _integer(identity.split("-")[1] if identity else ""))
    return tuple(
        PeerModel(path=path, size_bytes=size, identity=identities.get(path, ""))
        for path, size in sizes.items()
    )


def _problems(lines: _Lines) -> tuple[str, ...]:
    folders = {row[0]: row[1] for row in lines.rows("engine", 2)}
    return tuple(
        f"The engine in {folders.get(number, '?')} does not run: {_why(status, said)}"
        for number, status, said in lines.rows("engine_broken", 3)
    )


def _why(status: str, said: str) -> str:
    if status == "132":
        return "it uses instructions this CPU does not have"
    if status == "137":
        return "it gave no answer"
    return said.strip()[:200] or f"exit status {status}"
