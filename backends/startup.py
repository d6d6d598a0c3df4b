"""Keep Python from needless work as it imports modules, and at the end."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager

ALLOCATIONS = 10_000
"""So many more objects than before have Python look for garbage among them."""


@contextmanager
def importing() -> Iterator[None]:
    """Look for no garbage while modules are imported, and spare them after."""
    gc.disable()
    try:
        yield
    finally:
        spare_modules()


@contextmanager
def trusting_nobody() -> Iterator[None]:
    """Read no certificates while aiohttp is imported: its defaults trust nobody then.

    It reads all that the system trusts twice, a third of the time that it takes.
    """
    import ssl

    # Of a class that stands in for Python's own, as truststore's, it may be its own.
    own = vars(ssl.SSLContext).get("set_default_verify_paths")
    ssl.SSLContext.set_default_verify_paths = lambda self: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        del ssl.SSLContext.set_default_verify_paths
        if own is not None:
            ssl.SSLContext.set_default_verify_paths = own  # type: ignore[method-assign]


def spare_modules() -> None:
    """Set aside what is there now, and at the end all of it.

    Modules and what they define stay as long as the program. Looking through them
    again and again takes a tenth and more of a short program's time.
    Call it when all is imported. What comes then is looked through more seldom.
    """
    gc.freeze()
    gc.set_threshold(ALLOCATIONS)
    gc.enable()
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)
