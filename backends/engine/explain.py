"""Why a llama.cpp program ended: one sentence for every failure we know."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from backends.units import format_bytes

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


def explain(
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
