"""Asking llama.cpp itself what memory a plan takes, loading nothing.

``llama-fit-params --fit-print on`` prints its bytes per device. Its workers are spoken
for by ``dllm-relay stub``: no real worker is asked, and none need run.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import mmap
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from backends.engine import children
from backends.engine.argv import LOOPBACK, fit_argv
from backends.engine.ask import NO_GPU
from backends.errors import EngineError, disk_errors
from backends.server_settings import is_by_tensor, pipelines
from backends.split.experts import CPU_BUFFER, override_tensor
from backends.split.flags import DEVICES_MAX
from backends.state import (
    NOT_JSON,
    DeviceMemory,
    EngineInfo,
    LayerRange,
    MemorySource,
    ServerSettings,
    Value,
)
from backends.units import format_signal
from backends.writing import write_private

STUB_BYTES = 1 << 40
"""The memory of a stub device: the placement is given, so its size does not matter."""


@contextlib.asynccontextmanager
async def stub_worker(
    relay: str, names: Sequence[str], rpc_protocol: str
) -> AsyncIterator[int]:
    """A stub worker with these devices; yields its port on our loopback."""
    devices = [f"{name}:{STUB_BYTES}" for name in names or ["CPU"]]
    options = [part for device in devices for part in ("--device", device)]
    argv = (relay, "stub", *options, "--protocol", rpc_protocol)
    try:
        child = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=_environment(),
            start_new_session=True,
        )
    except OSError as error:
        raise _cannot_run(relay, error) from error
    try:
        assert child.stdout is not None
        yield _port(await child.stdout.readline(), relay)
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()


def _port(line: bytes, relay: str) -> int:
    try:
        return int(msgspec.json.decode(line, type=dict[str, int])["port"])
    except (*NOT_JSON, KeyError) as error:
        raise EngineError(
            f"{relay} does not start as a stub worker",
            "Reinstall dllm-tui: its helper program is an older one.",
        ) from error


async def output_of(argv: Sequence[str]) -> str:
    try:
        code, lines = await children.run(argv, env=_environment())
    except OSError as error:
        raise _cannot_run(argv[0], error) from error
    if code != 0:
        raise EngineError(
            f"llama-fit-params failed: {_why(code, lines)}", "The prediction stays."
        )
    return "\n".join(lines)


def _why(code: int, lines: Sequence[str]) -> str:
    said = [line.strip() for line in lines if line.strip()]
    told = [line for line in said if " E " in line or "error" in line.lower()]
    if told:
        return told[0][:200]
    if code < 0:
        return f"killed by {format_signal(-code)}"
    return said[-1][:200] if said else f"exit code {code}"


def _environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("LLAMA_ARG_")}
    return {**kept, **NO_GPU, "GGML_NO_BACKTRACE": "1"}


def _cannot_run(program: str, error: OSError) -> EngineError:
    return EngineError(
        f"Cannot run {program} ({error.strerror})",
        "Build an engine with: dllm-tui engine build.",
    )


FORMAT = 2
"""Changes when a kept answer would be read differently."""
ANSWER_S = 20.0
"""Longest wait; 0.1 s is usual, a file on a slow disk may take seconds."""
KEPT_MAX = 256
"""Answers kept, in memory and on disk."""
_ROW = re.compile(r"^(\S+) (\d+) (\d+) (\d+) *$", re.M)
_HOST = "Host"
_MIB = 1 << 20


class MemoryQuestion(Value, frozen=True, kw_only=True):
    """All that decides what memory a llama-server takes."""

    files: tuple[str, ...]
    """Paths here of the model's parts, the first one first; their headers suffice."""
    head_cpu: str
    """Id of the device that llama-server's own machine is."""
    device_ids: tuple[str, ...]
    """Devices with layers besides that, in the order of their layers: ``mini/MTL0``."""
    tensor_split: tuple[int, ...]
    """Whole layers of each, the output counted as one more."""
    head_layers: int = 0
    """Layers on the head's CPU, which are the first ones."""
    ctx_size: int
    server: ServerSettings = ServerSettings()
    experts: tuple[LayerRange, ...] = ()
    """Layers whose experts are on another of the devices."""
    extra_args: tuple[str, ...] = ()

    @property
    def output_device(self) -> str:
        return self.device_ids[-1] if self.device_ids else self.head_cpu


class MemoryAsker:
    """Asks one question at a time and keeps the answers."""

    def __init__(self, folder: Path, relay: Callable[[], Path]) -> None:
        self._folder = folder
        self._relay = relay
        self._kept: dict[str, tuple[DeviceMemory, ...]] = {}
        self._turn = asyncio.Lock()

    async def ask(
        self, engine: EngineInfo, rpc_protocol: str, question: MemoryQuestion
    ) -> tuple[DeviceMemory, ...]:
        """Memory of the head's CPU, then of every device asked about."""
        key = await asyncio.to_thread(_key, engine, rpc_protocol, question)
        async with self._turn:
            kept = self._kept.get(key) or await asyncio.to_thread(self._read, key)
            if kept is None:
                relay = str(self._relay())
                kept = await ask_memory(engine, relay, rpc_protocol, question)
                await asyncio.to_thread(self._keep, key, kept)
            self._kept[key] = kept
            while len(self._kept) > KEPT_MAX:
                del self._kept[next(iter(self._kept))]
        return kept

    def _read(self, key: str) -> tuple[DeviceMemory, ...] | None:
        try:
            raw = (self._folder / f"{key}.json").read_bytes()
            return msgspec.json.decode(raw, type=tuple[DeviceMemory, ...])
        except (OSError, *NOT_JSON):
            return None

    def _keep(self, key: str, answer: tuple[DeviceMemory, ...]) -> None:
        # A cache that cannot be written is only slower.
        with contextlib.suppress(OSError):
            write_private(self._folder / f"{key}.json", msgspec.json.encode(answer))
            by_age = sorted(self._folder.glob("*.json"), key=_changed_at, reverse=True)
            for old in by_age[KEPT_MAX:]:
                old.unlink(missing_ok=True)


def _changed_at(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


async def ask_memory(
    engine: EngineInfo, relay: str, rpc_protocol: str, question: MemoryQuestion
) -> tuple[DeviceMemory, ...]:
    if not engine.fit_path:
        raise EngineError(
            f"The engine in {engine.directory} has no llama-fit-params, "
            "which tells what memory a plan takes",
            "Complete it with: dllm-tui engine build.",
        )
    if is_by_tensor(question.extra_args):
        raise EngineError(
            "llama.cpp does not tell the memory of parts of tensors (-sm tensor)",
            "The prediction stays.",
        )
    answer = await _asked(engine, relay, rpc_protocol, question)
    apart = output_apart(question)
    if apart is None or not await asyncio.to_thread(_limits_outputs, engine):
        return answer
    rest = await _asked(engine, relay, rpc_protocol, apart)
    return _with_less_compute(answer, rest, question.output_device)


async def _asked(
    engine: EngineInfo, relay: str, rpc_protocol: str, question: MemoryQuestion
) -> tuple[DeviceMemory, ...]:
    names = [device.rpartition("/")[2] for device in question.device_ids]
    try:
        async with (
            asyncio.timeout(ANSWER_S),
            stub_worker(relay, names, rpc_protocol) as port,
        ):
            argv = fit_argv(
                engine,
                model=question.files[0],
                rpc_endpoint=f"{LOOPBACK}:{port}",
                tensor_split=question.tensor_split,
                ctx_size=question.ctx_size,
                server=question.server,
                extra=(*_overrides(question, port), *question.extra_args),
            )
            text = await output_of(argv)
    except TimeoutError:
        raise EngineError(
            f"{engine.fit_path} gave no answer within {ANSWER_S:g} s",
            "Is the model on a slow disk? The prediction stays.",
        ) from None
    return answer_of(parse_rows(text), question)


def _overrides(question: MemoryQuestion, port: int) -> tuple[str, ...]:
    there = {
        device: f"RPC{index}[{LOOPBACK}:{port}]"
        for index, device in enumerate(question.device_ids)
    }
    return override_tensor(question.experts, {question.head_cpu: CPU_BUFFER} | there)


# --- the output's logits ------------------------------------------------------

# llama-server wants logits of one token per slot; llama-fit-params reckons with those
# of a whole batch and has no option to say otherwise (300 MiB for 150 000 words). So
# the output is moved away in a second question, and its device's own compute read
# there. Whether llama.cpp pipelines (copies its inputs four times) must not change by
# that: with several devices, all layers on them and no overrides it does.
OUTPUT_TO_HEAD = ("-ot", r"^(output|token_embd)\.weight$=CPU")
_ALL_OUTPUTS = frozenset({"--embedding", "--embeddings", "--rerank", "--reranking"})
_ELSEWHERE = "output/CPU"


def output_apart(question: MemoryQuestion) -> MemoryQuestion | None:
    """The same with the output on another device; None where that tells nothing."""
    extra = frozenset(question.extra_args)
    counts = question.tensor_split
    if extra & _ALL_OUTPUTS or len(counts) == DEVICES_MAX:
        return None
    if not counts:
        return _with_last(question, (1,))
    # The output alone gets the rows wanted from the device before, so next to nothing.
    alone = len(counts) == 1 or counts[-1] == 1
    no_pipeline = question.experts or not pipelines(question.extra_args)
    if alone or question.head_layers or no_pipeline:
        overrides = (*question.extra_args, *OUTPUT_TO_HEAD)
        return msgspec.structs.replace(question, extra_args=overrides)
    return _with_last(question, (*counts[:-1], counts[-1] - 1, 1))


def _with_last(question: MemoryQuestion, counts: tuple[int, ...]) -> MemoryQuestion:
    ids = (*question.device_ids, _ELSEWHERE)
    return msgspec.structs.replace(question, device_ids=ids, tensor_split=counts)


def _with_less_compute(
    answer: Sequence[DeviceMemory], rest: Sequence[DeviceMemory], device: str
) -> tuple[DeviceMemory, ...]:
    """The answer, one device's compute buffers being what they are without logits."""
    without = next(memory.compute_bytes for memory in rest if memory.device == device)
    return tuple(
        msgspec.structs.replace(m, compute_bytes=min(m.compute_bytes, without))
        if m.device == device
        else m
        for m in answer
    )


def _limits_outputs(engine: EngineInfo) -> bool:
    """True if this llama.cpp can want logits of fewer tokens than a batch has."""
    try:
        with Path(engine.fit_path).open("rb") as file:
            whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            with whole:
                return whole.find(b"n_outputs_max") >= 0
    except (OSError, ValueError):
        return False


def parse_rows(text: str) -> dict[str, tuple[int, int, int]]:
    """Bytes of weights, KV cache and compute buffers by llama.cpp's device name."""
    return {
        row[1]: (int(row[2]) * _MIB, int(row[3]) * _MIB, int(row[4]) * _MIB)
        for row in _ROW.finditer(text)
    }


def answer_of(
    rows: Mapping[str, tuple[int, int, int]], question: MemoryQuestion
) -> tuple[DeviceMemory, ...]:
    """The rows under our own device ids."""
    wanted = {_HOST: question.head_cpu}
    wanted |= {f"RPC{i}": device for i, device in enumerate(question.device_ids)}
    if missing := [device for name, device in wanted.items() if name not in rows]:
        raise EngineError(
            f"llama-fit-params told nothing of {missing[0]}",
            "Is this another version of llama.cpp? The prediction stays.",
        )
    return tuple(
        DeviceMemory(
            device=device,
            model_bytes=model,
            kv_bytes=kv,
            compute_bytes=compute,
            source=MemorySource.ENGINE,
        )
        for name, device in wanted.items()
        for model, kv, compute in [rows[name]]
    )


def _key(engine: EngineInfo, rpc_protocol: str, question: MemoryQuestion) -> str:
    """Changes with the engine, the model's files, or anything asked."""
    facts: list[object] = [FORMAT, rpc_protocol, msgspec.to_builtins(question)]
    for path in filter(None, (engine.fit_path, *question.files)):
        with disk_errors("read", path, "The prediction stays.", EngineError):
            status = Path(path).stat()
        facts.append((path, status.st_size, status.st_mtime_ns))
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:32]
