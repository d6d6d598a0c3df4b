"""The demo model that ships with the console."""

from __future__ import annotations

from pathlib import Path

MODEL_PATH: Path = Path(__file__).parent / "dllm-demo.gguf"
