"""llama.cpp's own release archives: which there are, and which suit a machine.

``releases.json`` pins name, size and SHA-256; ``make engines-table`` writes it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

import msgspec

from backends.engine.accelerators import Accelerator, Sight
from backends.errors import EngineError, UsageError
from backends.state import Value

PACKAGE = "ggml-org/llama.cpp"
"""In the manifest of an engine out of a release."""
URL_VARIABLE = "DLLM_ENGINE_URL"
"""Names a mirror: ``URL/TAG/NAME`` is an archive there."""
BASE_URL = f"https://github.com/{PACKAGE}/releases/download"
ARCHIVE_NAME = re.compile(
    r"(?P<runtime>cudart-)?llama-(?P<tag>b\d+)-bin-(?P<os>ubuntu|macos)"
    r"(-(?P<backend>vulkan|cuda|rocm)(-(?P<version>\d+(\.\d+)*))?)?"
    r"-(?P<arch>x64|arm64)\.tar\.gz"
)
_SYSTEMS = {"Linux": "ubuntu", "Darwin": "macos"}
_ARCHES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}
_BACKENDS = {
    "vulkan": Accelerator.VULKAN,
    "cuda": Accelerator.CUDA,
    "rocm": Accelerator.HIP,
}
_GPUS = {
    "nvidia": (Accelerator.CUDA, Accelerator.VULKAN),
    "rocm": (Accelerator.HIP, Accelerator.VULKAN),
    "render": (Accelerator.VULKAN,),
}
"""The accelerators for a kind of GPU, the best first."""
_DRIVER_MIN = {12: 525, 13: 580}
"""The oldest NVIDIA driver for each CUDA."""


class Archive(Value, frozen=True, kw_only=True):
    name: str
    size_bytes: int
    sha256: str

    @property
    def parts(self) -> dict[str, str]:
        match = ARCHIVE_NAME.fullmatch(self.name)
        return match.groupdict("") if match else {}

    @property
    def platform(self) -> str:
        return f"{self.parts['os']} {self.parts['arch']}"

    @property
    def accelerator(self) -> Accelerator:
        parts = self.parts
        if (parts["os"], parts["arch"]) == ("macos", "arm64"):
            return Accelerator.METAL
        return _BACKENDS.get(parts["backend"], Accelerator.NONE)

    @property
    def key(self) -> str:
        """``b11194-ubuntu-vulkan-x64``: the folder of the engine."""
        stem = self.name.removeprefix("llama-").removesuffix(".tar.gz")
        return stem.replace("-bin-", "-")


class Release(Value, frozen=True, kw_only=True):
    tag: str
    commit: str
    archives: tuple[Archive, ...]

    def runtime_of(self, archive: Archive) -> Archive | None:
        """The archive of CUDA's libraries that goes with one."""
        named = {one.name: one for one in self.archives}
        return named.get(f"cudart-{archive.name}")


@cache
def releases() -> tuple[Release, ...]:
    """All pinned releases, the preferred first."""
    raw = files("backends.engine").joinpath("releases.json").read_bytes()
    return msgspec.json.decode(raw, type=tuple[Release, ...])


def find_release(tag: str | None) -> Release:
    """The pinned release of a tag; None: the preferred one."""
    for release in releases():
        if tag in (None, release.tag):
            return release
    known = ", ".join(release.tag for release in releases())
    raise UsageError(
        f"No release {tag} of llama.cpp is pinned",
        f"Known: {known}. Others are built from source: dllm-tui engine build --help.",
    )


def archives_for(
    release: Release, system: str, arch: str, sight: Sight, wanted: str
) -> list[Archive]:
    """The archives that may suit a machine, the best first, at least one."""
    platform = f"{_SYSTEMS.get(system, system)} {_ARCHES.get(arch, arch)}"
    there = [a for a in release.archives if a.parts and not a.parts["runtime"]]
    there = [a for a in there if a.platform == platform]
    if not there:
        raise EngineError(
            f"llama.cpp's release {release.tag} holds nothing for {system} {arch}"
        )
    for order in _orders(sight, wanted):
        if fitting := [a for name in order for a in _newest(there, name, sight)]:
            return fitting
    raise EngineError(
        f"llama.cpp's release {release.tag} holds no build for {wanted} "
        f"on {system} {arch}"
    )


def _orders(sight: Sight, wanted: str) -> list[list[Accelerator]]:
    if wanted != "auto":
        return [[Accelerator(wanted)]]
    named = [one for gpu, those in _GPUS.items() if gpu in sight.gpus for one in those]
    # Every archive can use the CPU, and the plain one of a Mac has Metal.
    return [list(dict.fromkeys(named)), [Accelerator.METAL], [Accelerator.NONE]]


def _newest(
    archives: Sequence[Archive], accelerator: Accelerator, sight: Sight
) -> list[Archive]:
    found = [a for a in archives if a.accelerator is accelerator]
    if accelerator is Accelerator.CUDA and sight.driver:
        found = [a for a in found if _DRIVER_MIN.get(_major(a), 0) <= sight.driver]
    return sorted(found, key=_major)[-1:]


def _major(archive: Archive) -> int:
    version = archive.parts["version"]
    return int(version.partition(".")[0]) if version else 0


def url_of(release: Release, archive: Archive) -> str:
    """The address of an archive, on the user's mirror if one is named."""
    base = os.environ.get(URL_VARIABLE) or BASE_URL
    # A name and a password would be shown wherever the address is.
    if not re.match(r"(https?://[^/@]+(/|$)|file:///)", base):
        raise UsageError(
            f"${URL_VARIABLE} is no URL, or one with a name and a password",
            "Name the folder of the tags, such as https://example.org/llama.cpp.",
        )
    return f"{base.rstrip('/')}/{release.tag}/{archive.name}"
