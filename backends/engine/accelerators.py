"""Which accelerator a build is for: what this machine has and can compile for."""

from __future__ import annotations

import os
import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from shutil import which

from backends.errors import UsageError
from backends.state import Value

PROBE_S = 10.0
"""Longest wait for ``nvidia-smi``, which can hang on a sick driver."""


class Accelerator(StrEnum):
    """What the engine computes on beside the CPU."""

    NONE = "none"
    CUDA = "cuda"
    METAL = "metal"
    VULKAN = "vulkan"
    HIP = "hip"


class Choice(Value, frozen=True, kw_only=True):
    """The accelerator of a build and, where it may surprise, why."""

    accelerator: Accelerator
    note: str = ""
    cmake_flags: tuple[str, ...] = ()


def choose(wanted: str, *, platform: str = sys.platform) -> Choice:
    """Turn ``auto``, ``none`` or a name into what to build for.

    A name is taken at its word (the toolkit must be there, a device need not); ``auto``
    takes an accelerator only when both its toolkit and a device are present.

    Raises:
        UsageError: the name is unknown, or its toolkit is not installed.
    """
    if wanted == "auto":
        return _automatic(platform)
    try:
        accelerator = Accelerator(wanted)
    except ValueError:
        names = ", ".join(("auto", *Accelerator))
        raise UsageError(
            f"Unknown accelerator {wanted}", f"Use one of {names}."
        ) from None
    return _forced(accelerator, platform)


def _automatic(platform: str) -> Choice:
    if platform == "darwin":
        return Choice(accelerator=Accelerator.METAL, cmake_flags=METAL_FLAGS)
    cuda = _nvcc()
    if _has_nvidia_gpu():
        if cuda:
            return Choice(
                accelerator=Accelerator.CUDA,
                cmake_flags=cuda_flags(cuda, has_gpu=_has_nvidia_gpu()),
            )
        return _cpu("An NVIDIA GPU is here but no CUDA compiler (nvcc): CPU only.")
    hipcc = _hipcc()
    if hipcc and _has_rocm_gpu():
        return Choice(accelerator=Accelerator.HIP, cmake_flags=HIP_FLAGS)
    if _has_render_node():
        if _has_vulkan_sdk():
            return Choice(accelerator=Accelerator.VULKAN, cmake_flags=VULKAN_FLAGS)
        return _cpu(
            "A GPU is here but no Vulkan SDK (glslc, Vulkan and SPIR-V headers): "
            "CPU only."
        )
    return _cpu("A CUDA compiler is here but no NVIDIA GPU: CPU only." if cuda else "")


def _forced(accelerator: Accelerator, platform: str) -> Choice:
    if accelerator is Accelerator.NONE:
        return _cpu("", platform)
    if accelerator is Accelerator.CUDA:
        cuda = _nvcc()
        _need(cuda, "CUDA", "nvcc", "Install the CUDA toolkit.")
        return Choice(
            accelerator=accelerator,
            cmake_flags=cuda_flags(cuda, has_gpu=_has_nvidia_gpu()),
        )
    if accelerator is Accelerator.METAL:
        _need(platform == "darwin", "Metal", "macOS", "Use --accelerator auto.")
        return Choice(accelerator=accelerator, cmake_flags=METAL_FLAGS)
    if accelerator is Accelerator.VULKAN:
        found = _has_vulkan_sdk()
        _need(
            found,
            "Vulkan",
            "glslc, Vulkan and SPIR-V headers",
            "Install the Vulkan SDK.",
        )
        return Choice(accelerator=accelerator, cmake_flags=VULKAN_FLAGS)
    _need(_hipcc(), "HIP", "hipcc", "Install ROCm.")
    return Choice(accelerator=accelerator, cmake_flags=HIP_FLAGS)


def _need(found: object, name: str, what: str, hint: str) -> None:
    if not found:
        raise UsageError(f"Cannot build for {name} here: it needs {what}", hint)


METAL_FLAGS = ("-DGGML_METAL=ON", "-DGGML_METAL_EMBED_LIBRARY=ON")
VULKAN_FLAGS = ("-DGGML_VULKAN=ON",)
HIP_FLAGS = ("-DGGML_HIP=ON",)


def _cpu(note: str, platform: str = "linux") -> Choice:
    flags = ("-DGGML_METAL=OFF",) if platform == "darwin" else ()
    return Choice(accelerator=Accelerator.NONE, note=note, cmake_flags=flags)


def cuda_flags(nvcc: str, *, has_gpu: bool) -> tuple[str, ...]:
    """CMake options for CUDA with that compiler, for the GPU present or for most."""
    flags = ("-DGGML_CUDA=ON", "-DGGML_CUDA_NCCL=OFF", f"-DCMAKE_CUDA_COMPILER={nvcc}")
    if has_gpu:
        return flags
    # "native" asks a GPU what it is; without one, take what the toolkit covers.
    return (*flags, "-DCMAKE_CUDA_ARCHITECTURES=all-major")


def _nvcc() -> str:
    for folder in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")):
        if folder and os.access(f"{folder}/bin/nvcc", os.X_OK):
            return f"{folder}/bin/nvcc"
    return (
        which("nvcc") or which("nvcc", path="/usr/local/cuda/bin:/opt/cuda/bin") or ""
    )


def _hipcc() -> str:
    return which("hipcc") or which("hipcc", path="/opt/rocm/bin") or ""


def _has_nvidia_gpu() -> bool:
    command = which("nvidia-smi")
    if command is None:
        return False
    try:
        found = subprocess.run(
            [command, "-L"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return found.returncode == 0 and b"GPU " in found.stdout


def _has_rocm_gpu() -> bool:
    """Whether the kernel's compute driver lists a node with SIMDs: a GPU."""
    nodes = Path("/sys/class/kfd/kfd/topology/nodes")
    return Path("/dev/kfd").exists() and any(
        _simd_count(properties) for properties in nodes.glob("*/properties")
    )


def _simd_count(properties: Path) -> int:
    try:
        lines = properties.read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        if line.startswith("simd_count "):
            return int(line.split()[1])
    return 0


def _has_render_node() -> bool:
    return any(Path("/dev/dri").glob("renderD*"))


def _has_vulkan_sdk() -> bool:
    """The shader compiler and both sets of headers llama.cpp's CMake asks for."""
    headers = ("vulkan/vulkan.h", "spirv/unified1/spirv.h")
    sdk = os.environ.get("VULKAN_SDK", "")
    folders = [Path(f, "include") for f in (sdk, "/usr", "/usr/local") if f]
    return which("glslc") is not None and all(
        any((folder / name).is_file() for folder in folders) for name in headers
    )
