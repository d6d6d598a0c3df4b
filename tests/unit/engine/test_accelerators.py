"""Choosing an accelerator: the script and the compiler are real, the toolkits small."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from backends.engine import accelerators
from backends.engine.accelerators import AcceleratorChoice, choose
from backends.engine.compiling import Here
from backends.errors import UsageError

pytestmark = pytest.mark.skipif(
    os.uname().sysname == "Darwin" or not shutil.which("c++"),
    reason="a Mac always has Metal; needs a C++ compiler",
)
# What the scripts call of the system; nothing else is on the PATH of a machine below.
SYSTEM = "sh cat grep sed tail cut tr mktemp rm uname sleep c++ as ld head"
GPU = "echo 'GPU 0: H200'"
NO_LAYERS = """
#pragma once
namespace vk { inline unsigned enumerateInstanceVersion() { return 1; } }
"""
LAYERS = NO_LAYERS + "namespace vk { struct LayerSettingEXT { unsigned valueCount; }; }"


class Machine:
    """A machine with these programs and no others."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True)
        for name in SYSTEM.split():
            if path := shutil.which(name):
                (self.bin / name).symlink_to(path)
        self.env = {
            "PATH": str(self.bin),
            "DLLM_TOOL_PLACES": "",
            "HOME": str(folder),
            "TMPDIR": str(folder),
        }

    def program(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def vulkan(self, header: str) -> None:
        """A Vulkan SDK with these headers, its library and its shader compiler."""
        sdk = self.folder / "sdk"
        for name, text in (
            ("include/vulkan/vulkan.hpp", header),
            ("include/spirv/unified1/spirv.hpp", ""),
            ("lib/vulkan.c", "int nothing;"),
        ):
            (sdk / name).parent.mkdir(parents=True, exist_ok=True)
            (sdk / name).write_text(text)
        library = str(sdk / "lib/libvulkan.so")
        source = str(sdk / "lib/vulkan.c")
        subprocess.run(["c++", "-shared", "-o", library, source], check=True)
        self.program("glslc", "exit 0")
        self.env["VULKAN_SDK"] = str(sdk)

    async def choose(self, wanted: str) -> AcceleratorChoice:
        return await choose(wanted, Here(self.env))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    if any(Path("/dev/dri").glob("renderD*")):
        pytest.skip("there is a GPU here")
    return Machine(tmp_path / "machine")


async def test_without_gpu_the_cpu_and_nothing_to_say(machine: Machine) -> None:
    assert await machine.choose("auto") == AcceleratorChoice()
    assert await machine.choose("none") == AcceleratorChoice()


async def test_a_gpu_whose_toolkit_compiles_is_used(machine: Machine) -> None:
    machine.program("nvidia-smi", GPU)
    machine.program("nvcc", "exit 0")
    choice = await machine.choose("auto")
    assert (choice.accelerator, choice.note) == ("cuda", "")
    assert f"-DCMAKE_CUDA_COMPILER={machine.bin}/nvcc" in choice.cmake_flags
    assert not any("ARCHITECTURES" in flag for flag in choice.cmake_flags)


async def test_a_toolkit_that_does_not_compile_falls_back_and_says_so(
    machine: Machine,
) -> None:
    machine.program("nvidia-smi", GPU)
    machine.program("nvcc", "echo 'probe.cu: error: unsupported GNU version'; exit 1")
    choice = await machine.choose("auto")
    assert choice == AcceleratorChoice(
        note="There is an NVIDIA GPU, but a small program for CUDA does not compile "
        "(probe.cu: error: unsupported GNU version): CPU only."
    )
    with pytest.raises(UsageError, match="unsupported GNU version"):
        await machine.choose("cuda")


async def test_a_gpu_without_compiler_is_told(machine: Machine) -> None:
    machine.program("nvidia-smi", GPU)
    note = (await machine.choose("auto")).note
    assert "the CUDA compiler (nvcc) is not installed" in note
    with pytest.raises(UsageError, match="nvcc") as caught:
        await machine.choose("cuda")
    assert "CUDA toolkit" in caught.value.hint


async def test_a_compiler_without_its_gpu_is_not_enough(machine: Machine) -> None:
    machine.program("nvidia-smi", "exit 9")
    machine.program("nvcc", "exit 0")
    choice = await machine.choose("auto")
    assert choice.accelerator == "none"
    assert "no NVIDIA GPU" in choice.note
    named = await machine.choose("cuda")
    assert any("ARCHITECTURES" in flag for flag in named.cmake_flags)


async def test_to_see_a_gpu_no_toolkit_is_needed(machine: Machine) -> None:
    machine.program("nvidia-smi", f"case $1 in -L) {GPU};; *) echo 580.65.06;; esac")
    sight = await accelerators.look(Here(machine.env), accelerators.SEEN)
    assert (sight.gpus, sight.driver) == (frozenset({"nvidia"}), 580)
    assert not sight.failed
    machine.program("nvidia-smi", f"case $1 in -L) {GPU};; *) echo '[N/A]';; esac")
    sight = await accelerators.look(Here(machine.env), accelerators.SEEN)
    assert (sight.gpus, sight.driver) == (frozenset({"nvidia"}), 0)


async def test_old_vulkan_headers_are_found_out_before_the_build(
    machine: Machine,
) -> None:
    machine.vulkan(NO_LAYERS)
    with pytest.raises(UsageError, match=r"headers are older than 1\.3\.272") as caught:
        await machine.choose("vulkan")
    assert "VULKAN_SDK" in caught.value.hint
    machine.vulkan(LAYERS)
    assert (await machine.choose("vulkan")).cmake_flags == ("-DGGML_VULKAN=ON",)


async def test_vulkan_without_its_shader_compiler(machine: Machine) -> None:
    with pytest.raises(UsageError, match="glslc"):
        await machine.choose("vulkan")


async def test_the_others_are_refused_with_their_reason(machine: Machine) -> None:
    with pytest.raises(UsageError, match="macOS"):
        await machine.choose("metal")
    with pytest.raises(UsageError, match="hipcc"):
        await machine.choose("hip")
    with pytest.raises(UsageError, match="Unknown accelerator"):
        await machine.choose("tpu")


async def test_what_was_built_here_before_is_not_proved_again(machine: Machine) -> None:
    choice = await choose("vulkan", Here(machine.env), built=("vulkan",))
    assert choice.cmake_flags == ("-DGGML_VULKAN=ON",)
    with pytest.raises(UsageError, match="nvcc"):
        await choose("cuda", Here(machine.env), built=("cuda",))


async def test_nothing_is_left_in_the_scratch_folder(machine: Machine) -> None:
    machine.vulkan(LAYERS)
    await machine.choose("vulkan")
    assert sorted(p.name for p in machine.folder.iterdir()) == ["bin", "sdk"]


@pytest.mark.parametrize(
    ("lines", "accelerator", "note"),
    [
        (["gpu\tmetal", "proved\tmetal\t/usr/bin/c++"], "metal", ""),
        (["gpu\trender", "proved\tvulkan\t/usr/bin/glslc"], "vulkan", ""),
        (["gpu\trender", "failed\tvulkan\tits headers are old"], "none", "CPU only"),
        (
            [
                *("gpu\tnvidia", "gpu\trender"),
                *("failed\tcuda\tno nvcc", "proved\tvulkan\t/usr/bin/glslc"),
            ],
            "vulkan",
            "(no nvcc): Vulkan instead.",
        ),
        (["gpu\trocm", "proved\thip\t/opt/rocm/bin/hipcc"], "hip", ""),
    ],
)
def test_what_the_gpus_call_for(lines: list[str], accelerator: str, note: str) -> None:
    choice = accelerators._automatic(accelerators.parse(lines))
    assert choice.accelerator == accelerator
    assert note in choice.note


def test_a_mac_told_to_use_the_cpu_is_not_given_metal() -> None:
    sight = accelerators.parse(["gpu\tmetal", "failed\tmetal\tno command line tools"])
    assert accelerators._automatic(sight).cmake_flags == ("-DGGML_METAL=OFF",)
