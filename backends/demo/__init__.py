"""The demo model of a checkout; wheels leave it out."""

from __future__ import annotations

from pathlib import Path

MODEL_PATH: Path = Path(__file__).parent / "dllm-demo.gguf"


def is_bundled() -> bool:
    """True in a checkout."""
    return MODEL_PATH.is_file()
