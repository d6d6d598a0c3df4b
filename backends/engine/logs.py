"""Facts from the output of llama.cpp's programs, and why one ended; never raises."""

from __future__ import annotations

import json
import re
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from backends.units import format_bytes

ERRORS_KEPT = 20
LINE_CHARS_MAX = 8192
"""A longer line without an end is cut: it is nothing we read."""
_ANSI = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_PREFIX = re.compile(r"^\d+\.\d{2}\.\d{3}\.\d{3} (?P<level>[IWED]) ")
_MIB = 1 << 20

_LAYER = re.compile(r"load_tensors: layer +(\d+) assigned to device ([^\s,]+)")
_BUFFER = re.compile(
    r"(?<!\S)(\S+) +(model|KV|RS|compute|output) buffer size = *(\d+\.?\d*) MiB"
)
_DEVICE = re.compile(r"using device (\S+) \(([^)]*)\)")
_OFFLOADED = re.compile(r"offloaded (\d+)/(\d+) layers")
_LISTENING = re.compile(r"listening on (https?://[^\s,]+)")
_LOADING = re.compile(r"load_tensors: loading model tensors")
_OWN_LAYERS = re.compile(r"creating MTP draft context against the target model")
_CONTEXT = re.compile(r"constructing llama_context|llama_new_context_with_model:")
_WARMUP = re.compile(r"warming up the model")
_READY = re.compile(r"main: model loaded|llama_server: model loaded|update_slots: all")
_OPENING = re.compile(r"load_model: loading model|llama_model_loader: loaded meta data")
_DOTS = re.compile(r"^(\.+)$")
_ROUTER = re.compile(r"^cmd_child_to_router:state:(\{.*\})$")
_WAKES = re.compile(r"server is exiting sleeping state")
_ERROR = re.compile(
    r"GGML_ASSERT\(|\.(?:cpp|c|cu|m):\d+: |^error[: ]|Failed to |Invalid parameters|"
    r"terminate called|what\(\):|error while (?:handling|loading)|Segmentation fault|"
    r"unable to allocate|failed to allocate"
)
_GRAMMAR = "parse: error parsing grammar:"
_REQUEST = re.compile(rf"got exception:|{_GRAMMAR}")
_KINDS = {"model": "model", "KV": "kv", "RS": "kv", "compute": "compute"}


def strip_line(line: str) -> str:
    """A line without colours and control characters; after a CR only what is seen."""
    return _CONTROL.sub("", _ANSI.sub("", line.rstrip("\r").rpartition("\r")[2]))


def clean_lines(text: str) -> list[str]:
    """The lines of a piece of log fit to show: no escapes, no empty ones."""
    cleaned = (strip_line(line).rstrip() for line in text.split("\n"))
    return [line for line in cleaned if line]


def without_requests(lines: Iterable[str]) -> Iterator[str]:
    """The lines of llama-server without what clients asked.

    It prints whole texts, tools and grammars of requests that it cannot read. A grammar
    takes lines of its own, up to the next line of the log.
    """
    is_grammar = False
    for line in lines:
        is_grammar = is_grammar and not _PREFIX.match(line)
        if is_grammar:
            continue
        found = _REQUEST.search(line)
        yield f"{line[: found.end()]} …" if found else line
        is_grammar = found is not None and found[0] == _GRAMMAR


class LoadLog:
    """Facts from a llama-server's log, fed as it grows.

    Only the first model of a start counts. A draft model loaded after it prints the
    same lines. So does the context of the model's own MTP layers.
    """

    def __init__(self) -> None:
        self.layer_devices: dict[int, str] = {}
        """Layer index to device name; the output is the index after the last layer."""
        self.device_endpoints: dict[str, str] = {}
        """Device name to what it stands for: ``RPC0`` to ``127.0.0.1:56211``."""
        self.offloaded: tuple[int, int] | None = None
        """Layers on devices, and all of them, the output counted."""
        self.url: str | None = None
        """The server's address, once the model is loaded."""
        self.errors: deque[str] = deque(maxlen=ERRORS_KEPT)
        """Lines that tell of a failure, oldest first."""
        self.phase = "starting"
        """The present act of llama-server, in a few words."""
        self.fraction: float | None = None
        """Part of the weights loaded, 0…1; None where the log does not tell."""
        self._buffers: dict[tuple[str, str], list[float]] = {}
        self._rest = ""
        self._loads = 0
        self._handlers: tuple[tuple[re.Pattern[str], Callable[..., None]], ...] = (
            (_LAYER, self._layer),
            (_BUFFER, self._buffer),
            (_DOTS, self._dots),
            (_ROUTER, self._router),
            (_DEVICE, self._device),
            (_OFFLOADED, self._offloaded),
            (_OPENING, lambda _: self._enter("reading the header")),
            (_LOADING, self._loading),
            (_OWN_LAYERS, self._drafting),
            (_CONTEXT, lambda _: self._enter("reserving memory", 1.0)),
            (_WARMUP, lambda _: self._enter("warming up", 1.0)),
            (_READY, lambda _: self._enter("ready", 1.0)),
            (_LISTENING, self._listening),
            (_WAKES, lambda _: self._again()),
        )

    @property
    def ready(self) -> bool:
        return self.phase == "ready"

    @property
    def buffers(self) -> dict[tuple[str, str], int]:
        """Bytes per buffer name and kind (``model``, ``kv``, ``compute``).

        llama.cpp prints MiB with two decimals, so each is within 5 KiB of the truth.
        The recurrent state counts as ``kv``.
        """
        return {key: round(sum(v) * _MIB) for key, v in self._buffers.items()}

    def feed(self, text: str) -> None:
        """Take the next part of the log; a line may come in several parts."""
        *lines, rest = (self._rest + text).split("\n")
        self._rest = rest[-LINE_CHARS_MAX:]
        for line in lines:
            self._line(strip_line(line[:LINE_CHARS_MAX]))
        if self._rest and _DOTS.match(self._rest):
            self._line(self._rest)

    def _line(self, line: str) -> None:
        prefix = _PREFIX.match(line)
        body = line[prefix.end() :] if prefix else line
        if (prefix and prefix["level"] == "E") or _ERROR.search(body):
            self.errors.append(body)
        for pattern, handle in self._handlers:
            if match := pattern.search(body):
                handle(match)
                return

    def _enter(self, phase: str, fraction: float | None = None) -> None:
        if not self.ready:
            self.phase = phase
            self.fraction = self.fraction if fraction is None else fraction

    def _again(self) -> None:
        self._loads = 0
        self.phase = "starting"
        self.fraction = None
        self.layer_devices.clear()
        self._buffers.clear()

    def _loading(self, _: re.Match[str]) -> None:
        self._loads += 1
        self._enter("loading weights")

    def _drafting(self, _: re.Match[str]) -> None:
        self._loads += 1

    def _layer(self, match: re.Match[str]) -> None:
        if self._loads <= 1 and len(match[1]) < 7:
            self.layer_devices[int(match[1])] = match[2]

    def _buffer(self, match: re.Match[str]) -> None:
        name, kind, mib = match[1], _KINDS.get(match[2]), match[3]
        if kind is None or self._loads > 1 or len(mib) > 15:
            return
        if kind == "compute":
            # Printed again whenever the graph is reserved anew: the last one holds.
            self._buffers[name, kind] = [float(mib)]
        else:
            self._buffers.setdefault((name, kind), []).append(float(mib))

    def _dots(self, match: re.Match[str]) -> None:
        # Builds before 2026 print a dot per percent, and no line end until 100.
        if self.phase == "loading weights":
            self.fraction = min(len(match[1]) / 100, 1.0)

    def _router(self, match: re.Match[str]) -> None:
        try:
            payload = json.loads(match[1])["payload"]
            value = float(payload["value"])
            stage = payload.get("current")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return
        if stage == "text_model" and 0 <= value <= 1 and not self.ready:
            self.fraction = value

    def _device(self, match: re.Match[str]) -> None:
        self.device_endpoints.setdefault(match[1], match[2])

    def _offloaded(self, match: re.Match[str]) -> None:
        if self._loads <= 1 and len(match[0]) < 60:
            self.offloaded = (int(match[1]), int(match[2]))

    def _listening(self, match: re.Match[str]) -> None:
        self.url = match[1].rstrip(".")


CUT_OFF = "a worker died or closed the connection"
_MEMORY = "; give this device fewer layers or use a smaller context"

_REFUSED_VALUE = r"error while handling argument \"(?P<flag>.*?)\": (?P<value>.*?)\s*$"
_UNKNOWN_FLAG = r"error: (?:invalid|unknown) argument: (?P<flag>\S+)"
_REFUSALS = tuple(re.compile(p, re.M) for p in (_REFUSED_VALUE, _UNKNOWN_FLAG))
_CANNOT_BIND = r"couldn't bind (?:HTTP server socket|to server socket)"
# The first that matches anywhere in the tail wins, so the specific come first.
_SENTENCES = {
    rf"{_CANNOT_BIND}.*?port[:=] ?(?P<port>\d+)": (
        "port {port} is in use by another program"
    ),
    rf"{_CANNOT_BIND}|Failed to create server socket": (
        "its port is in use by another program"
    ),
    r"Failed to connect to (?P<endpoint>[^\s\x1b]+)": (
        "the worker at {endpoint} cannot be reached"
    ),
    r"RPC server version mismatch: (?P<version>[\d.]+)": (
        "a worker speaks RPC {version}, which this llama-server does not; use the same "
        "llama.cpp on all machines"
    ),
    r"RPC handshake failed for (?P<endpoint>[^\s\x1b]+)": (
        "the worker at {endpoint} speaks another RPC version; use the same llama.cpp "
        "on all machines"
    ),
    r"Remote RPC server crashed or returned malformed response": CUT_OFF,
    r"failed to open GGUF file '(?P<path>.*?)' \((?P<why>.*?)\)": (
        "it cannot open the model {path} ({why})"
    ),
    r"data is not within the file bounds": (
        "the model file is cut short; download or copy it again"
    ),
    r"(?:invalid magic|GGUF magic|bad magic|not a GGUF)": (
        "the model file is not a GGUF"
    ),
    r"unknown model architecture: '(?P<arch>.*?)'": (
        "this llama.cpp does not know the architecture {arch}; a newer one may"
    ),
    r"unknown pre-tokenizer type: '(?P<name>.*?)'": (
        "this llama.cpp does not know the tokenizer {name}; a newer one may"
    ),
    r"(?:failed|unable) to allocate (?P<buffer>\S+) buffer of size "
    r"(?P<bytes>\d{1,18})": f"no memory for {{bytes}} on {{buffer}}{_MEMORY}",
    r"failed to allocate buffer for kv cache": f"no memory for the KV cache{_MEMORY}",
    r"failed to allocate compute (?:pp )?buffers": (
        f"no memory for the compute buffers{_MEMORY}"
    ),
    r"unable to allocate (?P<buffer>\S+) buffer": (
        f"no memory for the weights on {{buffer}}{_MEMORY}"
    ),
    r"(?:out of memory|insufficient memory|std::bad_alloc)": f"no memory{_MEMORY}",
    _REFUSED_VALUE: "it refuses the argument {flag} ({value})",
    _UNKNOWN_FLAG: "it does not know the argument {flag}",
    r"(?:error: )?(?:unknown|invalid) device: (?P<name>\S+)": "it has no device {name}",
    r"does not support split buffers": "split mode row does not work with RPC devices",
    r"(?:rror while loading shared libraries|rror loading shared library|"
    r"Library not loaded): ?(?P<name>[^\s:]+)": "the shared library {name} is missing",
    r"version [`'](?P<name>(?:GLIBC|GLIBCXX|CXXABI)_[\d.]+)' not found": (
        "it needs {name}, and this system is older"
    ),
    r"error loading model: (?P<why>.*?)\s*$": "the model cannot be loaded: {why}",
    r"GGML_ASSERT\((?P<what>.*)\) failed": (
        "llama.cpp stopped at its own check {what:.120}"
    ),
    r"^(?:\S{0,400}/)?(?P<file>[\w.-]{1,80}\.(?:cpp|c|cu|m))"
    r":(?P<line>\d+): (?P<why>.+)$": "llama.cpp gave up: {why:.160} ({file}:{line})",
    r"failed to load model": "the model cannot be loaded",
}
_KNOWN = tuple((re.compile(p, re.M), sentence) for p, sentence in _SENTENCES.items())

_SIGNALS = {
    signal.SIGKILL: "killed from outside, as the system does when memory runs out",
    signal.SIGILL: (
        "it uses instructions this CPU does not have; build one here with "
        "dllm-tui engine build"
    ),
    signal.SIGSEGV: "it crashed (invalid memory access)",
    signal.SIGBUS: "it crashed (the model file was cut short while in use?)",
    signal.SIGFPE: "it crashed (arithmetic error)",
    signal.SIGPIPE: "a client left in the middle of an answer",
    signal.SIGTERM: "something asked it to stop",
    signal.SIGINT: "something interrupted it",
    signal.SIGHUP: "its terminal went away",
    signal.SIGABRT: "it gave up",
}
_EXIT_CODES = {
    126: "it cannot be executed here",
    127: "its program or a library of it is missing",
}


def end_reason(
    lines: Sequence[str], exit_code: int | None, exit_signal: int | None
) -> str | None:
    """One clause saying why it ended, from its last lines and exit status.

    Without a full stop, to stand after a colon; None when nothing is known. A signal
    that llama.cpp does not raise itself outweighs whatever was printed before.
    """
    if exit_signal in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        return _SIGNALS[signal.Signals(exit_signal)]
    text = "\n".join(lines)
    for pattern, sentence in _KNOWN:
        if match := pattern.search(text):
            return sentence.format_map(_parts(match))
    if exit_signal is not None:
        return _SIGNALS.get(_signal(exit_signal))
    return _EXIT_CODES.get(exit_code) if exit_code is not None else None


def _parts(match: re.Match[str]) -> dict[str, str]:
    parts = match.groupdict("")
    if "bytes" in parts:
        parts["bytes"] = format_bytes(int(parts["bytes"]))
    # A function of C++ that reads a number gives its own name.
    if re.fullmatch(r"sto\w{1,3}", parts.get("value", "")):
        parts["value"] = "its value is not a number"
    return parts


def refused_argument(lines: Sequence[str]) -> str:
    """The argument, such as ``--no-such-flag``, that a program did not take."""
    text = "\n".join(lines)
    found = (pattern.search(text) for pattern in _REFUSALS)
    return next((match["flag"] for match in found if match), "")


def _signal(number: int) -> signal.Signals:
    try:
        return signal.Signals(number)
    except ValueError:
        return signal.SIGABRT


def lost_port(lines: Sequence[str]) -> bool:
    """True if llama-server ended as another program had its port."""
    return any(re.search(_CANNOT_BIND, line) for line in lines)
