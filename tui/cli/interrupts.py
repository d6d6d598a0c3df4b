"""Ctrl-C while there is nothing to be ended in order."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def left_to_the_system() -> Iterator[None]:
    """Ctrl-C just ends the process meanwhile, as in ``tui.entry`` at the beginning.

    Where somebody listens to it, or ignores it, that stays so.
    """
    raises = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    # Only the main thread may say what it does.
    if not raises or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
