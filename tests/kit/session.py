"""Settings, hooks and fixtures of all tests."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from backends.paths import Paths
from backends.startup import spare_modules
from tests.kit.forking import ForkingPopen
from tools.run_tests import COUNTS_VARIABLE

# These machines are shared: one may stand still for longer than any example takes.
settings.register_profile(
    "shared",
    deadline=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("shared")


# numpy would start a thread for each core, in every process of the tests.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Threads of engines that wait leave the cores, which many share, to others.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
ID_CHARS = 80
# What is imported and collected stays to the end.
gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    spare_modules()
    gc.set_threshold(500_000, 50, 100)


def pytest_make_parametrize_id(val: object) -> str | None:
    """Shorten the names of long values: each report of a test is sent with its name."""
    if isinstance(val, str | bytes) and len(val) > ID_CHARS:
        return f"{val[:ID_CHARS]!a}..."
    return None


def pytest_runtest_logfinish() -> None:
    # The processes of xdist have their tests counted by the one that they report to.
    counts = os.environ.get(COUNTS_VARIABLE)
    if counts and "PYTEST_XDIST_WORKER" not in os.environ:
        with Path(counts).open("ab") as file:
            file.write(b".")


@pytest.fixture(autouse=True, scope="session")
def own_runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        runtime = tmp_path_factory.mktemp("run")
        runtime.chmod(0o700)
        patch.setenv("XDG_RUNTIME_DIR", str(runtime))
        yield


@pytest.fixture
def forking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs in Python are forks, where Linux shows their descriptors."""
    if sys.platform == "linux":
        monkeypatch.setattr(subprocess, "Popen", ForkingPopen)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """Directories of somebody who has nothing yet; none is made."""
    return Paths(
        config_dir=tmp_path / "config",
        data_dir=tmp_path / "state",
        state_dir=tmp_path / "state",
        cache_dir=tmp_path / "cache",
        runtime_dir=tmp_path / "run",
    )


@pytest.fixture
def new_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Directories of somebody who has nothing yet, as the environment names them."""
    for name in ("CONFIG", "DATA", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """A disk of so many bytes; only root mounts one."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mounted(size_bytes: int) -> Path:
        options = ("-t", "tmpfs", "-o", f"size={size_bytes}")
        argv = ["mount", *options, "tmpfs", str(folder)]
        if subprocess.run(argv, capture_output=True, check=False).returncode:
            pytest.skip("may not mount a file system here")
        return folder

    yield mounted
    subprocess.run(["umount", "-l", folder], capture_output=True, check=False)
