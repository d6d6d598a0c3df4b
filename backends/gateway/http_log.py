"""What is logged of requests that are none: that there was one, and no word of it.

What they say may be anything, a key among it.
"""

from __future__ import annotations

import logging

from aiohttp.http_exceptions import HttpProcessingError

_log = logging.getLogger("backends.gateway.http")


def http_log() -> logging.Logger:
    """For the server that reads requests."""
    _log.addFilter(_in_brief)
    return _log


def _in_brief(record: logging.LogRecord) -> bool:
    """Leave out how a request failed to be read; faults of ours keep their traces."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HttpProcessingError):
        record.exc_info = None
        record.levelno, record.levelname = logging.INFO, "INFO"
        record.msg += f": no HTTP ({error.code})"
    return True
