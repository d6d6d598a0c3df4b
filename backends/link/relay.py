"""One relay process: its command line, and the connection to its counters."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from backends.errors import MachineError
from backends.link.meter import LinkMeter, Outcomes
from backends.link.transport import LinkRoute
from backends.link.wire import LINE_BYTES_MAX, parse
from backends.state import Lab
from backends.state.links import WorkerWeights

RETRY_S = 0.5
PATIENCE_S = 90
"""With a machine that is silent: longer than a connection to it is waited for."""
QUIET_S = 1.0
"""After so long without a line nothing moves: a relay writes four a second else."""


def relay_name(worker: str) -> str:
    return f"relay-{worker}"


def worker_relay_name(worker: str) -> str:
    """Name of the process directory of the relay beside a worker.

    No peer can be called so: see ``check_peer_name``.
    """
    return f"worker-{relay_name(worker)}"


def is_beside(process: str) -> bool:
    return process.startswith(worker_relay_name(""))


def worker_of(process: str) -> str:
    """The worker that a process of that short name is, or stands beside."""
    return process.removeprefix(worker_relay_name(""))


def is_relay(process: str) -> bool:
    return process.startswith((relay_name(""), worker_relay_name("")))


def relay_argv(
    binary: str,
    *,
    worker: str,
    listen_port: int | str,
    upstream: str,
    stats: str = "",
    pair: Sequence[str] | None = None,
    direct: str = "",
) -> tuple[str, ...]:
    """The head end of a link: metering between llama-server and one worker.

    ``upstream`` is ``host:port`` of its rpc-server, as the head reaches it. With
    arguments of a ``pair`` it is that of the relay beside it. ``binary`` and
    ``stats`` are paths on the head. That relay is dialled at ``direct`` first, where it
    listens besides.
    """
    return (
        *(binary, "head", "--name", worker),
        *("--listen", f"127.0.0.1:{listen_port}"),
        *(("--pair-dial", direct) if direct else ()),
        *("--worker" if pair is None else "--pair-dial", upstream),
        *(pair or ()),
        *(("--stats", stats) if stats else ()),
    )


def pair_argv(
    *, identity: str, models: Sequence[str] = (), sparse: bool = False, key_file: str
) -> tuple[str, ...]:
    """The arguments of the head's relay for its pair.

    One with the ``identity`` of another takes its place. The connection to the machine
    says if that is gone; it may come back in time.
    Of ``sparse`` models it sends no hole.
    """
    return (
        *("--id", identity, "--gone-after", str(PATIENCE_S)),
        *("--key-file", key_file),
        *_models(models, "--sparse" if sparse else "--model"),
    )


def worker_relay_argv(
    binary: str,
    *,
    worker: str,
    listen_port: int | str,
    rpc_server: str,
    models: Sequence[str] = (),
    key_file: str,
    direct: str = "",
) -> tuple[str, ...]:
    """The far end of a link, beside the rpc-server of a worker.

    All paths are on the worker's machine; ``models`` are files that hold the model. At
    ``direct`` it listens too, if it can.
    """
    return (
        *(binary, "worker", "--name", worker),
        *("--listen", f"127.0.0.1:{listen_port}"),
        *(("--listen", direct) if direct else ()),
        *("--worker", rpc_server),
        *("--key-file", key_file),
        *_models(models),
    )


def _models(paths: Sequence[str], option: str = "--model") -> Iterator[str]:
    for path in paths:
        yield from (option, path)


def models_in(argv: Sequence[str]) -> tuple[str, ...]:
    return tuple(value for option, value in pairwise(argv) if option == "--model")


def direct_in(argv: Sequence[str]) -> str:
    """The second address of such a relay, by its command line; empty: none."""
    return "".join([at for option, at in pairwise(argv) if option == "--listen"][1:])


@contextlib.asynccontextmanager
async def _connected(
    stats: Path,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_unix_connection(
        str(stats), limit=LINE_BYTES_MAX
    )
    try:
        yield reader, writer
    finally:
        writer.close()


class RelayReader:
    """Follows one relay's counters until cancelled, over restarts of the relay."""

    def __init__(
        self,
        worker: str,
        stats: Path,
        changed: Callable[[], None],
        tunnel_rtt_ms: Callable[[], float | None] = lambda: None,
        lab: Callable[[], Lab | None] = lambda: None,
        outcomes: Outcomes | None = None,
        why: str = "",
        route: Callable[[], LinkRoute] = LinkRoute,
    ) -> None:
        self._lab = lab
        self.meter = LinkMeter(worker, tunnel_rtt_ms, outcomes, why, route)
        self._stats = stats
        self._changed = changed
        self._writer: asyncio.StreamWriter | None = None

    async def run(self) -> None:
        while True:
            with contextlib.suppress(OSError, ValueError):
                await self._read()
            self._writer = None
            if self.meter.take_silence():
                self._changed()
            await asyncio.sleep(RETRY_S)

    async def _read(self) -> None:
        async with _connected(self._stats) as (reader, self._writer):
            await self.set_lab(self._lab())
            while (raw := await _line(reader)) != b"":
                if self._take(raw):
                    self._changed()

    def _take(self, raw: bytes | None) -> bool:
        if raw is None:
            return self.meter.take_silence()
        line = parse(raw)
        return line is not None and self.meter.take(line)

    async def set_lab(self, lab: Lab | None) -> None:
        if self._writer is None:
            raise MachineError(
                f"The relay of {self.meter.link.worker} does not answer",
                "The lab needs a running cluster with relays.",
            )
        self._writer.write(_lab_command(lab))
        await self._writer.drain()


async def _line(reader: asyncio.StreamReader) -> bytes | None:
    try:
        async with asyncio.timeout(QUIET_S):
            return await reader.readline()
    except TimeoutError:
        return None


ANSWER_S, AGAIN_S = 5.0, 0.02
TRIES_MAX = 200
TRIES = 2
# It stands among the first lines, before the counters.
LINES_MAX = 4


async def put_lab(worker: str, stats: Path, lab: Lab) -> None:
    """Put a lab on a relay that has just begun; once this returns it is on."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ANSWER_S):
            # Its port listens before its counters do.
            for _ in range(TRIES_MAX):
                if await _took_lab(stats, lab):
                    return
                await asyncio.sleep(AGAIN_S)
    raise MachineError(
        f"The relay of {worker} took no lab within {ANSWER_S:g} s",
        f"dllm-tui logs {relay_name(worker)} shows why. Then launch again.",
    )


async def _took_lab(stats: Path, lab: Lab) -> bool:
    with contextlib.suppress(OSError, ValueError):
        async with _connected(stats) as (reader, writer):
            writer.write(_lab_command(lab))
            while raw := await reader.readline():
                line = parse(raw)
                if line is not None and line.lab is not None:
                    return True
    return False


def _lab_command(lab: Lab | None) -> bytes:
    return msgspec.json.encode({"lab": lab}) + b"\n"


async def worker_weights(stats: Path) -> WorkerWeights | None:
    """The worker's weights at this moment; None if the relay does not say."""
    for _ in range(TRIES):
        # A way to another machine may break and be there again.
        with contextlib.suppress(OSError, ValueError):
            async with asyncio.timeout(ANSWER_S):
                if found := await _placement(stats):
                    return found
    return None


async def _placement(stats: Path) -> WorkerWeights | None:
    async with _connected(stats) as (reader, _):
        for _ in range(LINES_MAX):
            raw = await reader.readline()
            line = parse(raw)
            if line is not None and line.type == "placement":
                return msgspec.json.decode(raw, type=WorkerWeights)
    return None
