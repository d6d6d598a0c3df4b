"""Which release archive suits a machine."""

from __future__ import annotations

import pytest

from backends.engine.accelerators import Accelerator, Sight
from backends.engine.releases import archives_for, find_release, releases, url_of
from backends.errors import EngineError

CPU = Sight()
RELEASE = find_release(None)


def names(
    system: str, arch: str, sight: Sight = CPU, wanted: str = "auto"
) -> list[str]:
    found = archives_for(RELEASE, system, arch, sight, wanted)
    return [archive.key.removeprefix(f"{RELEASE.tag}-") for archive in found]


def gpu(*kinds: str, driver: int = 0) -> Sight:
    return Sight(gpus=frozenset(kinds), driver=driver)


@pytest.mark.parametrize(
    ("system", "arch", "sight", "first"),
    [
        ("Linux", "x86_64", CPU, ["ubuntu-x64"]),
        ("Linux", "amd64", CPU, ["ubuntu-x64"]),
        ("Linux", "aarch64", CPU, ["ubuntu-arm64"]),
        ("Darwin", "arm64", gpu("metal"), ["macos-arm64"]),
        ("Darwin", "x86_64", gpu("metal"), ["macos-x64"]),
        ("Linux", "x86_64", gpu("render"), ["ubuntu-vulkan-x64"]),
        (
            "Linux",
            "x86_64",
            gpu("nvidia", "render", driver=580),
            ["ubuntu-cuda-13.4-x64", "ubuntu-vulkan-x64"],
        ),
        (
            "Linux",
            "x86_64",
            gpu("nvidia", driver=535),
            ["ubuntu-cuda-12.8-x64", "ubuntu-vulkan-x64"],
        ),
        ("Linux", "x86_64", gpu("nvidia", driver=470), ["ubuntu-vulkan-x64"]),
        ("Linux", "aarch64", gpu("nvidia", driver=580), ["ubuntu-vulkan-arm64"]),
        (
            "Linux",
            "x86_64",
            gpu("rocm", "render"),
            ["ubuntu-rocm-10.0-x64", "ubuntu-vulkan-x64"],
        ),
    ],
)
def test_the_archives_of_a_machine(
    system: str, arch: str, sight: Sight, first: list[str]
) -> None:
    assert names(system, arch, sight) == first


def test_an_accelerator_that_is_named_is_the_only_one() -> None:
    assert names("Linux", "x86_64", gpu("nvidia"), "none") == ["ubuntu-x64"]
    assert names("Linux", "x86_64", CPU, "vulkan") == ["ubuntu-vulkan-x64"]
    with pytest.raises(EngineError, match="holds no build for cuda on Linux aarch64"):
        names("Linux", "aarch64", CPU, "cuda")


@pytest.mark.parametrize("machine", [("Linux", "riscv64"), ("FreeBSD", "x86_64")])
def test_other_machines_are_not_served(machine: tuple[str, str]) -> None:
    with pytest.raises(EngineError, match="holds nothing for"):
        names(*machine)


def test_cuda_comes_with_its_libraries() -> None:
    for release in releases():
        for archive in release.archives:
            parts = archive.parts
            assert parts["tag"] == release.tag
            assert len(archive.sha256) == 64
            is_cuda = archive.accelerator is Accelerator.CUDA
            runtime = release.runtime_of(archive)
            assert bool(runtime) == (is_cuda and not parts["runtime"])


def test_the_mirror_of_the_user_replaces_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (archive,) = archives_for(RELEASE, "Linux", "x86_64", CPU, "none")
    assert url_of(RELEASE, archive).endswith(f"/{RELEASE.tag}/{archive.name}")
    monkeypatch.setenv("DLLM_ENGINE_URL", "http://mirror/llama/")
    url = f"http://mirror/llama/{RELEASE.tag}/{archive.name}"
    assert url_of(RELEASE, archive) == url
