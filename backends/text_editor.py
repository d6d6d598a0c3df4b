"""Text written in the user's own editor: ``$VISUAL``, else ``$EDITOR``."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from backends.errors import DllmError
from backends.units import format_signal

VARIABLES = ("VISUAL", "EDITOR")
KEPT = "The text is as it was."
ENDS_S = 3.0
"""An editor that is to end and does not is killed after so long."""


def editor_argv(environ: Mapping[str, str]) -> list[str]:
    """Split the user's editor into a program and its arguments; no shell reads it."""
    for name in VARIABLES:
        command = environ.get(name, "").strip()
        try:
            if argv := shlex.split(command):
                return argv
        except ValueError:
            raise DllmError(
                f"${name} cannot be read: a quote is not closed", f"It is {command}"
            ) from None
    raise DllmError(
        "No editor is set", "Set VISUAL or EDITOR, for example: export EDITOR=nano"
    )


async def edit_text(text: str) -> str:
    """Open text in the user's editor, and return it as the user saved it.

    The terminal belongs to the editor meanwhile. The file is in a folder that only
    this user can read. Both are gone afterwards, with any backup beside it.
    """
    argv = editor_argv(os.environ)
    try:
        with tempfile.TemporaryDirectory(prefix="dllm-tui-") as folder:
            file = Path(folder, "prompt.md")
            _write(file, text)
            code = await _run([*argv, str(file)])
            if code:
                raise DllmError(f"The editor {argv[0]} failed ({_ended(code)})", KEPT)
            saved = _read(file)
    except OSError as error:
        raise DllmError(
            f"The editor {argv[0]} cannot be used ({error.strerror})", KEPT
        ) from error
    if text.strip() and not saved.strip():
        raise DllmError("The editor left nothing in the file", KEPT)
    return saved


async def _run(argv: list[str]) -> int:
    process = await asyncio.create_subprocess_exec(*argv)
    try:
        with _interrupts_ignored():
            return await process.wait()
    except asyncio.CancelledError:
        with suppress(ProcessLookupError):
            process.terminate()
            with suppress(TimeoutError):
                async with asyncio.timeout(ENDS_S):
                    await process.wait()
        raise
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _ended(code: int) -> str:
    return f"exit {code}" if code > 0 else format_signal(-code)


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    # Ctrl-C reaches all programs of a terminal, and the editor is the one meant.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _write(file: Path, text: str) -> None:
    file.touch(0o600)
    file.write_text(f"{text}\n" if text else "", errors="replace")


def _read(file: Path) -> str:
    return file.read_text(errors="replace").rstrip()
