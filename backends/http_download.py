"""Getting one file by HTTP, resumed at the byte; runs in a process of its own.

``python -m backends.http_download URL FILE SHA256`` gets one whose hash is known.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from backends.download_process import RESUME, DownloadProgress, run_download
from backends.errors import DllmError, HostError
from backends.printable import printable
from backends.state import Value
from backends.units import format_bytes
from backends.writing import write_private

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHUNK_BYTES = 1 << 17
TRIES = 5
RETRY_S = 1.0
TIMEOUT_S = 30.0
SPARE_BYTES = 64 << 20
"""Room on the disk beyond the file."""


class Partial(Value, frozen=True, kw_only=True):
    """The origin of a file whose first bytes are here."""

    url: str
    """Or the hash of the whole file, which is checked in the end."""
    validator: str = ""
    """Its ETag, or the date of its last change."""
    size_bytes: int = 0

    @property
    def resumable(self) -> bool:
        return bool(self.validator) or self.url.startswith("sha256:")


class Address(NamedTuple):
    """The address of a file, and the token for its host alone."""

    url: str
    token: str = ""


def transfer(
    place: Callable[[], Address],
    part: Path,
    descriptor: int,
    progress: DownloadProgress,
    origin: Partial,
) -> None:
    """Get what is missing of a file; try again after a break.

    Raises:
        DllmError: it cannot be got.
    """
    retried(
        place,
        lambda at: _resume(at.url, at.token, part, descriptor, progress, origin),
    )


def retried(place: Callable[[], Address], work: Callable[[Address], None]) -> None:
    """Work with the answer of an address, which is asked for anew after a break.

    Raises:
        DllmError: it cannot be got.
    """
    for left in reversed(range(TRIES)):
        url = ""
        try:
            address = place()
            url = address.url
            return work(address)
        except urllib.error.HTTPError as error:
            if not left or error.code < HTTPStatus.INTERNAL_SERVER_ERROR:
                raise refused(url, error.code, error.headers) from error
        except (HTTPException, OSError) as error:
            if _is_local(error):
                raise
            if not left:
                raise broken(url, str(getattr(error, "reason", error))) from error
        time.sleep(RETRY_S)
    return None


@contextmanager
def held(part: Path, name: str) -> Iterator[int]:
    """The part, held by us alone.

    Raises:
        DllmError: another process gets it.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(part, flags, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # It may have become the file between our open and our lock.
            if not os.path.samestat(os.fstat(descriptor), os.stat(part)):
                raise BlockingIOError
        except (BlockingIOError, FileNotFoundError):
            raise DllmError(
                f"Another dllm-tui is getting {name} already", "Wait until it is done."
            ) from None
        yield descriptor
    finally:
        os.close(descriptor)


def note_of(part: Path) -> Path:
    return part.with_suffix(".resume")


def _resume(
    url: str,
    token: str,
    part: Path,
    descriptor: int,
    progress: DownloadProgress,
    origin: Partial,
) -> None:
    """Get what is missing of a file, or all of it if it has changed."""
    have = os.fstat(descriptor).st_size
    known = _known(part)
    headers = {}
    if have and known and known.url == origin.url and known.resumable:
        headers["Range"] = f"bytes={have}-"
        if known.validator:
            headers["If-Range"] = known.validator
    else:
        have = 0
    try:
        with opened(Address(url, token), headers) as answer:
            validator = known.validator if known else ""
            _take(answer, have, validator, part, descriptor, progress, origin)
    except urllib.error.HTTPError as error:
        if error.code != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        if known is None or have != known.size_bytes:
            os.ftruncate(descriptor, 0)
            raise ConnectionError("the file has changed") from error


def opened(address: Address, headers: dict[str, str]) -> Any:
    """The answer of an address; a host that it redirects to gets no token."""
    own = {"User-Agent": "dllm-tui", "Accept-Encoding": "identity"}
    request = urllib.request.Request(address.url, headers=own | headers)
    if address.token:
        request.add_unredirected_header("Authorization", f"Bearer {address.token}")
    return urllib.request.urlopen(request, timeout=TIMEOUT_S)


def _take(
    answer: Any,
    have: int,
    validator: str,
    part: Path,
    descriptor: int,
    progress: DownloadProgress,
    origin: Partial,
) -> None:
    if answer.status != HTTPStatus.PARTIAL_CONTENT:
        have = 0
    elif not str(answer.headers["Content-Range"]).startswith(f"bytes {have}-"):
        os.ftruncate(descriptor, 0)
        raise ConnectionError("another part than the one asked for came")
    elif validator and _validator(answer.headers) not in ("", validator):
        os.ftruncate(descriptor, 0)
        raise ConnectionError("the file has changed")
    length = answer.headers["Content-Length"]
    size_bytes = have + int(length) if length and length.isdigit() else 0
    require_room(part.parent, max(size_bytes - have, 0))
    if not origin.size_bytes:
        origin = Partial(
            url=origin.url,
            validator=_validator(answer.headers),
            size_bytes=size_bytes,
        )
        progress.begin(progress.file, size_bytes)
    write_private(note_of(part), msgspec.json.encode(origin))
    os.ftruncate(descriptor, have)
    os.lseek(descriptor, have, os.SEEK_SET)
    checked = have
    while chunk := answer.read(CHUNK_BYTES):
        view = memoryview(chunk)
        while view:
            view = view[os.write(descriptor, view) :]
        have += len(chunk)
        progress.at(have)
        if have > (origin.size_bytes or have):
            break
        if have - checked > SPARE_BYTES // 2:
            checked = have
            require_room(part.parent, 0)
    if have != (origin.size_bytes or have):
        raise ConnectionError(f"it ended after {have} of {origin.size_bytes} bytes")


def _validator(headers: Any) -> str:
    # If-Range takes no weak ETag.
    etag = headers.get("ETag", "")
    if etag and not etag.startswith("W/"):
        return str(etag)
    return str(headers.get("Last-Modified", ""))


def _known(part: Path) -> Partial | None:
    try:
        return msgspec.json.decode(note_of(part).read_bytes(), type=Partial)
    except (OSError, msgspec.MsgspecError):
        return None


def _is_local(error: Exception) -> bool:
    local = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
    return isinstance(error, OSError) and (
        error.errno in local or error.filename is not None
    )


def require_sha256(path: Path, expected: str, progress: DownloadProgress) -> None:
    """Hash a file that has arrived; remove it if it has other bytes.

    Raises:
        DllmError: it has.
    """
    if not expected:
        return
    progress.begin(f"checking {path.name.removeprefix('.').removesuffix('.part')}")
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() == expected:
            return
    path.unlink(missing_ok=True)
    note_of(path).unlink(missing_ok=True)
    raise DllmError(
        f"{path.name} arrived damaged: its SHA-256 is not the one that was announced",
        "It was removed; get it again.",
    )


def require_room(folder: Path, need_bytes: int) -> None:
    """Refuse a download for which the disk has no room.

    Raises:
        HostError: it has none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < need_bytes + SPARE_BYTES:
        raise HostError(
            f"{folder} has {format_bytes(free_bytes)} free, and "
            f"{format_bytes(need_bytes)} are still needed",
            "Make room, or set another folder (model_dirs, HF_HOME).",
        )


def broken(place: str, why: str) -> DllmError:
    first = printable(why.strip().split("\n")[0])
    return DllmError(
        f"The connection to {urlsplit(place).netloc} failed ({first})",
        f"Check the network. {RESUME}",
    )


def refused(place: str, status: int, headers: Any) -> DllmError:
    host = urlsplit(place).netloc
    later = headers.get("Retry-After", "")
    when = f" in {later} s" if later.isdigit() else " later"
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        hint = f"Try again{when}; with HF_TOKEN the limit is higher."
        return DllmError(f"{host} limits how often you may ask", hint)
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return DllmError(
            f"{host} does not let you download it (HTTP {status})",
            "Check HF_TOKEN and your rights there.",
        )
    if status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
        return DllmError(f"{host} does not have it (HTTP {status})", "Check the name.")
    return DllmError(
        f"{host} answered with HTTP {status}", f"Try again{when}. {RESUME}"
    )


def get_known(url: str, file: Path, expected: str, progress: DownloadProgress) -> None:
    """Get a file that has this SHA-256.

    Raises:
        DllmError: it cannot be got, or has other bytes.
    """
    part = file.with_name(f".{file.name}.part")
    progress.begin(file.name)
    file.parent.mkdir(parents=True, exist_ok=True)
    with held(part, file.name) as descriptor:
        origin = Partial(url=f"sha256:{expected}")
        transfer(lambda: Address(url), part, descriptor, progress, origin)
        require_sha256(part, expected, progress)
        os.fsync(descriptor)
        part.rename(file)
        note_of(part).unlink(missing_ok=True)
    progress.whole(file, "pinned SHA-256")


def main(url: str, file: str, expected: str) -> int:
    """Get a file; print progress, and why it failed."""
    return run_download(
        lambda progress: get_known(url, Path(file), expected, progress),
        url,
        str(Path(file).parent),
    )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
