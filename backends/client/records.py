"""The records that a client's user begins and ends, and what is asked for them."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from backends.client.client import ControllerClient
from backends.errors import DllmError
from backends.units import format_age, format_bytes

if TYPE_CHECKING:
    from backends.client.flight_recorder import FlightRecorder

LOG_EVERY_S = 2.0
LOG_BYTES = 65536


class ClientRecords:
    """The records that a client's user begins and ends, one at a time."""

    def __init__(self, client: ControllerClient) -> None:
        self._client = client
        self._recorder: FlightRecorder | None = None

    @property
    def file(self) -> str:
        return str(self._recorder.file) if self._recorder else ""

    def begin(
        self, *, size: tuple[int, int], words: bool = True, file: Path | None = None
    ) -> None:
        """Begin a record, by default of a new name in the present folder.

        Raises:
            DllmError: the file is there already, or cannot be written.
        """
        # Imported when needed: few consoles record, and all must start fast.
        from backends.client.flight_recorder import FlightRecorder

        file = file or Path(time.strftime("dllm-record-%Y%m%d-%H%M%S.jsonl.gz"))
        cluster = self._client.cluster
        recorder = FlightRecorder(file, cluster=cluster, size=size, words=words)
        self._recorder = recorder
        self._client.record(recorder)

    async def follow(self) -> str:
        """Ask for what no pane asks for; returns once the record ended, with why."""
        recorder = self._recorder
        if recorder is None:
            return ""
        await _survey(self._client, recorder)
        if self._recorder is recorder:
            await self.end()
        return recorder.problem

    async def end(self) -> str:
        """End the record; its file, its time and its size in words."""
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return ""
        self._client.record(None)
        await asyncio.to_thread(recorder.close)
        length, size = format_age(recorder.seconds), format_bytes(recorder.size_bytes)
        return f"{recorder.file} ({length}, {size})"

    def close(self) -> None:
        """End the record, where no loop runs any more."""
        if self._recorder is not None:
            self._recorder.close()


async def _survey(client: ControllerClient, recorder: FlightRecorder) -> None:
    """Ask, until the record ends, for what a replay shows and no pane may ask for now.

    The answers reach the recorder by the connection. What cannot be had is left out.
    """
    for ask in (client.catalogue, client.events, client.chats.listing):
        with suppress(DllmError):
            await ask()
    model = ""
    offsets: dict[str, int] = {}
    while recorder.is_open:
        snapshot = client.seen
        plan = snapshot.plan if snapshot else None
        if plan is not None and plan.model != model:
            model = plan.model
            with suppress(DllmError):
                await client.inspect(model)
                await client.speeds(plan)
                await client.memory(plan)
        for process in snapshot.processes if snapshot else ():
            with suppress(DllmError):
                offset = offsets.get(process.name, -LOG_BYTES)
                chunk = await client.read_log(process.name, offset, LOG_BYTES)
                offsets[process.name] = chunk.next_offset
        await asyncio.sleep(LOG_EVERY_S)
