"""Getting one file by HTTP, resumed at the byte; runs in a process of its own.

``python -m backends.http_download URL FILE SHA256 BYTES`` gets one that is known.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from backends.download_process import RESUME, DownloadProgress, run_download
from backends.errors import DllmError, MachineError
from backends.printable import printable
from backends.state import Value
from backends.units import format_bytes
from backends.writing import write_private

CHUNK_BYTES = 1 << 17
TRIES = 5
SILENCES = 2
"""Silences in a row, which are not worth more tries."""
RETRY_S = 1.0
TIMEOUT_S = 10.0
SPARE_BYTES = 64 << 20
"""Room on the disk beyond the file."""


class Partial(Value, frozen=True, kw_only=True):
    """The origin of a file whose first bytes are here."""

    url: str
    """Or ``sha256:`` and the hash of the whole file, where that is announced."""
    validator: str = ""
    """Its ETag, or the date of its last change."""
    size_bytes: int = 0

    @property
    def sha256(self) -> str:
        kind, _, value = self.url.partition(":")
        return value if kind == "sha256" else ""


class Address(NamedTuple):
    """The address of a file, and the token for its host alone."""

    url: str
    token: str = ""


class PassingError(DllmError):
    """The network or a server failed, and may work a moment later."""


class SilenceError(PassingError):
    """A server sent nothing for ``TIMEOUT_S``."""


def get_file(
    place: Callable[[], Address],
    file: Path,
    origin: Partial,
    progress: DownloadProgress,
    check: Callable[[Path], object] = lambda _: None,
) -> bool:
    """Get a file and check it; false if it is there already."""
    part = half_of(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    with held(part, progress.file) as descriptor:
        if file.exists():
            part.unlink()
            return False
        work = _Transfer(part, descriptor, origin, progress)
        retried(place, work.resume, work.come_bytes)
        finish_download(part, file, origin.sha256, progress, check)
    return True


def finish_download(
    part: Path,
    file: Path,
    sha256: str,
    progress: DownloadProgress,
    check: Callable[[Path], object] = lambda _: None,
) -> None:
    """Check what has arrived, and give it its name; remove it if it is wrong."""
    name, found = progress.file, sha256
    if sha256:
        progress.begin(f"checking {name}")
        found = sha256_of(part)
    try:
        if found != sha256:
            what = "its SHA-256 is not the one that was announced"
            raise DllmError(
                f"{name} arrived damaged: {what}", "It was removed; get it again."
            )
        check(part)
    except DllmError as error:
        part.unlink()
        _note_of(part).unlink(missing_ok=True)
        raise DllmError(error.what.replace(part.name, name), error.hint) from error
    with part.open("rb") as stream:
        os.fsync(stream.fileno())
    part.rename(file)
    _note_of(part).unlink(missing_ok=True)


def sha256_of(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def retried(
    place: Callable[[], Address],
    work: Callable[[Address], None],
    come: Callable[[], int] = lambda: 0,
) -> None:
    """Work with the answer of an address, which is asked for anew after a break.

    It gives up after ``TRIES`` breaks, or ``SILENCES``, with no bytes ``come``.
    """
    breaks, silences, most_bytes = 0, 0, come()
    while True:
        url, failure = "", DllmError("")
        try:
            address = place()
            url = address.url
            return work(address)
        except PassingError as error:
            failure = error
        except urllib.error.HTTPError as error:
            failure = refused_by_status(url, error.code, error.headers)
            if not isinstance(failure, PassingError):
                raise failure from error
        except (HTTPException, OSError) as error:
            if _is_local(error):
                raise
            if urlsplit(url).scheme == "file":
                raise _unreadable(url, error) from error
            failure = broken(url, str(getattr(error, "reason", error)))
        if come() >= most_bytes + CHUNK_BYTES:
            breaks, silences, most_bytes = 0, 0, come()
        breaks += 1
        silences = silences + 1 if isinstance(failure, SilenceError) else 0
        if breaks == TRIES or silences == SILENCES:
            raise failure
        time.sleep(RETRY_S)


@contextmanager
def held(part: Path, name: str) -> Iterator[int]:
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
        try:
            yield descriptor
        finally:
            if not os.fstat(descriptor).st_size:
                part.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def half_of(file: Path) -> Path:
    """The place of what has come of a file so far."""
    return file.with_name(f".{file.name}.part")


def _note_of(part: Path) -> Path:
    return part.with_suffix(".resume")


class _Transfer(NamedTuple):
    """The bytes of one file on their way into its part."""

    part: Path
    descriptor: int
    origin: Partial
    progress: DownloadProgress

    def come_bytes(self) -> int:
        return os.fstat(self.descriptor).st_size

    def resume(self, address: Address) -> None:
        """Get what is missing of a file, or all of it if it has changed."""
        known = self._known()
        have = self.come_bytes() if known else 0
        size_bytes = self.origin.size_bytes
        whole = size_bytes or (known.size_bytes if known and known.sha256 else 0)
        if whole and have == whole:
            return
        headers = {}
        if known and 0 < have < (size_bytes or have + 1):
            headers["Range"] = f"bytes={have}-"
            if known.validator:
                headers["If-Range"] = known.validator
        try:
            with opened(address, headers) as answer:
                self._take(answer, have, known.validator if known else "")
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise
            total = _range(error.headers)[1] or (known.size_bytes if known else 0)
            if size_bytes:
                what = f"it has {total} of {size_bytes} bytes"
                raise ConnectionError(what) from error
            if total != have:
                raise self._changed() from error

    def _known(self) -> Partial | None:
        try:
            note = _note_of(self.part).read_bytes()
            known = msgspec.json.decode(note, type=Partial)
        except (OSError, msgspec.MsgspecError):
            return None
        may_resume = known.validator or known.sha256
        return known if known.url == self.origin.url and may_resume else None

    def _changed(self, how: str = "the file has changed") -> ConnectionError:
        os.ftruncate(self.descriptor, 0)
        return ConnectionError(how)

    def _take(self, answer: Any, have: int, validator: str) -> None:
        told, origin = answer.headers, self.origin
        if told.get_content_type() == "text/html":
            raise sent_page(answer.url)
        length = _number(told["Content-Length"] or "")
        if answer.status == HTTPStatus.PARTIAL_CONTENT:
            begin, total = _range(told)
            if begin != have:
                raise self._changed("another part than the one asked for came")
            if validator and _validator(told) not in ("", validator):
                raise self._changed()
        else:
            have, total = 0, length
        if origin.size_bytes and total not in (0, origin.size_bytes):
            raise ConnectionError(f"it has {total} of {origin.size_bytes} bytes")
        size_bytes = origin.size_bytes or total or (have + length if length else 0)
        require_disk_room(self.part.parent, max(size_bytes - have, 0))
        if not origin.size_bytes:
            origin = replace(origin, size_bytes=size_bytes, validator=_validator(told))
            self.progress.begin(self.progress.file, size_bytes, have)
        write_private(_note_of(self.part), msgspec.json.encode(origin))
        ends = filter(None, (size_bytes, length and have + length))
        self._append(answer, have, min(ends, default=0))
        if (come := self.come_bytes()) != (size_bytes or come):
            raise ConnectionError(f"it ended after {come} of {size_bytes} bytes")

    def _append(self, answer: Any, have: int, end: int) -> None:
        os.ftruncate(self.descriptor, have)
        os.lseek(self.descriptor, have, os.SEEK_SET)
        checked = have
        while (want := min(CHUNK_BYTES, end - have if end else CHUNK_BYTES)) and (
            # Not read(): a break would lose what has come of its chunk.
            chunk := answer.read1(want)
        ):
            view = memoryview(chunk)
            while view:
                view = view[os.write(self.descriptor, view) :]
            have += len(chunk)
            self.progress.at(have)
            if have - checked > SPARE_BYTES // 2:
                checked = have
                require_disk_room(self.part.parent, 0)


def opened(address: Address, headers: dict[str, str]) -> Any:
    """The answer of an address; a host that it redirects to gets no token."""
    own = {"User-Agent": "dllm-tui", "Accept-Encoding": "identity"}
    request = urllib.request.Request(address.url, headers=own | headers)
    if address.token:
        request.add_unredirected_header("Authorization", f"Bearer {address.token}")
    return urllib.request.urlopen(request, timeout=TIMEOUT_S)


def _range(headers: Any) -> tuple[int, int]:
    # First byte of a part, and bytes of the whole; 0 where that is not told.
    unit_and_range, _, total = (headers["Content-Range"] or "").partition("/")
    first, _, _ = unit_and_range.removeprefix("bytes ").partition("-")
    return _number(first), _number(total)


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _validator(headers: Any) -> str:
    # If-Range takes no weak ETag.
    etag = headers.get("ETag", "")
    if etag and not etag.startswith("W/"):
        return str(etag)
    return str(headers.get("Last-Modified", ""))


def _is_local(error: Exception) -> bool:
    local = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
    return isinstance(error, OSError) and (
        error.errno in local or error.filename is not None
    )


def require_disk_room(folder: Path, need_bytes: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < need_bytes + SPARE_BYTES:
        raise MachineError(
            f"{folder} has {format_bytes(free_bytes)} free, and "
            f"{format_bytes(need_bytes)} are still needed",
            "Make room, or set another folder (model_dirs, HF_HOME).",
        )


def broken(place: str, why: str) -> PassingError:
    first = printable(re.sub(r"^\[Errno -?\d+\] ", "", why.strip().split("\n")[0]))
    hint = f"Check the network. {RESUME}"
    if "timed out" in first:
        silent_s = SILENCES * TIMEOUT_S
        return SilenceError(f"{_host(place)} sent nothing for {silent_s:g} s", hint)
    return PassingError(f"The connection to {_host(place)} failed ({first})", hint)


def _unreadable(url: str, error: Exception) -> DllmError:
    # What is not in a folder does not come by itself.
    reason = getattr(error, "reason", error)
    why = getattr(reason, "strerror", None) or str(reason)
    return DllmError(f"{printable(url)} cannot be read ({why})", "Check the path.")


def _host(place: str) -> str:
    # Without a name and a password.
    return urlsplit(place).netloc.rpartition("@")[2] or place


def sent_page(place: str) -> DllmError:
    return DllmError(
        f"{_host(place)} sent a web page in place of what was asked for",
        f"Check the address, and whether the network wants a login. {RESUME}",
    )


def refused_by_status(place: str, status: int, headers: Any) -> DllmError:
    host = _host(place)
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
    kind = DllmError if status < HTTPStatus.INTERNAL_SERVER_ERROR else PassingError
    return kind(f"{host} answered with HTTP {status}", f"Try again{when}. {RESUME}")


def main(url: str, file: str, expected: str, size_bytes: str) -> int:
    """Get a file; print progress, and why it failed."""
    path = Path(file)

    def get(progress: DownloadProgress) -> None:
        progress.begin(path.name)
        if path.is_file() and sha256_of(path) != expected:
            path.unlink()
        origin = Partial(url=f"sha256:{expected}", size_bytes=int(size_bytes))
        get_file(lambda: Address(url), path, origin, progress)
        progress.whole(path, "pinned SHA-256")

    return run_download(get, url, str(path.parent))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
