"""Python programs as forks of the test, which has imported already what they would.

Each is a process of its own, with its arguments, environment, descriptors and signals.
It spares the start of an interpreter, which takes longer than most that they do. Linux
alone.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread
import contextlib
import contextvars
import ctypes
import faulthandler
import gc
import importlib
import logging
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
import urllib.request
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn


class ForkingPopen(subprocess.Popen[Any]):
    """Starts ``python [-P] -m MODULE …`` and ``python [-P] -c CODE …`` as forks."""

    def __init__(self, args: Any, *rest: Any, **options: Any) -> None:
        if run := _program(args):
            before = options.get("preexec_fn")
            env = options.get("env") or dict(os.environ)
            words = [str(word) for word in args]
            keep = tuple(options.get("pass_fds", ()))
            options["preexec_fn"] = lambda: _become(run, words, env, keep, before)
        super().__init__(args, *rest, **options)


def _program(args: Any) -> Callable[[], object] | None:
    if isinstance(args, str | bytes | os.PathLike) or args[0] != sys.executable:
        return None
    words = [str(word) for word in args[1:] if word != "-P"]
    match words:
        case ["-m", module, *_]:
            return lambda: _run_module(module, words[2:])
        case ["-c", code, *_]:
            return lambda: _run_code(code, words[2:])
    return None


def _run_module(module: str, args: Sequence[str]) -> None:
    sys.argv = [module, *args]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _run_code(code: str, args: Sequence[str]) -> None:
    sys.argv = ["-c", *args]
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})


def _become(
    run: Callable[[], object],
    words: Sequence[str],
    env: Mapping[str, str],
    keep: Sequence[int],
    before: Callable[[], object] | None,
) -> NoReturn:
    """Forget the test, in its fork, and be another program to the end."""
    code = 1
    try:
        # What the test opened must not be closed again under numbers that are reused.
        gc.freeze()
        faulthandler.disable()
        atexit._clear()
        if before is not None:
            before()
        _reset_signals()
        os.environ.clear()
        os.environ.update(env)
        _show(words)
        # Whoever started this waits for the end of one of these.
        for number in {*map(int, os.listdir("/proc/self/fd"))} - {0, 1, 2, *keep}:
            with contextlib.suppress(OSError):
                os.close(number)
        _reset_modules()
        code = contextvars.Context().run(_exit_code, run)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def _reset_modules() -> None:
    sys.stdin = os.fdopen(0, closefd=False)
    buffering = 1 if os.isatty(1) else -1
    sys.stdout = os.fdopen(1, "w", buffering, closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
    warnings.simplefilter("ignore")
    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    asyncio._set_running_loop(None)
    asyncio.set_event_loop_policy(None)
    # The threads that wait for work are not here.
    concurrent.futures.thread._threads_queues.clear()  # type: ignore[attr-defined]
    # An interrupt that comes within one of hypothesis' would be lost.
    gc.callbacks.clear()
    # What was kept may be of the test's environment, or a thread that is not here.
    for name, module in tuple(sys.modules.items()):
        if name.startswith(("backends.", "tui.")):
            for value in tuple(vars(module).values()):
                if clear := getattr(value, "cache_clear", None):
                    clear()
    # They read the environment once: at the first request, and at the import.
    urllib.request.install_opener(None)
    if constants := sys.modules.get("huggingface_hub.constants"):
        importlib.reload(constants)


def _show(words: Sequence[str]) -> None:
    """Have others see the program's arguments and environment.

    There is less room than a program of its own would have.
    """
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    args_at, args_end, env_at, env_end = (int(word) for word in stat[45:49])
    by_use = sorted(os.environ.items(), key=lambda item: not item[0].startswith("XDG_"))
    for begin, end, texts in (
        (args_at, args_end, ["python", *words[1:]]),
        (env_at, env_end, [f"{name}={value}" for name, value in by_use]),
    ):
        shown = b"".join(os.fsencode(text) + b"\0" for text in texts)
        if (room := end - begin) > 0:
            ctypes.memmove(begin, shown[: room - 1].ljust(room, b"\0"), room)


def _exit_code(run: Callable[[], object]) -> int:
    code: object = 0
    try:
        run()
    except SystemExit as end:
        code = end.code
        if not isinstance(code, int | None):
            print(code, file=sys.stderr)  # noqa: T201 -- as the interpreter does
            code = 1
    except KeyboardInterrupt:
        traceback.print_exc()
        sys.stderr.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 120
    return int(code or 0)  # type: ignore[call-overload,no-any-return]
