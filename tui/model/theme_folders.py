"""The folders of themes."""

from __future__ import annotations

from pathlib import Path

from backends.paths import Paths

BUILTIN_FOLDER = Path(__file__).resolve().parents[2] / "themes"


def theme_folders(paths: Paths) -> list[Path]:
    """Folders of theme files: ours, then the user's own."""
    return [BUILTIN_FOLDER, paths.config_dir / "themes"]
