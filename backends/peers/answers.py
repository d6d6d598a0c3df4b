"""What ``host.sh`` answers, understood: the machine at its other end is not ours."""

from __future__ import annotations

import base64
import binascii
import re
from typing import TYPE_CHECKING

import msgspec

from backends.errors import HostError
from backends.peers.directory import (
    LOG_FILE,
    decode_exit,
    decode_process,
    ended_record,
    living_record,
    unreadable_record,
)
from backends.peers.family import Orphan
from backends.peers.identity import is_recorded
from backends.state import Device, DeviceKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backends.peers.directory import ProcessFile
    from backends.peers.host import ProcessRecord

END = "end"
_SHOWN_CHARACTERS = 80
_NUMBER = re.compile(r"-?[0-9]{1,18}")


class Answer:
    """Lines of a tag and what belongs to it."""

    def __init__(self, host: str, text: str) -> None:
        """Take what was printed there.

        Raises:
            HostError: it is not whole.
        """
        self._host = host
        # Not splitlines: a command line may hold any other line end.
        lines = text.rstrip("\n").split("\n")
        if lines[-1] != END:
            raise self._senseless(lines[-1])
        self._lines = [line.partition(" ") for line in lines[:-1]]

    def all(self, tag: str) -> Iterator[str]:
        """What belongs to a tag, each time it comes."""
        return (rest for found, _, rest in self._lines if found == tag)

    def first(self, tag: str) -> str | None:
        """What belongs to a tag; None when it does not come."""
        return next(self.all(tag), None)

    def numbers(self, tag: str) -> list[int]:
        """The numbers that belong to a tag, none when it does not come."""
        return [self.number(word) for word in (self.first(tag) or "").split()]

    def number(self, word: str) -> int:
        """A number.

        Raises:
            HostError: it is none.
        """
        if not _NUMBER.fullmatch(word):
            raise self._senseless(word)
        return int(word)

    def words(self, line: str, count: int) -> list[str]:
        """So many words of a line, the last one up to its end.

        Raises:
            HostError: there are fewer.
        """
        words = line.split(" ", count - 1)
        if len(words) != count:
            raise self._senseless(line)
        return words

    def decoded(self, encoding: str, text: str) -> bytes:
        """Bytes that were sent as text.

        Raises:
            HostError: they were not sent in full.
        """
        try:
            if encoding == "base64":
                return base64.b64decode(text)
            return bytes.fromhex(text)
        except (ValueError, binascii.Error) as error:
            raise self._senseless(text) from error

    def bytes_after(self, tag: str) -> bytes:
        """The bytes whose encoding is said by the line after that of a tag."""
        tags = [found for found, _, _ in self._lines]
        after = tags.index(tag) + 1
        body = (" ".join(line) for line in self._lines[after + 1 :])
        return self.decoded(tags[after] if after < len(tags) else "", "".join(body))

    def _senseless(self, text: str) -> HostError:
        shown = text[:_SHOWN_CHARACTERS]
        return HostError(f"{self._host} gave an answer without sense ({shown!r})")


def records_in(answer: Answer, run_dir: str) -> list[ProcessRecord]:
    """The process directories that are told of, by name."""
    processes = dict(answer.words(line, 2) for line in answer.all("process"))
    exits = dict(answer.words(line, 2) for line in answer.all("exit"))
    seen = dict(_living(answer))
    return [
        _record(
            name,
            f"{run_dir}/{name}/{LOG_FILE}",
            processes.get(name, "").encode(errors="replace"),
            exits.get(name, "").encode(errors="replace"),
            seen,
        )
        for name in sorted(answer.all("record"))
    ]


def _living(answer: Answer) -> Iterator[tuple[int, tuple[str, int]]]:
    """Identity and memory of the processes that exist."""
    for line in answer.all("alive"):
        pid, rss, identity = answer.words(line, 3)
        yield answer.number(pid), (identity, answer.number(rss))


def _record(
    name: str,
    log_path: str,
    process_json: bytes,
    exit_json: bytes,
    seen: dict[int, tuple[str, int]],
) -> ProcessRecord:
    try:
        process = decode_process(process_json)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return unreadable_record(name, log_path)
    rss_bytes = _rss_bytes(process, seen)
    if rss_bytes is None:
        return ended_record(name, log_path, process, decode_exit(exit_json, process))
    return living_record(name, log_path, process, rss_bytes)


def _rss_bytes(process: ProcessFile, seen: dict[int, tuple[str, int]]) -> int | None:
    """Memory of the very process that was recorded; None when it is gone."""
    identity, rss_bytes = seen.get(process.pid, ("", 0))
    return rss_bytes if is_recorded(identity, process.start_id) else None


def orphans_in(answer: Answer) -> list[Orphan]:
    """The orphans that are told of."""
    encoding = answer.first("encoding") or ""
    argv: dict[str, str] = {}
    for line in answer.all("argv"):
        pid, text = answer.words(line, 2)
        argv[pid] = argv.get(pid, "") + text
    return [
        Orphan(
            name=name.rpartition("/")[2],
            pid=answer.number(pid),
            start_id=identity,
            argv=_argv(answer.decoded(encoding, argv.get(pid, ""))),
        )
        for pid, identity, name in (
            answer.words(line, 3) for line in answer.all("orphan")
        )
    ]


def _argv(command_line: bytes) -> tuple[str, ...]:
    parts = command_line.decode(errors="replace").removesuffix("\0").split("\0")
    return tuple(parts) if command_line else ()


def memory_in(answer: Answer, host: str) -> Device:
    """The main memory that is told of, as ``memory.cpu_device`` tells of ours."""
    total, free = _total_and_free(answer)
    limit = answer.first("max") or "max"
    if limit != "max":
        allowed, used, cache = (
            sum(answer.numbers(tag)) for tag in ("max", "current", "inactive_file")
        )
        total, free = min(total, allowed), min(free, max(allowed - used + cache, 0))
    return Device(
        id=f"{host}/CPU",
        name="CPU",
        kind=DeviceKind.CPU,
        description=_description(answer),
        total_bytes=total,
        free_bytes=free,
        memory_pool=host,
    )


def _total_and_free(answer: Answer) -> tuple[int, int]:
    if answer.first("total") is not None:
        pages = sum(answer.number(count) for count in answer.all("pages"))
        return sum(answer.numbers("total")), pages * sum(answer.numbers("page"))
    # Kernels before 3.14 do not tell what is available.
    free = answer.numbers("MemAvailable") or answer.numbers("MemFree")
    return sum(answer.numbers("MemTotal")) * 1024, sum(free) * 1024


def _description(answer: Answer) -> str:
    name = " ".join((answer.first("cpu") or answer.first("machine") or "").split())
    cores = sum(answer.numbers("cores")) or sum(answer.numbers("processors")) or 1
    return f"{name}, {cores} core{'' if cores == 1 else 's'}"
