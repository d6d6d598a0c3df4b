"""The memory shown while a boundary moves, beside llama.cpp's answer to that split.

Headers of published models of many architectures, without weights, at several contexts,
cache types and numbers of devices. The difference is that of all bytes of a device, as
a part of the engine's answer; *short* is what our figure lacks of it at most. The
console knows more: it carries over what earlier answers showed.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from backends.engine.fit_params import MemoryQuestion, ask_memory
from backends.engine.install import find_engine
from backends.models.layers import read_model
from backends.paths import relay_binary, user_paths
from backends.split.device_memory import ROUNDING_BYTES, EngineFigures, device_loads
from backends.split.layout import make_split
from backends.state import ServerSettings
from tests.kit.families import FAMILIES, write_header

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from backends.state import DeviceMemory, EngineInfo, ModelInfo

HEAD = "local/CPU"
VERSIONS = ("7.0.0", "8.0.0")
CONTEXTS = (1024, 8192, 32_768)
CACHE_TYPES = ("f16", "q8_0", "q4_0")
DEVICES = (1, 2, 3)
PART = 0.05
"""By so much our figures may differ."""
_PARTS = {
    1: ((1.0,), (0.7,), (1.0,)),
    2: ((0.5, 0.5), (0.7, 0.3), (0.2, 0.8)),
    3: ((0.33, 0.33, 0.34), (0.5, 0.2, 0.3), (0.2, 0.2, 0.4)),
}
"""Of the layers, by the number of devices, at each context; the head has the rest."""


class Case(NamedTuple):
    ctx_size: int
    cache_type: str
    counts: tuple[int, ...]

    @property
    def server(self) -> ServerSettings:
        return ServerSettings(
            cache_type_k=self.cache_type, cache_type_v=self.cache_type
        )


class Off(NamedTuple):
    """A device's memory beside the engine's answer."""

    device: str
    case: Case
    ours: DeviceMemory
    told: DeviceMemory

    @property
    def part(self) -> float:
        return abs(self._off_bytes) / self.told.total_bytes

    @property
    def short(self) -> float:
        """The part of the engine's answer that ours lacks."""
        return max(-self._off_bytes, 0) / self.told.total_bytes

    @property
    def _off_bytes(self) -> int:
        # The engine tells whole MiB, cut off.
        pairs = (
            (self.ours.model_bytes, self.told.model_bytes),
            (self.ours.kv_bytes, self.told.kv_bytes),
            (self.ours.compute_bytes, self.told.compute_bytes),
        )
        return sum(a - b for a, b in pairs if abs(a - b) >= ROUNDING_BYTES)


def cases(n_layer: int, n_devices: int, cache_type: str) -> list[Case]:
    """One at each context, each with a split of its own."""
    return [
        Case(ctx_size, cache_type, _counts(n_layer + 1, parts))
        for ctx_size, parts in zip(CONTEXTS, _PARTS[n_devices], strict=True)
    ]


def _counts(n_layers: int, parts: Sequence[float]) -> tuple[int, ...]:
    counts = [max(round(n_layers * part), 1) for part in parts]
    if sum(parts) > 1 - 1e-9:
        counts[-1] = n_layers - sum(counts[:-1])
    return tuple(counts)


async def answers(
    engine: EngineInfo, model: ModelInfo, wanted: Sequence[Case]
) -> list[EngineFigures]:
    found = []
    for case in wanted:
        ids = tuple(f"w{number}/CPU" for number in range(len(case.counts)))
        question = MemoryQuestion(
            files=(model.path,),
            head_cpu=HEAD,
            device_ids=ids,
            tensor_split=case.counts,
            head_layers=model.n_layer + 1 - sum(case.counts),
            ctx_size=case.ctx_size,
            server=case.server,
        )
        memory = await ask_memory(
            engine, str(relay_binary()), engine.rpc_protocol, question
        )
        split = make_split(
            model.n_layer, [HEAD, *ids], [question.head_layers, *case.counts]
        )
        found.append(EngineFigures(split=split, ctx_size=case.ctx_size, memory=memory))
    return found


def compare(
    model: ModelInfo,
    wanted: Sequence[Case],
    told: Sequence[EngineFigures],
    protocol: str,
) -> list[Off]:
    found = []
    for case, answer in zip(wanted, told, strict=True):
        loads = device_loads(
            model, answer.split, case.ctx_size, server=case.server, protocol=protocol
        )
        said = {memory.device: memory for memory in answer.memory}
        found += [
            Off(load.device, case, load.memory, said[load.device])
            for load in loads
            if load.n_layers or load.device == HEAD
        ]
    return found


def models(folder: Path, real: Sequence[str]) -> Iterator[tuple[str, str, ModelInfo]]:
    for name, family in FAMILIES.items():
        file = write_header(family, folder / f"{name.replace(' ', '-')}.gguf")
        yield family.arch, name, read_model(file)
    for path in real:
        model = read_model(path)
        yield model.arch, Path(path).stem, model


def _cells(found: Sequence[Off]) -> str:
    parts = [one.part for one in found]
    short = max(one.short for one in found)
    return f"{_told(median(parts))} | {_told(max(parts))} | {_told(short)}"


def _told(part: float) -> str:
    return f"{part * 100:.1f} %"


def _worst(name: str, version: str, found: Sequence[Off], limit: float) -> None:
    for one in sorted(found, key=lambda off: -off.part)[:6]:
        if one.part > limit:
            print(
                f"  {name} {version} {one.device} {one.case}: {one.part:.1%}",
                *(
                    f"{what} {_mib(ours)} for {_mib(told)}"
                    for what, ours, told in (
                        ("weights", one.ours.model_bytes, one.told.model_bytes),
                        ("KV", one.ours.kv_bytes, one.told.kv_bytes),
                        ("compute", one.ours.compute_bytes, one.told.compute_bytes),
                    )
                ),
                sep=", ",
            )


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:.1f}"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("real", nargs="*", help="further models")
    parser.add_argument("--worst", type=float, help="show what is off by more")
    parser.add_argument("--only", default="", help="names of families with this in")
    options = parser.parse_args()
    engines = [find_engine(_directory(version), user_paths()) for version in VERSIONS]
    columns = "".join(f" {v}: median | largest | short |" for v in VERSIONS)
    print(f"| architecture | shapes of |{columns}")
    print("|---|---|" + "--:|" * 3 * len(VERSIONS))
    everything: list[Off] = []
    with tempfile.TemporaryDirectory() as folder:
        for arch, name, model in models(Path(folder), options.real):
            if options.only not in name:
                continue
            by_engine = [await _all_cases(engine, model) for engine in engines]
            cells = " | ".join(map(_cells, by_engine))
            print(f"| {arch} | {name} | {cells} |", flush=True)
            for engine, found in zip(engines, by_engine, strict=True):
                everything += found
                if options.worst is not None:
                    _worst(name, engine.rpc_protocol, found, options.worst)
    within = sum(one.part <= PART for one in everything)
    print(f"\n{within} of {len(everything)} figures are within {_told(PART)}")


async def _all_cases(engine: EngineInfo, model: ModelInfo) -> list[Off]:
    found: list[Off] = []
    for cache_type in CACHE_TYPES:
        for n_devices in DEVICES:
            wanted = cases(model.n_layer, n_devices, cache_type)
            told = await answers(engine, model, wanted)
            found += compare(model, wanted, told, engine.rpc_protocol)
    return found


def _directory(version: str) -> str:
    from tests.native.stock import engine

    return str(engine(version))


if __name__ == "__main__":
    asyncio.run(main())
