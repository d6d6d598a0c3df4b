"""Starting one process on one machine, and seeing that it listens."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from backends.controller.evidence import failure_of
from backends.engine.argv import worker_argv
from backends.errors import ProcessFailed
from backends.link.relay import relay_argv, relay_name
from backends.peers.host import ProcessSpec
from backends.state import Failure, ProcessRole

if TYPE_CHECKING:
    from collections.abc import Callable

    from backends.controller.machines import Machine
    from backends.controller.readers import Engine
    from backends.peers.host import Host, ProcessRecord
    from backends.state import WorkerSpec

POLL_S = 0.1
LISTEN_TIMEOUT_S = 60.0
# Another program may take a free port between our look and the worker's bind.
PORT_ATTEMPTS = 3
# Without it an abort of ggml first runs a debugger for a backtrace, for seconds.
ENGINE_ENV = {"GGML_NO_BACKTRACE": "1"}


class Starter:
    """Starts workers and relays, or takes those that run already."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` gives Unix seconds."""
        self._clock = clock

    async def worker(self, machine: Machine, engine: Engine, worker: WorkerSpec) -> int:
        """The port of a worker that listens there.

        Raises:
            HostError: it cannot be started.
            ProcessFailed: it ended, or does not listen in time.
        """
        host = machine.host
        record = await host.record(worker.name)
        if record is not None and record.alive and record.port:
            await self._listening(host, record, record.port)
            return record.port
        for attempt in range(PORT_ATTEMPTS):
            port = await host.free_port()
            try:
                record = await self.start(host, _worker_spec(engine, worker, port))
                await self._listening(host, record, port)
            except ProcessFailed:
                taken = await host.port_owner(port)
                if attempt + 1 == PORT_ATTEMPTS or not taken:
                    raise
            else:
                return port
        raise AssertionError("unreachable")

    async def relay(self, head: Machine, worker: str, upstream: str) -> int:
        """The port of a worker's relay that listens on the head.

        ``upstream`` is where the head reaches the worker.

        Raises:
            HostError: it cannot be started.
            ProcessFailed: it ended, or does not listen in time.
        """
        record = await head.host.record(relay_name(worker))
        if record is None or not record.alive:
            spec = await _relay_spec(head, worker, upstream)
            record = await self.start(head.host, spec)
        port = record.port or 0
        await self._listening(head.host, record, port)
        return port

    async def start(self, host: Host, spec: ProcessSpec) -> ProcessRecord:
        """Start a process in place of the ended one of that name.

        Raises:
            HostError: it cannot be started.
        """
        await host.remove(spec.name)
        return await host.start(spec)

    async def _listening(self, host: Host, record: ProcessRecord, port: int) -> None:
        """Wait until that process listens.

        Raises:
            ProcessFailed: it ended, or does not listen in time.
        """
        deadline = self._clock() + LISTEN_TIMEOUT_S
        while not await host.listens(record.pid, port):
            now = await host.record(record.name)
            if now is None or not now.alive:
                raise ProcessFailed(
                    await failure_of(host, now or record, self._clock())
                )
            if self._clock() > deadline:
                failure = await failure_of(host, record, self._clock())
                what = f"{record.name} runs but does not listen on port {port}"
                raise ProcessFailed(
                    Failure(what=what, argv=failure.argv, log_tail=failure.log_tail)
                )
            await asyncio.sleep(POLL_S)


def _worker_spec(engine: Engine, worker: WorkerSpec, port: int) -> ProcessSpec:
    argv = worker_argv(
        engine.location, port=port, device=worker.device, threads=worker.threads
    )
    return ProcessSpec(
        name=worker.name,
        role=ProcessRole.WORKER,
        argv=argv,
        port=port,
        env=ENGINE_ENV,
        ignore_sigpipe=True,
    )


async def _relay_spec(head: Machine, worker: str, upstream: str) -> ProcessSpec:
    port = await head.host.free_port()
    argv = relay_argv(
        head.relay_program(),
        worker=worker,
        listen_port=port,
        upstream=upstream,
        stats=head.relay_stats(worker),
    )
    return ProcessSpec(
        name=relay_name(worker), role=ProcessRole.RELAY, argv=argv, port=port
    )
