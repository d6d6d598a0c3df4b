"""The engine of the GPU tests: prints its directory, or says that there is none.

It has a cache of its own, so that it is never the engine of anything else here. Another
engine, with a real GPU, is named by DLLM_TEST_GPU_ENGINE and DLLM_TEST_GPU (CUDA0).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from backends.engine import install
from backends.engine.versions import DEFAULT
from backends.paths import user_paths

DEVICE = os.environ.get("DLLM_TEST_GPU", "Vulkan0")


def cache_home() -> Path:
    return user_paths().cache_dir / "gpu-tests"


def environment() -> dict[str, str]:
    return {**os.environ, "GGML_VK_VISIBLE_DEVICES": "0"}


def directory() -> Path | None:
    if another := os.environ.get("DLLM_TEST_GPU_ENGINE"):
        return Path(another)
    own = user_paths()
    folder = cache_home() / own.cache_dir.name / own.engines_dir.name
    for engine in sorted(folder.glob(f"{DEFAULT.key}-*")):
        manifest = install.read_manifest(engine)
        if manifest is not None and manifest.accelerator == "vulkan":
            return engine
    return None


if __name__ == "__main__":
    found = directory()
    if found is None:
        sys.exit("No Vulkan engine is built for the GPU tests: make test-gpu")
    sys.stdout.write(f"{found}\n")
