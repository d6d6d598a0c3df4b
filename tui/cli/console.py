"""Opening the console."""

from __future__ import annotations

import sys

from backends.config import load_config
from backends.controller.client import ControllerClient
from backends.errors import UsageError
from backends.paths import user_paths
from tui.app import DllmApp


def open_console(*, model: str | None, mouse: bool) -> None:
    """Run the console until the user leaves it; what runs keeps running.

    Raises:
        UsageError: standard input or output is no terminal.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "The console needs a terminal",
            "Without one use a command: dllm-tui --help lists them.",
        )
    paths = user_paths()
    config = load_config(paths)
    app = DllmApp(
        ControllerClient(paths),
        memory_file=paths.console_file,
        themes_dir=paths.config_dir / "themes",
        initial_model=model,
        # Who comes to a serving model comes to ask it something.
        serving_pane="chat",
        theme=config.theme,
        keys=config.keys,
    )
    app.run(mouse=mouse and config.mouse)
    sys.exit(app.return_code or 0)
