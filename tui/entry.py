"""The entry of ``dllm-tui``: Ctrl-C before any work has begun ends it quietly.

Python makes an exception of it. Among hundreds of imports that becomes a traceback, or
is lost where it comes up in a callback of theirs.
"""

from __future__ import annotations

import sys

# What that is for is imported too late for its own sake.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType


def _show(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _show

import signal  # noqa: E402 -- which takes a moment already

_HEARS = signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""False if Ctrl-C is ignored, as in a shell's background job."""

if _HEARS:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from backends.startup import importing  # noqa: E402 -- some modules already

with importing():
    from tui.cli.main import main as run_command  # hundreds of modules


def main() -> None:
    if _HEARS:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run_command()
    finally:
        if _HEARS:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
