"""Whether the head's programs can run on a peer, and what could be built there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from backends.engine.compiling import MEMORY_PER_JOB_BYTES, Toolchain
from backends.engine.toolchain import CMAKE_MIN
from backends.provision.refusals import CannotBuild

if TYPE_CHECKING:
    from backends.machines.probe_text import Probed

_ARCHES = {"arm64": "aarch64", "amd64": "x86_64"}
_NATIVE = "-DGGML_NATIVE=ON"
# Names of instruction sets a compiler may use, as /proc/cpuinfo and sysctl have them.
# The other flags (mitigations, virtualisation…) say nothing about instructions.
_INSTRUCTIONS = re.compile(
    r"(s?sse\w*|pni|avx\w*|fma4?|f16c|bmi[12]|abm|lzcnt|popcnt|movbe|adx|aes|vaes|"
    r"v?pclmulqdq|sha_ni|sha512|gfni|rdrand|rdseed|xop|tbm|amx_\w+|"
    r"asimd\w*|fphp|i8mm|bf16|sve\w*|sme\w*|dotprod|feat_\w+)"
)


def misfit(head: Probed, peer: Probed, flags: tuple[str, ...]) -> str:
    """Why programs built on the head cannot run on a peer; empty when they may.

    Args:
        head: the machine they were built on.
        peer: the other.
        flags: of CMake they were built with; empty for those without ``-march``.
    """
    if head.os != peer.os:
        return f"they are for {head.os}, it runs {peer.os or 'something else'}"
    if _arch(head) != _arch(peer):
        return f"they are for {head.arch}, it is {peer.arch}"
    if _family(head.libc) != _family(peer.libc):
        return f"they need {head.libc}, it has {peer.libc or 'another C library'}"
    missing = _missing_instructions(head, peer) if _NATIVE in flags else []
    if missing:
        return f"its CPU lacks {', '.join(missing[:4])}"
    return ""


def _arch(machine: Probed) -> str:
    return _ARCHES.get(machine.arch, machine.arch)


def _family(libc: str) -> str:
    return libc.partition(" ")[0]


def _missing_instructions(head: Probed, peer: Probed) -> list[str]:
    missing = {flag.lower() for flag in head.cpu_flags} - {
        flag.lower() for flag in peer.cpu_flags
    }
    return sorted(flag for flag in missing if _INSTRUCTIONS.fullmatch(flag))


def toolchain_of(peer: Probed, name: str) -> Toolchain:
    """What to build with on a peer called ``name``.

    Raises:
        CannotBuild: something is missing; it says what, and how to get it.
    """
    tools = peer.tools
    if "cxx" not in tools or "cc" not in tools:
        raise CannotBuild(f"{name} has no C++ compiler", _compiler_hint(peer))
    cmake = tools.get("cmake")
    if cmake is None or _version(cmake.version) < CMAKE_MIN:
        had = f" (only {cmake.version})" if cmake else ""
        raise CannotBuild(
            f"{name} has no CMake of version 3.14 or newer{had}",
            "No root is needed for it: python3 -m pip install --user cmake ninja.",
        )
    maker = tools.get("ninja") or tools.get("make")
    if maker is None:
        raise CannotBuild(
            f"{name} has neither ninja nor make",
            "No root is needed for it: python3 -m pip install --user ninja.",
        )
    fitting = peer.memory_free_bytes // MEMORY_PER_JOB_BYTES
    return Toolchain(
        cmake=cmake.path,
        generator="Ninja" if "ninja" in tools else "Unix Makefiles",
        maker=maker.path,
        cc=tools["cc"].path,
        cxx=tools["cxx"].path,
        jobs=max(min(peer.cores or 1, fitting), 1),
    )


def _compiler_hint(peer: Probed) -> str:
    if peer.os == "Darwin":
        return "Install one there: xcode-select --install."
    if peer.libc.startswith("musl"):
        return "Install one there: apk add build-base."
    return (
        "Install one there (apt install build-essential, or dnf install gcc gcc-c++), "
        "or provision it from a head of the same system."
    )


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(piece) for piece in text.split(".")[:2] if piece.isdigit())
