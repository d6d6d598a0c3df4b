"""A peer gets a model by the fastest way: itself, or from a machine that has it.

Every way writes the same file there from its beginning on. So nothing is lost when each
is tried for some seconds, and one way goes on where another broke off.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ssl
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

import aiohttp
import asyncssh

from backends.errors import MachineError, ModelError, UsageError
from backends.machines.provisioning import SPARE_BYTES
from backends.machines.shell import (
    Shell,
    ShellResult,
    WrongFile,
    lock,
    peer_full,
    refusal,
    rows,
    script,
    transfer_error,
    why_ended,
)
from backends.machines.ssh.files import (
    CHUNK_BYTES_MAX,
    Meter,
    read_at,
    read_chunks,
    write_at,
)
from backends.models.identity import (
    full_sha256,
    identity_from,
    identity_of,
    sampled,
    size_in,
)
from backends.models.layer_file import Run
from backends.models.search import DEFAULT_FOLDER
from backends.state import PeerWork
from backends.state.models import Delivered, RemoteModel
from backends.tasks import end_tasks
from backends.units import format_mb_s

TRIAL_S = 2.0
TRIED_FROM_BYTES = 64 << 20
"""Less comes by the first way that works: a trial would not pay."""
CHUNK_BYTES = 1 << 20
POLL_S = 0.5
HASH_S = 3600.0
SILENT_S = 30
UNVERIFIED = "unverified: length alone"
"""Of a file that no hash is known of: hubs publish those of whole files alone."""
UNVERIFIED_PART = f"{UNVERIFIED}; a launch compares its tensors with the head's"
SAMPLED = "length and samples alone: it was there already"
_DIFFERS = 65
_WHOLE, _RANGE = "200", "206"


class Wanted(NamedTuple):
    name: str
    header: bytes
    """Written before the runs; empty for a whole file."""
    runs: tuple[Run, ...]
    """Of the model's file, in order and without gaps in this one."""
    sha256: str = ""
    """Of all of this; empty where nobody can tell it yet."""
    source: Path | None = None
    """The same file here, whole, which is hashed while it is sent."""
    identity: str = ""
    """Of that file."""
    origin: str = ""
    """Another for each version of it."""

    @property
    def size_bytes(self) -> int:
        return len(self.header) + sum(run.length for run in self.runs)

    @property
    def key(self) -> str:
        """Tells a half copy of it from others."""
        known = self.sha256 or self.identity or self.header.hex() + self.origin
        told = f"{self.name} {self.runs} {known}"
        return hashlib.sha256(told.encode()).hexdigest()

    def verified_by(self, *, was_there: bool) -> str:
        if self.sha256 or (self.source and not was_there):
            return "SHA-256"
        if self.identity:
            return SAMPLED
        return UNVERIFIED_PART if self.header else UNVERIFIED

    def left(self, have: int) -> list[tuple[int, int]]:
        """Offset and length in the model's file of what is missing."""
        runs = []
        for run in self.runs:
            done = min(max(have - run.target_at, 0), run.length)
            if done < run.length:
                runs.append((run.source_at + done, run.length - done))
        return runs


def whole_files(files: Sequence[Path]) -> list[Wanted]:
    found = ((file, identity_of(file)) for file in files)
    return [
        Wanted(file.name, b"", (Run(0, size_in(known), 0),), "", file, known)
        for file, known in found
    ]


class WayEnded(ModelError):
    """A way does not lead on; another may."""


class Way(Protocol):
    """One way to bring bytes of a model's files to a peer."""

    label: str
    """``from this machine``."""

    async def bring(
        self, part: Part, index: int, left: Sequence[tuple[int, int]], limit_s: float
    ) -> None:
        """Append what is left of a file, or what comes within the limit; 0: all.

        Raises:
            WayEnded: it breaks off.
        """


class Part:
    def __init__(
        self, shell: Shell, sftp: asyncssh.SFTPClient, path: str, meter: Meter
    ) -> None:
        self.shell = shell
        self.path = path
        self._sftp = sftp
        self._meter = meter
        self._told = 0
        self._file: asyncssh.SFTPClientFile | None = None

    async def size(self) -> int:
        """Bytes of it so far, which the meter hears of."""
        try:
            size_bytes = (await self._sftp.stat(self.path)).size or 0
        except asyncssh.SFTPNoSuchFile:
            size_bytes = 0
        if size_bytes > self._told:
            self._meter.sent(size_bytes - self._told)
        self._told = size_bytes
        return size_bytes

    def resumes(self, size_bytes: int) -> None:
        self._meter.skip(size_bytes)
        self._told = size_bytes

    async def write(self, data: bytes, at: int) -> None:
        if self._file is None:
            # It ends with the session.
            self._file = await self._sftp.open(self.path, "r+b" if at else "wb")
        await write_at(self._file, data, at)
        self._meter.sent(at + len(data) - self._told)
        self._told = at + len(data)

    async def truncate(self, size_bytes: int) -> None:
        await self._sftp.truncate(self.path, size_bytes)


class _Stream:
    """A way on which the bytes pass through this machine."""

    label: str

    def read(self, index: int, at: int, length: int) -> AsyncGenerator[bytes, None]:
        raise NotImplementedError

    async def bring(
        self, part: Part, index: int, left: Sequence[tuple[int, int]], limit_s: float
    ) -> None:
        ends = time.monotonic() + limit_s if limit_s else None
        place = await part.size()
        for at, length in left:
            came = 0
            async with contextlib.aclosing(self.read(index, at, length)) as chunks:
                async for chunk in chunks:
                    await part.write(chunk, place)
                    place += len(chunk)
                    came += len(chunk)
                    if ends is not None and time.monotonic() > ends:
                        return
            if came != length:
                raise WayEnded(f"{self.label}: it ended after {came} of {length} bytes")


class FromHere(_Stream):
    label = "from this machine"

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = files

    async def read(
        self, index: int, at: int, length: int
    ) -> AsyncGenerator[bytes, None]:
        with await asyncio.to_thread(self.files[index].open, "rb") as file:
            async with contextlib.aclosing(read_chunks(file, at, length)) as chunks:
                async for chunk in chunks:
                    yield chunk


class FromPeer(_Stream):
    """From files of another peer: both are reached from here, so it goes through us."""

    def __init__(self, shell: Shell, paths: Sequence[str]) -> None:
        self.label = f"from {shell.name} through this machine"
        self._shell = shell
        self._paths = paths

    async def read(
        self, index: int, at: int, length: int
    ) -> AsyncGenerator[bytes, None]:
        try:
            async with (
                self._shell.files() as sftp,
                sftp.open(self._paths[index], "rb") as file,
            ):
                while length:
                    chunk = await read_at(file, min(CHUNK_BYTES, length), at)
                    if not chunk:
                        return
                    at, length = at + len(chunk), length - len(chunk)
                    yield chunk
        except (asyncssh.Error, OSError, MachineError) as error:
            raise WayEnded(f"{self.label}: {error}") from error


class Addresses:
    """The addresses of a model's files, asked for anew when they expire."""

    def __init__(
        self, model: RemoteModel, again: Callable[[], Awaitable[RemoteModel]]
    ) -> None:
        self._model = model
        self._again = again
        self.host = urlsplit(model.files[0].url).netloc

    def of(self, index: int) -> tuple[str, str]:
        """URL and token; the token is for that host alone."""
        file = self._model.files[index]
        if not file.url.isprintable() or not file.token.isprintable():
            raise WayEnded(f"{self.host} gave an address that is none")
        return file.url, file.token

    async def renew(self) -> None:
        self._model = await self._again()


@cache
def _trusted() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class FromHub(_Stream):
    def __init__(self, addresses: Addresses) -> None:
        self.label = f"from {addresses.host} through this machine"
        self._addresses = addresses

    async def read(
        self, index: int, at: int, length: int
    ) -> AsyncGenerator[bytes, None]:
        url, token = self._addresses.of(index)
        headers = {"Range": f"bytes={at}-{at + length - 1}"}
        headers |= {"Authorization": f"Bearer {token}"} if token else {}
        silent = aiohttp.ClientTimeout(total=None, sock_connect=15, sock_read=SILENT_S)
        # The default of aiohttp trusts nobody in a controller.
        connector = aiohttp.TCPConnector(ssl=await asyncio.to_thread(_trusted))
        session = aiohttp.ClientSession(
            connector=connector, timeout=silent, trust_env=True
        )
        try:
            async with (
                session,
                session.get(url, headers=headers, allow_redirects=False) as answer,
            ):
                if wrong := _wrong(str(answer.status), answer.content_type, at):
                    raise WayEnded(f"{self.label}: {wrong}")
                async for chunk in answer.content.iter_chunked(CHUNK_BYTES):
                    yield chunk[:length]
                    length -= len(chunk)
                    if length <= 0:
                        return
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise WayEnded(f"{self.label}: {error or 'no answer'}") from error


class ByItself:
    """The peer gets it from the hub, with its own curl."""

    def __init__(self, addresses: Addresses) -> None:
        self.label = f"by itself from {addresses.host}"
        self._addresses = addresses

    async def bring(
        self, part: Part, index: int, left: Sequence[tuple[int, int]], limit_s: float
    ) -> None:
        watching = asyncio.create_task(_watch(part))
        try:
            ends = time.monotonic() + limit_s if limit_s else None
            for at, length in left:
                rest_s = ends - time.monotonic() if ends else 0.0
                if ends and rest_s <= 0:
                    return
                if not await self._get(part, index, at, length, rest_s):
                    return
        finally:
            await end_tasks(watching)

    async def _get(
        self, part: Part, index: int, at: int, length: int, limit_s: float
    ) -> bool:
        before = await part.size()
        url, token = self._addresses.of(index)
        folder, _, name = part.path.rpartition("/")
        result = await part.shell.run(
            script("model"),
            *("fetch", folder, name.removesuffix(".part"), str(length)),
            _config(url, token, at, length, limit_s),
            timeout_s=None,
            check=False,
        )
        told = [row[1:] for row in rows(result.stderr) if row[0] == "code"]
        status, kind = told[-1] if told else ("000", "")
        if wrong := _wrong(status, kind, at):
            # What came, if anything, is an error's page or another part.
            await part.truncate(before)
            wrong = _why(result) if status == "000" else wrong
            raise WayEnded(f"{self.label}: {wrong}")
        came = await part.size() - before
        if came < length and not limit_s:
            raise WayEnded(f"{self.label}: {_why(result)}")
        return came == length


def _wrong(status: str, kind: str, at: int) -> str:
    if status != _RANGE and (at or status != _WHOLE):
        return f"HTTP {status}"
    return "a web page came in place of the file" if "text/html" in kind else ""


def _why(result: ShellResult) -> str:
    said = [line for line in result.stderr.splitlines() if line.startswith("curl: ")]
    return said[-1] if said else why_ended(result)


def _config(url: str, token: str, at: int, length: int, limit_s: float) -> str:
    lines = [
        f"url = {_quoted(url)}",
        f'range = "{at}-{at + length - 1}"',
        'user-agent = "dllm-tui"',
        'proto = "=http,https"',
        "silent",
        "show-error",
        "connect-timeout = 15",
        "speed-limit = 1",
        f"speed-time = {SILENT_S}",
    ]
    if token:
        lines.append(f"header = {_quoted(f'Authorization: Bearer {token}')}")
    if limit_s:
        lines.append(f"max-time = {max(limit_s, 0.5):g}")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


async def _watch(part: Part) -> None:
    while True:
        await asyncio.sleep(POLL_S)
        with contextlib.suppress(asyncssh.Error, OSError):
            await part.size()


async def deliver_model(
    shell: Shell,
    wanted: Sequence[Wanted],
    ways: Sequence[Way],
    *,
    report: Callable[[PeerWork], None],
    renew: Callable[[], Awaitable[None]] | None = None,
) -> Delivered:
    """Have a peer get files; cancelling it keeps what came, and the next call resumes.

    The likely best of ``ways`` comes first. ``renew`` asks for the addresses anew, once
    a way has ended.
    """
    if any(bad in file.name for file in wanted for bad in "\t\n"):
        raise UsageError("A file with a tab or line end in its name is not copied")
    place = f"{DEFAULT_FOLDER}/{wanted[0].name}"
    word = hashlib.sha256(place.encode()).hexdigest()[:12]
    job = _Delivery(shell, wanted, ways, report, renew)
    async with lock(shell, f"copy-{word}", f"Getting {wanted[0].name}"):
        return await job.run()


class _Delivery:
    def __init__(
        self,
        shell: Shell,
        wanted: Sequence[Wanted],
        ways: Sequence[Way],
        report: Callable[[PeerWork], None],
        renew: Callable[[], Awaitable[None]] | None,
    ) -> None:
        self.shell = shell
        self.wanted = wanted
        self.ways = list(ways)
        self.rates: dict[str, float] = {}
        self._report = report
        self._renew = renew
        self._title = f"Getting {wanted[0].name} on {shell.name}"
        self._doing = "looking at what is there"

    async def run(self) -> Delivered:
        self.say("")
        told = await self._script("look", *(file.name for file in self.wanted))
        lines = rows(told)
        folder = next(row[1] for row in lines if row[0] == "folder")
        there = {row[1] for row in lines if row[0] == "whole"}
        half = {row[3]: row for row in lines if row[0] == "half"}
        missing = [file for file in self.wanted if file.name not in there]
        for file in self.wanted:
            if file.name in there:
                await self._require_same(file, folder)
        free = next(int(row[1]) * 1024 for row in lines if row[0] == "free")
        taken = sum(int(row[2]) * 1024 for row in half.values())
        need = sum(file.size_bytes for file in missing)
        if need + SPARE_BYTES > free + taken:
            raise peer_full(self.shell.name, folder, need + SPARE_BYTES, free)
        meter = Meter(need, self.say)
        for index, file in enumerate(self.wanted):
            if file in missing:
                note = half[file.name][1] if file.name in half else ""
                await self._get(index, file, f"{folder}/{file.name}", note, meter)
        checks = {f.verified_by(was_there=f.name in there) for f in self.wanted}
        weakest_first = (UNVERIFIED_PART, UNVERIFIED, SAMPLED, "SHA-256")
        return Delivered(
            peer=self.shell.name,
            path=f"{folder}/{self.wanted[0].name}",
            size_bytes=sum(file.size_bytes for file in self.wanted),
            how=self.how() if missing else "there already",
            verified_by=next(how for how in weakest_first if how in checks),
        )

    def say(self, detail: str, progress: float | None = None) -> None:
        told = ", ".join(filter(None, (self._doing, detail)))
        self._report(PeerWork(title=self._title, detail=told, progress=progress))

    def how(self) -> str:
        """``by itself from hub, 31.2 MB/s (from this machine 11.0 MB/s)``."""
        best, *others = [
            f"{label} {format_mb_s(rate / 1e6)}"
            for label, rate in sorted(self.rates.items(), key=lambda r: -r[1])
        ] or [self.ways[0].label]
        return f"{best} ({', '.join(others)})" if others else best

    async def _require_same(self, file: Wanted, folder: str) -> None:
        self._doing, path = "checking what is there", f"{folder}/{file.name}"
        self.say("")
        async with self._files() as sftp:
            same = (await sftp.stat(path)).size == file.size_bytes
            if same and file.identity:
                # Without the helper, which need not be installed there yet.
                async with sftp.open(path, "rb") as there:
                    places = sampled(file.size_bytes)
                    pieces = [await _piece(there, *place) for place in places]
                same = identity_from(file.size_bytes, pieces) == file.identity
        if same and file.sha256:
            found = await self._script("sum", file.name)
            same = found.strip() == file.sha256
        if not same:
            raise WrongFile(
                f"Another file is called {path} on {self.shell.name}", "Move it away."
            )

    async def _get(
        self, index: int, file: Wanted, path: str, note: str, meter: Meter
    ) -> None:
        resumed = note == file.key
        if note and not resumed:
            await self._script("drop", file.name)
        hashing = asyncio.create_task(_sha256(file))
        try:
            for attempt in (1, 2):
                new = attempt > 1 or not resumed
                await self._fill(index, file, path, meter, new=new)
                self._doing = f"verifying {file.name}"
                self.say("", 1.0)
                sha256 = await asyncio.shield(hashing)
                args = ("finish", DEFAULT_FOLDER, file.name, sha256 or "-")
                result = await self.shell.run(
                    script("model"), *args, timeout_s=HASH_S, check=False
                )
                if result.code == 0:
                    return
                await self._script("drop", file.name)
                if result.code != _DIFFERS:
                    raise refusal(self.shell.name, result)
                if not resumed:
                    break
                meter = Meter(file.size_bytes, self.say)
        finally:
            hashing.cancel()
        raise WrongFile(
            f"{file.name} arrived changed on {self.shell.name}",
            "Did the original change meanwhile? Else look at its disk.",
        )

    async def _note(self, sftp: asyncssh.SFTPClient, path: str, note: str) -> None:
        async with sftp.open(f"{path}.part.identity", "wb") as kept:
            await write_at(kept, note.encode(), 0)

    async def _fill(
        self, index: int, file: Wanted, path: str, meter: Meter, *, new: bool
    ) -> None:
        async with self._files() as sftp:
            if new:
                await self._note(sftp, path, file.key)
            try:
                part = Part(self.shell, sftp, f"{path}.part", meter)
                await self._bring(index, file, part)
            except asyncssh.SFTPFailure as error:
                await self._require_room(file)
                raise transfer_error(self.shell.name, error) from error

    async def _require_room(self, file: Wanted) -> None:
        # SFTP has no word for a full disk.
        told = rows(await self._script("look", file.name))
        free = next(int(row[1]) * 1024 for row in told if row[0] == "free")
        if free < SPARE_BYTES:
            raise peer_full(self.shell.name, DEFAULT_FOLDER, file.size_bytes)

    async def _bring(self, index: int, file: Wanted, part: Part) -> None:
        have = await self._begun(file, part)
        renewed = False
        is_long = file.size_bytes - have > TRIED_FROM_BYTES
        if is_long and len(self.ways) > 1 and not self.rates:
            await self._try_all(index, file, part)
            have = await part.size()
        while left := file.left(have):
            if not self.ways:
                raise self._no_way
            way = self.ways[0]
            self._doing = way.label
            began, before = time.monotonic(), have
            try:
                await way.bring(part, index, left, 0.0)
            except WayEnded as error:
                if "No space left" in str(error):
                    raise peer_full(
                        self.shell.name, DEFAULT_FOLDER, file.size_bytes
                    ) from error
                now = await part.size()
                if now == have and (renewed or self._renew is None):
                    self._no_way = error
                    self.ways.remove(way)
                    renewed = False
                elif self._renew is not None and not renewed:
                    renewed = True
                    await self._renew()
            have = await part.size()
            if have > before:
                seconds = max(time.monotonic() - began, 1e-3)
                self.rates[way.label] = (have - before) / seconds
                renewed = False

    async def _begun(self, file: Wanted, part: Part) -> int:
        have = await part.size()
        # The last chunk of a broken transfer may have been written in any order.
        kept = max(have - CHUNK_BYTES_MAX, 0)
        if have > file.size_bytes or kept < len(file.header):
            await part.write(file.header, 0)
            kept = len(file.header)
        if have > kept:
            await part.truncate(kept)
        part.resumes(kept)
        return kept

    async def _try_all(self, index: int, file: Wanted, part: Part) -> None:
        """Try every way for some seconds, and put the fastest first."""
        for way in tuple(self.ways):
            have = await part.size()
            left = file.left(have)
            if not left:
                break
            self._doing = f"trying it {way.label}"
            began = time.monotonic()
            try:
                await way.bring(part, index, left, TRIAL_S)
            except WayEnded as error:
                self._no_way = error
                self.ways.remove(way)
                continue
            came = await part.size() - have
            self.rates[way.label] = came / max(time.monotonic() - began, 1e-3)
        self.ways.sort(key=lambda way: -self.rates.get(way.label, 0.0))

    _no_way: MachineError | ModelError = ModelError("There is no way to the model")

    @contextlib.asynccontextmanager
    async def _files(self) -> AsyncGenerator[asyncssh.SFTPClient, None]:
        try:
            async with self.shell.files() as sftp:
                yield sftp
        except (asyncssh.Error, OSError) as error:
            raise transfer_error(self.shell.name, error) from error

    async def _script(self, action: str, *args: str) -> str:
        result = await self.shell.run(
            script("model"),
            *(action, DEFAULT_FOLDER, *args),
            timeout_s=HASH_S,
            check=False,
        )
        if result.code != 0:
            raise refusal(self.shell.name, result)
        return result.stdout


async def _sha256(file: Wanted) -> str:
    if file.sha256 or file.source is None:
        return file.sha256
    stop = threading.Event()
    try:
        return await asyncio.to_thread(full_sha256, file.source, stopped=stop.is_set)
    finally:
        stop.set()


async def _piece(file: Any, offset: int, length: int) -> bytes:
    """Some bytes of a file there; a server may give fewer at a time."""
    data = b""
    while len(data) < length and (
        more := await read_at(file, length - len(data), offset + len(data))
    ):
        data += more
    return data
