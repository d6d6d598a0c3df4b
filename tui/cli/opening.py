"""Opening the console."""

from __future__ import annotations

import signal
import sys

import msgspec

from backends.client.asking import ASKING
from backends.client.client import ControllerClient
from backends.clipboard import keep
from backends.config import load_config
from backends.errors import UsageError
from backends.paths import user_paths
from backends.settings import SettingsFile
from tui.shell.app import DllmApp
from tui.work.theme_folders import theme_folders

COPIED = "copied.txt"


def open_console(
    *,
    model: str | None,
    mouse: bool,
    cluster: str,
    theme: str | None = None,
    ascii_only: bool = False,
) -> None:
    """Run the console until the user leaves it; what runs keeps running.

    Raises:
        UsageError: standard input or output is no terminal.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "The console needs a terminal",
            "Without one use a command: dllm-tui --help lists them.",
        )
    ASKING.set(msgspec.structs.replace(ASKING.get(), program="console"))
    paths = user_paths()
    config = load_config(paths)
    app = DllmApp(
        ControllerClient(paths, cluster=cluster),
        memory_file=paths.console_file,
        theme_folders=theme_folders(paths),
        initial_model=model,
        # Who comes to a serving model comes to ask it something.
        serving_pane="chat",
        theme=theme or config.theme,
        keys=config.keys,
        keep_copy=lambda text: keep(text, paths.state_dir / COPIED),
        kept_where=str(paths.state_dir / COPIED),
        ascii_only=ascii_only or config.ascii,
        readonly=ASKING.get().readonly,
        settings=SettingsFile(paths),
    )
    # Whoever started it may ignore hang-ups (nohup): without its terminal a console
    # would read the end of a file for ever.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    app.run(mouse=mouse and config.mouse)
    sys.exit(app.return_code or 0)
