"""Opening the console."""

from __future__ import annotations

from backends.config import load_config
from backends.controller.client import ControllerClient
from backends.paths import user_paths
from tui.app import DllmApp


def open_console(*, model: str | None, mouse: bool) -> None:
    """Run the console until the user leaves it; what runs keeps running."""
    paths = user_paths()
    config = load_config(paths)
    raise NotImplementedError((DllmApp, ControllerClient, config, model, mouse))
