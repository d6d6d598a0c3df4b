"""Asking llama-server where it would put each layer, before it loads a weight.

The lines that tell (``load_tensors: layer N assigned to device X``) are printed only at
a verbosity at which every generated token costs 1.1 KB of log. So a llama-server with
the very same placement is started at that verbosity, read up to its last layer, and
ended: it has then asked the workers for their memory and sent them nothing. The one
that serves can run quietly.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import TYPE_CHECKING

from backends.engine.logs import LoadLog, clean_lines, explain
from backends.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TIMEOUT_S = 300.0
"""Longest wait: a header with a large vocabulary on a cold disk."""
ANY_PORT = 0
"""Port for the argument vector of a preflight; nobody will ask it anything."""
_TAIL_CHARS = 16384


async def layer_devices(
    argv: Sequence[str],
    n_layer: int,
    *,
    env: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> dict[int, str]:
    """Layer index to device name, the output under ``n_layer``.

    ``argv`` is a ``server_argv`` with ``verbosity=LAYERS_VERBOSITY`` and
    ``port=ANY_PORT``; the workers must be running, ignore SIGPIPE and be free.

    Raises:
        EngineError: it ended, or went silent, before it told.
    """
    child = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "GGML_NO_BACKTRACE": "1", **(env or {})},
        start_new_session=True,
    )
    log = LoadLog()
    try:
        async with asyncio.timeout(timeout_s):
            tail = await _read_until(child, log, n_layer)
            if n_layer not in log.layer_devices:
                raise _ended(tail, await child.wait())
    except TimeoutError:
        raise EngineError(
            f"llama-server did not say within {timeout_s:.0f} s where its layers go",
            "Is a worker busy with another client?",
        ) from None
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
        await child.wait()
    return dict(log.layer_devices)


async def _read_until(
    child: asyncio.subprocess.Process, log: LoadLog, n_layer: int
) -> str:
    """Feed the log until the last layer is placed or it ends; the last it printed."""
    assert child.stdout is not None
    tail = ""
    while n_layer not in log.layer_devices:
        data = await child.stdout.read(65536)
        if not data:
            break
        text = data.decode("utf-8", "replace")
        log.feed(text)
        tail = (tail + text)[-_TAIL_CHARS:]
    return tail


def _ended(tail: str, code: int) -> EngineError:
    number = -code if code < 0 else None
    reason = explain(clean_lines(tail), code if code >= 0 else None, number)
    if reason is None and number is not None:
        reason = f"killed by {signal.Signals(number).name}"
    return EngineError(
        f"llama-server cannot load this model: {reason or f'exit code {code}'}"
    )
