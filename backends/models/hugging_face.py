"""A Hugging Face repository: its models, their download, and errors in sentences."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from backends.download_process import DownloadProgress
from backends.errors import DllmError, ModelError, UsageError
from backends.http_download import (
    TIMEOUT_S,
    Address,
    Partial,
    broken,
    get_file,
    half_of,
    refused_by_status,
    require_disk_room,
    sent_page,
)
from backends.models.download import THERE
from backends.models.layers import read_model
from backends.models.parts import part_of, part_paths
from backends.printable import printable
from backends.units import format_bytes
from backends.writing import write_private


class HubFile(NamedTuple):
    name: str
    size_bytes: int
    sha256: str


def hub_files(repository: str) -> tuple[str, list[HubFile]]:
    """The commit that ``main`` is, and the GGUF files of a repository in it."""
    from huggingface_hub import HfApi

    with _hub_errors(repository):
        # Its own default is to wait for ever.
        info = HfApi().model_info(repository, files_metadata=True, timeout=TIMEOUT_S)
    return _hex(str(info.sha), 40), _gguf_files(info.siblings or ())


def hub_address(repository: str, commit: str, file: HubFile) -> Address:
    """The address of a file now; the hub redirects to one that expires.

    The token goes to the hub's own host alone.
    """
    from huggingface_hub import get_hf_file_metadata, get_token, hf_hub_url

    url = hf_hub_url(repository, file.name, revision=commit)
    with _hub_errors(repository):
        found = get_hf_file_metadata(url).location
    own = urlsplit(found)[:2] == urlsplit(url)[:2]
    return Address(found, (get_token() or "") if own else "")


def _gguf_files(siblings: Iterable[Any]) -> list[HubFile]:
    return [
        HubFile(one.rfilename, max(int(one.size or 0), 0), _hex(one.lfs.sha256, 64))
        for one in siblings
        if one.rfilename.endswith(".gguf") and one.lfs and _is_below(one.rfilename)
    ]


def _is_below(name: str) -> bool:
    # A name of another machine must not lead out of the cache.
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and name.isprintable()


def _hex(text: str, digits: int) -> str:
    if re.fullmatch(f"[0-9a-f]{{{digits}}}", text):
        return text
    raise ModelError(
        f"The hub announces a hash that is none: {printable(text)}", "Try again later."
    )


def pick(repository: str, files: Sequence[HubFile], wanted: str) -> list[HubFile]:
    """All parts of the one model that is wanted."""
    models = models_of_repository(repository, files)
    fitting = {name: parts for name, parts in models.items() if _fits(name, wanted)}
    if len(fitting) == 1:
        return next(iter(fitting.values()))
    listed = ", ".join(
        f"{quant_of(name)} ({format_bytes(sum(f.size_bytes for f in parts))})"
        for name, parts in sorted((fitting or models).items(), key=_size)
    )
    what = f"has nothing called {wanted}" if wanted else "has several models"
    if fitting and wanted:
        what = f"has several models called {wanted}"
    raise UsageError(
        f"{repository} {what}: {listed}",
        f"Name one, for example {repository}:{quant_of(next(iter(models)))}.",
    )


def _size(model: tuple[str, list[HubFile]]) -> int:
    return sum(file.size_bytes for file in model[1])


def models_of_repository(
    repository: str, files: Sequence[HubFile]
) -> dict[str, list[HubFile]]:
    """Files by the name of their first part; projectors of images are no models."""
    named = {file.name: file for file in files}
    models: dict[str, list[HubFile]] = {}
    for file in files:
        path = Path(file.name)
        part = part_of(path.name)
        if path.name.startswith("mmproj") or (part and part.number > 1):
            continue
        parts = [named.get(str(one)) for one in part_paths(path)]
        models[file.name] = [one for one in parts if one is not None]
    if not models:
        raise ModelError(
            f"{repository} has no GGUF file",
            f"Look for a repository with GGUF in its name, such as {repository}-GGUF.",
        )
    return models


_QUANT = re.compile(
    r"(?:UD-)?(?:I?Q\d\w*|BF16|F16|F32|FP16|TQ\d_\d|MXFP4\w*)", re.IGNORECASE
)


def quant_of(name: str) -> str:
    """``Q4_K_M`` of ``x-Q4_K_M-00001-of-00002.gguf``; else the file's own name."""
    stem = Path(name).name.removesuffix(".gguf")
    part = part_of(Path(name).name)
    pieces = re.split(r"[.-]", part.prefix if part else stem)
    found = [piece for piece in pieces if _QUANT.fullmatch(piece)]
    return found[-1] if found else Path(name).name


def _fits(name: str, wanted: str) -> bool:
    if not wanted:
        return True
    texts = (name, Path(name).name, quant_of(name))
    return wanted.lower() in {text.lower() for text in texts}


def from_hub(repository: str, wanted: str, progress: DownloadProgress) -> None:
    """Get a quant of a repository into the cache of Hugging Face.

    The library finds and authorises; the bytes come by ranges of our own, since its
    releases after 1.0 begin anew after a break.
    """
    progress.begin(f"asking for {repository}")
    from huggingface_hub import constants

    commit, found = hub_files(repository)
    files = pick(repository, found, wanted)
    folder = Path(constants.HF_HUB_CACHE, f"models--{repository.replace('/', '--')}")
    cache = HubCache(folder, commit)
    sizes = [file.size_bytes for file in files]
    have = sum(map(cache.bytes_of, files))
    require_disk_room(folder, sum(sizes) - have)
    progress.begin(files[0].name, sum(sizes), have)
    came = []
    for at, file in enumerate(files):
        progress.begin(file.name)
        progress.before_bytes = sum(sizes[:at])
        place = partial(hub_address, repository, commit, file)
        origin = Partial(url=f"sha256:{file.sha256}", size_bytes=file.size_bytes)
        came.append(get_file(place, cache.blob(file), origin, progress))
        cache.link(file)
    first = cache.path(files[0])
    read_model(first)
    progress.whole(first, "SHA-256 of the repository" if any(came) else THERE)


class HubCache(NamedTuple):
    """A repository in the cache that all programs with ``huggingface_hub`` share."""

    folder: Path
    commit: str

    def blob(self, file: HubFile) -> Path:
        return self.folder / "blobs" / file.sha256

    def path(self, file: HubFile) -> Path:
        return self.folder / "snapshots" / self.commit / file.name

    def bytes_of(self, file: HubFile) -> int:
        blob = self.blob(file)
        return max(_size_bytes(blob), _size_bytes(half_of(blob)))

    def link(self, file: HubFile) -> None:
        path = self.path(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.unlink(missing_ok=True)
            path.symlink_to(os.path.relpath(self.blob(file), path.parent))
        (self.folder / "refs").mkdir(exist_ok=True)
        write_private(self.folder / "refs" / "main", self.commit.encode())


def _size_bytes(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


@contextmanager
def _hub_errors(repository: str) -> Iterator[None]:
    from huggingface_hub import constants, errors

    endpoint = constants.ENDPOINT
    page = f"{endpoint}/{repository}"
    try:
        yield
    except DllmError:
        raise
    except errors.GatedRepoError as error:
        raise ModelError(
            f"{repository} is gated: its owner wants you to accept terms",
            f"Accept them at {page} and set HF_TOKEN to your token.",
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelError(
            f"{endpoint} has no repository {repository}, or it is private",
            "Check the name; for a private one set HF_TOKEN to your token.",
        ) from error
    except errors.EntryNotFoundError as error:
        raise ModelError(
            f"{repository} has lost the file meanwhile", "Try again."
        ) from error
    except errors.OfflineModeIsEnabled as error:
        raise ModelError(
            "HF_HUB_OFFLINE is set, so nothing is downloaded",
            "Unset it, or pick a model of dllm-tui models list.",
        ) from error
    except errors.HfHubHTTPError as error:
        response = error.response
        raise refused_by_status(
            endpoint, response.status_code, response.headers
        ) from error
    except OSError as error:
        if error.errno is not None and error.filename is not None:
            raise
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise broken(endpoint, str(error)) from error
    except json.JSONDecodeError as error:
        raise sent_page(endpoint) from error
    except Exception as error:
        if isinstance(error, ValueError) and not _is_network(error):
            raise ModelError(f"{repository}: {printable(str(error))}") from error
        raise broken(endpoint, str(error)) from error


def _is_network(error: Exception) -> bool:
    return type(error).__module__.split(".")[0].startswith(("httpx", "httpcore"))
