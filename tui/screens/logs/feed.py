"""One process's log: read piece by piece for a view, or whole for a file."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import BinaryIO

from textual.content import Content

from backends.errors import DllmError
from backends.state import ClusterSnapshot, LogChunk, ProcessInfo, ProcessState
from backends.units import format_bytes
from backends.writing import become, set_aside
from tui.api.services import ClusterService
from tui.model.merged_log import (
    PAGE_BYTES,
    TAIL_BYTES,
    MergedLog,
    fills_page,
    shown_lines,
)
from tui.model.process_words import ending_text
from tui.screens.logs.view import LogView
from tui.widgets.keys import with_keys
from tui.widgets.safe_text import safe, safe_line

PAGES_BEHIND_MAX = 8
"""After so many whole pages in a row the rest is left out, up to the end."""


class LogFeed:
    def __init__(self, info: ProcessInfo, view: LogView) -> None:
        self.info = info
        self.view = view
        self.gone = False
        """The process is no longer listed."""
        self.trouble = ""
        self._next_offset: int | None = None
        self._pages_behind = 0
        """Pages read in a row after which there was more."""
        self._restart_seen = False

    @property
    def next_read(self) -> tuple[int, int]:
        """Offset and limit of the next read; negative counts from the end."""
        if self._next_offset is None or self._pages_behind >= PAGES_BEHIND_MAX:
            return -TAIL_BYTES, TAIL_BYTES
        return self._next_offset, PAGE_BYTES

    @property
    def is_behind(self) -> bool:
        return self._pages_behind > 0

    def update(self, info: ProcessInfo) -> None:
        """Take newer facts; another start under the same name is read from 0."""
        restarted = bool(self.info.started_at) and (
            info.started_at != self.info.started_at
        )
        self.info, self.gone = info, False
        if restarted and self._next_offset is not None and not self._restart_seen:
            self.view.mark("started again")
            self._next_offset = 0
        if restarted:
            self._restart_seen = False

    def forget(self) -> None:
        """Read the log anew: another moment of it is shown."""
        self.view.clear()
        self._next_offset, self._pages_behind = None, 0

    def take(self, chunk: LogChunk) -> None:
        text = chunk.text
        if chunk.restarted:
            self._restart_seen = True
            self.view.mark("started again")
        elif (left_out := chunk.offset - (self._next_offset or 0)) > 0:
            text = text.partition("\n")[2]
            saves = with_keys(self.view.app, "{log.save} saves all")
            before = format_bytes(left_out)
            self.view.mark(f"{before} before this are not shown · {saves}")
        elif left_out < 0:  # The end was asked for, and part of it is shown already.
            text = text.encode()[-left_out:].decode(errors="replace")
        self._pages_behind = self._pages_behind + 1 if fills_page(chunk) else 0
        self._next_offset = chunk.next_offset
        self.trouble = ""
        self.view.feed(text)

    def title(self) -> Content:
        info = self.info
        sign = ("●", "$ok") if info.state is ProcessState.RUNNING else ("◐", "$warn")
        if info.state is ProcessState.EXITED:
            ended_well = info.exit_code in (0, None)
            if info.exit_signal is not None:
                ended_well = info.exit_signal in (signal.SIGTERM, signal.SIGINT)
            sign = ending_text(info), "$dim" if ended_well else "$bad"
        elif self.gone:
            sign = "gone", "$dim"
        return Content.assemble(safe_line(info.name), " ", sign)


class MergedFeed:
    """Feeds a view with the logs of all processes, in the order of time."""

    def __init__(self, cluster: ClusterService, view: LogView) -> None:
        self.view = view
        self._cluster = cluster
        self._log = MergedLog(cluster.read_log)

    @property
    def is_behind(self) -> bool:
        return self._log.is_behind

    def forget(self) -> None:
        self.view.clear()
        self._log = MergedLog(self._cluster.read_log)

    async def read(self, snapshot: ClusterSnapshot) -> None:
        lines = await self._log.more(snapshot)
        self.view.feed("".join(f"{line}\n" for line in shown_lines(lines)))


WHOLE_PAGE_BYTES = 1_048_576
PAGER_BYTES = 16 * WHOLE_PAGE_BYTES
"""Shown in a pager, the newest."""


async def save_log(pages: AsyncIterable[str], name: str, folder: Path) -> Path:
    """Write a log to a new file in a folder.

    Nothing is left of one that could not be written whole.

    Returns:
        The file written.
    """
    try:
        if not await asyncio.to_thread(folder.is_dir):
            folder = Path.home()
        with set_aside(folder) as (aside, stream):
            async for text in pages:
                await asyncio.to_thread(stream.write, text.encode())
            path = await asyncio.to_thread(_name, aside, stream, folder, name)
    except OSError as error:
        raise DllmError(
            f"Cannot save the log in {folder} ({error.strerror}): nothing was written",
            "Free some space there, or copy the log with y.",
        ) from error
    return path


async def end_of_log(cluster: ClusterService, name: str) -> str:
    """The last part of a process's log, for a pager."""
    first = await cluster.read_log(name, -PAGER_BYTES, WHOLE_PAGE_BYTES)
    left_out = f"── {format_bytes(first.offset)} before this are not shown ──\n"
    texts = [left_out] if first.offset > 0 else []
    texts += [first.text]
    texts += [text async for text in log_pages(cluster, name, first.next_offset)]
    return await asyncio.to_thread(safe, "".join(texts))


async def log_pages(
    cluster: ClusterService, name: str, offset: int = 0
) -> AsyncIterator[str]:
    """A process's log from an offset on."""
    while True:
        chunk = await cluster.read_log(name, offset, WHOLE_PAGE_BYTES)
        if chunk.next_offset <= offset:
            return
        yield chunk.text
        offset = chunk.next_offset


def _name(aside: Path, stream: BinaryIO, folder: Path, name: str) -> Path:
    """Give it a name that nothing has: ``dllm-server.log``, ``dllm-server-2.log``…"""
    stream.close()
    stem = "dllm-" + re.sub(r"[^\w.-]+", "-", name)
    path = folder / f"{stem}.log"
    for number in count(2):
        with suppress(FileExistsError):
            become(aside, path)
            break
        path = folder / f"{stem}-{number}.log"
    return path
