"""What ``scripts/probe.sh`` prints, read into values.

Nothing in it is trusted to be there: a line that is missing or cannot be understood
leaves its value empty, and a broken engine is a sentence, not a failure.
"""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from pathlib import PurePath
from typing import TYPE_CHECKING

import msgspec

from backends.errors import HostError
from backends.machines.processors import Processors, cpu_set
from backends.state import EngineInfo, EngineSource, Value

if TYPE_CHECKING:
    from collections.abc import Iterable

FORMAT = "1"
_KIB = 1024
_RANKS = {EngineSource.CONFIG: 0, EngineSource.PATH: 2}
"""Which engine is preferred; those in the cache come between these."""
_LIBC = re.compile(r"(glibc|musl)\s*([\d.]*)")
_NUMBER = re.compile(r"\d+(\.\d+)*")


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
    """By ``cc``, ``cxx``, ``make``, ``cmake``, ``ninja``."""
    env: dict[str, str] = {}
    """What moves the folders of models there: ``HOME``, ``HF_HOME``…"""
    engines: tuple[EngineInfo, ...] = ()
    """Those that are seen, in the order of preference; none of them was asked."""
    engine_flags: dict[str, tuple[str, ...]] = {}
    """CMake's options by the directory of each engine with a manifest."""
    relays: dict[str, str] = {}
    """Path of each relay by the version it was installed as."""
    clock: float | None = None
    """Unix seconds there when the script began."""


class _Manifest(Value, frozen=True, kw_only=True):
    """The part of ``engine.json`` that is used here."""

    rpc_protocol: str = ""
    backends: tuple[str, ...] = ()
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
        env={row[0]: row[1] for row in lines.rows("env", 2)},
        engines=tuple(engine for engine, _ in engines),
        engine_flags={engine.directory: manifest.flags for engine, manifest in engines},
        relays={PurePath(p).parent.name: p for (p,) in lines.rows("relay", 1)},
        clock=parse_clock(lines.one("clock")),
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


def _engines(lines: _Lines) -> list[tuple[EngineInfo, _Manifest]]:
    """The engines with what we know of those we built, the preferred first."""
    found = []
    for folder, server, worker, source, text in lines.rows("engine", 5):
        manifest = _manifest(text)
        with contextlib.suppress(ValueError):
            engine = EngineInfo(
                directory=folder,
                source=EngineSource(source),
                server_path=server,
                worker_path=worker,
                rpc_protocol=manifest.rpc_protocol,
                backends=manifest.backends,
            )
            found.append((engine, manifest))
    found.sort(key=lambda pair: (_RANKS.get(pair[0].source, 1), -pair[1].built_at))
    return found


def _manifest(text: str) -> _Manifest:
    with contextlib.suppress(msgspec.DecodeError):
        return msgspec.json.decode(text, type=_Manifest)
    return _Manifest()
