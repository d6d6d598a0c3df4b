"""The accelerator of a build: one that a machine has and can compile for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

from backends.engine.compiling import Runner
from backends.errors import EngineError, UsageError
from backends.state import Value

SEEN = "seen"
"""To look for GPUs alone, and compile nothing."""
PROOF_S = 60
"""Longest wait for one small program; a cold CUDA compiler takes a while."""


class Accelerator(StrEnum):
    """The engine's devices beside the CPU."""

    NONE = "none"
    CUDA = "cuda"
    METAL = "metal"
    VULKAN = "vulkan"
    HIP = "hip"


class AcceleratorChoice(Value, frozen=True, kw_only=True):
    """The accelerator of a build and, where it may surprise, why."""

    accelerator: Accelerator = Accelerator.NONE
    note: str = ""
    cmake_flags: tuple[str, ...] = ()


class Sight(Value, frozen=True, kw_only=True):
    """The GPUs of a machine, and its compilers for them."""

    gpus: frozenset[str] = frozenset()
    """``nvidia``, ``rocm``, ``render`` (a GPU of any maker), ``metal``."""
    proved: dict[str, str] = {}
    """The toolkit's program by the accelerator a small program was compiled for."""
    failed: dict[str, str] = {}
    """Why it could not be, by accelerator."""
    idle: frozenset[str] = frozenset()
    """Accelerators whose toolkit is there without a GPU for it."""
    driver: int = 0
    """The major version of NVIDIA's driver; 0 where it is unknown."""


_NAMES = {"cuda": "CUDA", "hip": "HIP", "metal": "Metal", "vulkan": "Vulkan"}
_GPUS = {
    "cuda": ("nvidia", "an NVIDIA GPU"),
    "hip": ("rocm", "an AMD GPU"),
    "metal": ("metal", "a Metal GPU"),
    "vulkan": ("render", "a GPU"),
}
"""In the order of preference: what a GPU shows as, and what it is to a person."""
_HINTS = {
    "cuda": "Install the CUDA toolkit.",
    "hip": "Install ROCm.",
    "metal": "Metal is there on macOS with its command line tools only.",
    "vulkan": "Install glslc, SPIR-V headers and Vulkan headers of 1.3.272 or newer, "
    "or name a Vulkan SDK that has them with VULKAN_SDK.",
}


async def choose(
    wanted: str, runner: Runner, *, cxx: str = "", built: Iterable[str] = ()
) -> AcceleratorChoice:
    """Turn ``auto``, ``none`` or a name into what to build for on a machine.

    What is chosen was proved by compiling a small program there. A name needs no GPU;
    ``auto`` takes what the GPUs call for, and the CPU where that does not compile.

    ``cxx`` is the machine's C++ compiler, empty for the usual one. ``built`` names
    accelerators that an engine was built for there, which proves more.
    """
    known = ("auto", *Accelerator)
    if wanted not in known:
        raise UsageError(
            f"Unknown accelerator {wanted}", f"Use one of {', '.join(known)}."
        )
    sight = await look(runner, "" if wanted == "auto" else wanted, cxx, built)
    if wanted == Accelerator.NONE:
        return _cpu("", sight)
    return _automatic(sight) if wanted == "auto" else _named(wanted, sight)


async def look(
    runner: Runner, wanted: str, cxx: str = "", built: Iterable[str] = ()
) -> Sight:
    lines: list[str] = []
    arguments = (cxx, str(PROOF_S), wanted, " ".join(built))
    code, said = await runner.run("accelerator", *arguments, on_line=lines.append)
    if code != 0:
        raise EngineError(f"Cannot look for GPUs: {said}")
    return parse(lines)


def parse(lines: Sequence[str]) -> Sight:
    rows = [line.split("\t") for line in lines]
    return Sight(
        gpus=frozenset(row[1] for row in rows if row[0] == "gpu"),
        proved={row[1]: row[2] for row in rows if row[0] == "proved"},
        failed={row[1]: row[2] for row in rows if row[0] == "failed"},
        idle=frozenset(row[1] for row in rows if row[0] == "idle"),
        driver=max((int(row[1]) for row in rows if row[0] == "driver"), default=0),
    )


def _automatic(sight: Sight) -> AcceleratorChoice:
    refused = [
        f"There is {_GPUS[name][1]}, but {_cannot(name, why)}"
        for name, why in sight.failed.items()
    ]
    for name, (gpu, _) in _GPUS.items():
        if name in sight.proved and gpu in sight.gpus:
            note = f"{refused[0]}: {_NAMES[name]} instead." if refused else ""
            return _choice(name, sight, note)
    if refused:
        return _cpu(f"{refused[0]}: CPU only.", sight)
    if "cuda" in sight.idle:
        return _cpu("There is a CUDA compiler but no NVIDIA GPU: CPU only.", sight)
    return _cpu("", sight)


def _named(name: str, sight: Sight) -> AcceleratorChoice:
    if name in sight.proved:
        return _choice(name, sight, "")
    what = f"Cannot build here: {_cannot(name, sight.failed.get(name, 'no answer'))}"
    raise UsageError(what, _HINTS[name])


def _cannot(name: str, why: str) -> str:
    return f"a small program for {_NAMES[name]} does not compile ({why})"


def _cpu(note: str, sight: Sight) -> AcceleratorChoice:
    # On a Mac llama.cpp takes Metal unless it is told not to.
    flags = ("-DGGML_METAL=OFF",) if "metal" in sight.gpus else ()
    return AcceleratorChoice(note=note, cmake_flags=flags)


def _choice(name: str, sight: Sight, note: str) -> AcceleratorChoice:
    flags = {
        "cuda": _cuda_flags(sight),
        "hip": ("-DGGML_HIP=ON",),
        "metal": ("-DGGML_METAL=ON", "-DGGML_METAL_EMBED_LIBRARY=ON"),
        "vulkan": ("-DGGML_VULKAN=ON",),
    }
    accelerator = Accelerator(name)
    return AcceleratorChoice(
        accelerator=accelerator, note=note, cmake_flags=flags[name]
    )


def _cuda_flags(sight: Sight) -> tuple[str, ...]:
    nvcc = f"-DCMAKE_CUDA_COMPILER={sight.proved.get('cuda', 'nvcc')}"
    flags = ("-DGGML_CUDA=ON", "-DGGML_CUDA_NCCL=OFF", nvcc)
    if "nvidia" in sight.gpus:
        return flags
    # "native" asks a GPU what it is; without one, take what the toolkit covers.
    return (*flags, "-DCMAKE_CUDA_ARCHITECTURES=all-major")
