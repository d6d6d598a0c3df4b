"""The requests of a console to the agent here, looked at one by one."""

from __future__ import annotations

import contextlib
import glob
import os
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from backends.engine.ask import NO_GPU, parse_devices
from backends.engine.install import SERVER, WORKER_NAMES
from backends.link.transport import LOOPBACK
from backends.machines.agent import ALWAYS_ENV, LOG_LIMIT_BYTES, PRIVATE
from backends.machines.agent_channel import encode_line
from backends.machines.facts import VARIABLES
from backends.machines.path_measurement import PROBE, TOKEN_VARIABLE
from backends.mesh.messages import PART
from backends.state import NOT_JSON, Value

if TYPE_CHECKING:
    from backends.mesh.owner_limits import OwnerLimits

FREE = frozenset(
    (
        *("watch", "records", "stop", "remove", "orphans", "log", "free_port"),
        *("memory", "lease", "port_owner", "machine", "usage"),
    )
)
"""Verbs about its own processes, and about the machine as a whole."""
_MEMBERS = {
    "start": {"name", "argv", "env", "ignore_sigpipe", "log_limit", "meta", "private"},
    "run": {"argv", "env", "timeout_s", "touch", "until", "limit"},
}
_ASKS = (("--version",), ("--help",), ("--list-devices",))
_ENV = frozenset((*ALWAYS_ENV, *NO_GPU, TOKEN_VARIABLE))
_ENDS = (LOOPBACK, "localhost")
_PORT_MIN = 1024
_START_BYTES_MAX = 32 << 10
PROCESSES_MAX = 64
"""Of one console, with those that have ended and are not removed."""
WAITING_MAX = 256
"""Requests of one session without an answer."""
_TRIED_S = 660.0
"""Longer than an agent lets a program run."""


class _Pid(Value, frozen=True, kw_only=True):
    """The record of a process, as far as it counts here."""

    pid: int


class Denied(Exception):
    """The owner's machine does not do that; the text says why."""


class AgentPolicy:
    """Lets through what the owner lends, and tells no more than that."""

    def __init__(
        self,
        limits: OwnerLimits,
        *,
        relay: Path,
        engines_dir: Path,
        engine_folders: Iterable[Path] = (),
        run_dir: Path,
    ) -> None:
        self._limits = limits
        self._relay = os.path.realpath(relay)
        self._engines_dir = os.path.realpath(engines_dir)
        self._engine_folders = [os.path.realpath(folder) for folder in engine_folders]
        self._models = [os.path.realpath(folder) for folder in limits.models]
        self._run_dir = os.path.realpath(run_dir)
        self.address = ""
        """The address at which the console reached us, for direct links."""
        self._worker_ports: set[int] = set()
        self._tried_ports: dict[int, float] = {}
        """By port the time until which a worker may be tried there (monotonic)."""
        self._answers: dict[int, tuple[str, bool] | None] = {}
        """By number the verb of a request, and whether it is bounded, or lists devices.
        None where nothing is looked at.
        """

    def for_session(self) -> AgentPolicy:
        """The same, with the numbers of one agent's requests."""
        made = copy(self)
        made._answers = {}
        return made

    # --- files ----------------------------------------------------------------------

    def may_read(self, path: str) -> bool:
        """True for a file of a model folder, wherever links lead."""
        return _is_below(_real(path), self._models)

    def may_add(self, path: str) -> bool:
        """True for a half model in the first folder, where its owner lets it be sent.

        None that is there is changed: what is sent gets its name when it is whole.
        """
        folder, name = os.path.split(path)
        ours = self._limits.writable and _real(folder) == self._models[0]
        return ours and name.endswith(f".gguf{PART}") and not os.path.islink(path)

    def may_forward(self, path: str) -> bool:
        return _is_below(_real(path), [self._run_dir])

    # --- requests -------------------------------------------------------------------

    def request(self, message: dict[str, Any]) -> dict[str, Any]:
        """The request to pass on; it may be narrower than the one that came.

        Raises:
            Denied: it is not passed on.
        """
        verb, number = message.get("do"), message.get("id")
        # True is no number, and of one that is too large the agent makes none.
        if type(number) is not int or not 0 <= number < 1 << 53:
            raise Denied("That is no request")
        if not isinstance(verb, str):
            raise Denied("That is no request")
        if number in self._answers or len(self._answers) >= WAITING_MAX:
            raise Denied("A request of that number waits, or too many do")
        if members := _MEMBERS.get(verb):
            message = {k: v for k, v in message.items() if k in {*members, "id", "do"}}
        if verb == "machine":
            message = {"id": number, "do": verb, "variables": list(VARIABLES)}
        elif verb == "find":
            message = {**message, "folders": self._findable(message)}
        elif verb in ("identity", "read", "tensors"):
            self._require_readable(message.get("path"), engines=verb == "read")
        elif verb == "listens":
            # Of any other it would tell who listens where.
            pid = message.get("pid")
            if type(pid) is not int or pid not in self._own_pids():
                raise Denied("That is no process of this console")
        elif verb == "start":
            message = self._started(message)
        elif verb == "run":
            self._run(_texts(message, "argv"), _mapping(message, "env"))
            touch = message.get("touch", 0)
            if touch and str(touch) not in _texts(message, "argv"):
                raise Denied("Only the worker itself is touched")
        elif verb not in FREE:
            raise Denied("The owner of this machine does not lend that")
        argv = _texts(message, "argv")
        listing = verb == "run" and "--list-devices" in argv
        bounded = verb == "start" and self._limits.memory_bytes is not None
        # A GPU's driver maps more than it uses: there the sum is watched alone.
        named = [value for option, value in pairwise(argv) if option == "-d"]
        on_cpu = set(",".join(named).split(",")) == {"CPU"}
        filtered = verb in ("machine", "memory", "port_owner", "find", "usage")
        # Of the others the number is kept, too: none may be used twice at a time.
        looks = filtered or listing or bounded
        self._answers[number] = (verb, listing or on_cpu) if looks else None
        return message

    def _findable(self, message: dict[str, Any]) -> list[str]:
        return [f for f in _texts(message, "folders") if self._is_below_any(f)]

    def _is_below_any(self, path: str) -> bool:
        folders = [*self._models, self._engines_dir, *self._engine_folders]
        return _is_below(_real(path), folders)

    def _is_lent(self, found: object) -> bool:
        # A link may lead out of a model folder.
        path = found.get("path") if isinstance(found, dict) else None
        return isinstance(path, str) and self._is_below_any(path)

    def _require_readable(self, path: object, *, engines: bool) -> None:
        folders = [*self._models, *([self._engines_dir] if engines else [])]
        if not isinstance(path, str) or not _is_below(_real(path), folders):
            raise Denied("The owner of this machine does not lend that file")

    def _started(self, message: dict[str, Any]) -> dict[str, Any]:
        argv = _texts(message, "argv")
        if len(encode_line(message)) > _START_BYTES_MAX:
            raise Denied("That is too long for the start of a program")
        self._require_some_left(message.get("name"))
        self._require_env(_mapping(message, "env"))
        if argv and _real(argv[0]) == self._relay:
            self._relay_beside(argv[1:])
        else:
            self._worker(argv)
        limit = message.get("log_limit")
        most = LOG_LIMIT_BYTES
        is_less = isinstance(limit, int) and 0 < limit < most
        return {**message, "log_limit": limit if is_less else most}

    def _require_some_left(self, name: object) -> None:
        there = self._record_files()
        own = os.path.join(self._run_dir, str(name), "process.json")
        if len(there) >= PROCESSES_MAX and own not in there:
            raise Denied(f"This machine keeps {PROCESSES_MAX} programs of a console")

    def _record_files(self) -> list[str]:
        folder = glob.escape(self._run_dir)
        return glob.glob(f"{folder}/**/process.json", recursive=True)

    def _own_pids(self) -> set[int]:
        """Numbers of processes of the console whose end nobody has seen."""
        found = set()
        for file in self._record_files():
            with contextlib.suppress(OSError, *NOT_JSON):
                if not os.path.exists(os.path.join(os.path.dirname(file), "exit.json")):
                    found.add(
                        msgspec.json.decode(Path(file).read_bytes(), type=_Pid).pid
                    )
        return found

    def _require_env(self, env: Mapping[str, Any]) -> None:
        if wrong := set(env) - _ENV:
            raise Denied(f"The owner of this machine lets nobody set {min(wrong)}")
        for name, value in NO_GPU.items():
            if env.get(name, value) != value:
                raise Denied(f"The owner of this machine lets nobody set {name}")

    def _worker(self, argv: Sequence[str]) -> None:
        self._require_engine(argv, WORKER_NAMES)
        told = _pairs(argv[1:], {"-H", "-p", "-d", "-t"})
        port = _port(told.get("-p", [""])[-1])
        if told.get("-H") != [LOOPBACK]:
            raise Denied(f"A worker listens at {LOOPBACK} only")
        self._require_devices(told.get("-d", []))
        # One that is tried is in no record: no relay may serve it.
        if self._tried_ports.get(port, 0.0) > time.monotonic():
            raise _taken(port)
        _require_free(LOOPBACK, port)
        self._worker_ports.add(port)

    def adopt(self, argv: Sequence[str]) -> None:
        """Know a worker that was let through before, and still runs."""
        with contextlib.suppress(Denied):
            self._require_engine(argv, WORKER_NAMES)
            told = _pairs(argv[1:], {"-H", "-p", "-d", "-t"})
            self._worker_ports.add(_port(told.get("-p", [""])[-1]))

    def _require_devices(self, named: Sequence[str]) -> None:
        devices = [device for text in named for device in text.split(",")]
        # Without any it would take all there are.
        for device in devices or [""]:
            if not device or not self._limits.lends(device):
                what = device or "all devices"
                raise Denied(f"The owner of this machine does not lend {what}")

    def _relay_beside(self, argv: Sequence[str]) -> None:
        if argv[:1] != ["worker"]:
            raise Denied("This machine is lent as a worker only")
        told = _pairs(
            argv[1:], {"--name", "--listen", "--worker", "--key-file", "--model"}
        )
        for end in told.get("--worker", [""]):
            host, _, port = end.rpartition(":")
            if host not in _ENDS or _port(port) not in self._worker_ports:
                raise Denied("A relay here serves workers of its own console only")
        for end in told.get("--listen", [""]):
            self._require_end(end)
        for path in told.get("--key-file", [""]):
            whole = _real(path)
            if os.path.basename(path) != PRIVATE or not self.may_forward(whole):
                raise Denied("That is no key of a process here")
        for path in told.get("--model", []):
            self._require_readable(path, engines=False)

    def _require_end(self, end: str) -> None:
        host, _, port = end.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if host != LOOPBACK and (not self.address or host != self.address):
            raise Denied(f"Nothing may listen at {host or 'that place'} here")
        _require_free(host, _port(port))

    def _run(self, argv: Sequence[str], env: Mapping[str, Any]) -> None:
        self._require_env(env)
        if argv and _real(argv[0]) == self._relay:
            if len(argv) != 4 or tuple(argv[1:3]) != (PROBE, "--listen"):
                raise Denied("This machine is lent as a worker only")
            self._require_end(argv[3])
            return
        if tuple(argv[1:]) in _ASKS:
            self._require_engine(argv, (SERVER, *WORKER_NAMES))
            return
        # A worker's banner, which tells its protocol.
        self._require_engine(argv, WORKER_NAMES)
        told = _pairs(argv[1:], {"-H", "-p", "-d"})
        blind = all(env.get(name) == value for name, value in NO_GPU.items())
        on_cpu = told.get("-d", ["CPU"] if blind else []) == ["CPU"]
        if told.get("-H") != [LOOPBACK] or not on_cpu:
            raise Denied("A worker is tried on its CPU only")
        port = _port(told.get("-p", [""])[-1])
        if port in self._worker_ports:
            raise _taken(port)
        self._tried_ports[port] = time.monotonic() + _TRIED_S
        _require_free(LOOPBACK, port)

    def _require_engine(self, argv: Sequence[str], names: Sequence[str]) -> None:
        program = _real(argv[0]) if argv else ""
        folder, name = os.path.split(program)
        ours = os.path.dirname(folder) == self._engines_dir
        if name not in names or not (ours or folder in self._engine_folders):
            raise Denied(
                "This machine gives no shell: its owner lends llama.cpp's workers only"
            )

    # --- answers --------------------------------------------------------------------

    def answer(self, message: dict[str, Any], used_bytes: int) -> dict[str, Any]:
        """The answer to pass on, with the owner's limits in it."""
        number, told = message.get("id"), message.get("ok")
        asked = self._answers.pop(number, None) if isinstance(number, int) else None
        if asked is None or not isinstance(told, dict):
            return message
        verb, flagged = asked
        if verb == "start":
            if flagged:
                _bound(told.get("record"), self._limits.memory_bytes)
        elif verb == "memory":
            told = self._narrowed(told, used_bytes)
        elif verb == "machine":
            memory = self._narrowed(told.get("memory", {}), used_bytes)
            told = {**told, "memory": memory}
        elif verb == "usage":
            told = self._usage(told, used_bytes)
        elif verb == "find":
            files = told.get("files") or []
            told = {**told, "files": [one for one in files if self._is_lent(one)]}
        elif verb == "port_owner":
            told = {"used": told.get("used", True)}
        elif flagged:
            texts = {name: str(told.get(name, "")) for name in ("stdout", "stderr")}
            told |= {name: self._lent(text) for name, text in texts.items()}
        return {**message, "ok": told}

    @property
    def _memory_limit(self) -> int | None:
        return self._limits.memory_bytes if self._limits.lends("CPU") else 0

    def _narrowed(self, memory: dict[str, Any], used_bytes: int) -> dict[str, Any]:
        limit = self._memory_limit
        if limit is None:
            return memory
        own = {"limit_bytes": limit, "available_bytes": max(limit - used_bytes, 0)}
        return {**memory, "limits": [*memory.get("limits", []), own]}

    def _usage(self, told: dict[str, Any], used_bytes: int) -> dict[str, Any]:
        """The load of what is lent; disks, network and swap are the owner's alone."""
        shown = {name for name in told if name.startswith(("agent_", "memory_"))}
        if self._limits.lends("CPU"):
            shown.add("cores_permille")
        if not self._limits.devices:
            # Drivers have other names for GPUs than the engine: all, or none.
            shown.add("gpus")
        seen = {name: told[name] for name in shown & told.keys()}
        if (limit := self._memory_limit) is not None:
            left = max(limit - used_bytes, 0)
            seen |= {"memory_total_bytes": limit, "memory_available_bytes": left}
        return seen

    def _lent(self, text: str) -> str:
        lines = text.splitlines(keepends=True)
        named = [(line, parse_devices(line)) for line in lines]
        return "".join(
            line
            for line, devices in named
            if all(self._limits.lends(device.name) for device in devices)
        )


def _bound(record: object, most_bytes: int | None) -> None:
    """Have the system refuse more memory to a process; where it cannot, we watch."""
    import resource

    pid = record.get("pid") if isinstance(record, dict) else None
    limit = getattr(resource, "prlimit", None)
    if limit is not None and isinstance(pid, int) and pid > 1 and most_bytes:
        with contextlib.suppress(OSError, ValueError):
            limit(pid, resource.RLIMIT_DATA, (most_bytes, most_bytes))


def _real(path: str) -> str:
    # Of a text that no path is written like, the empty one is below no folder.
    try:
        return os.path.realpath(path)
    except ValueError:
        return ""


def _is_below(path: str, folders: Iterable[str]) -> bool:
    return any(path == f or path.startswith(f.rstrip("/") + "/") for f in folders)


def _texts(message: Mapping[str, Any], member: str) -> list[str]:
    value = message.get(member, [])
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise Denied(f"{member} is no list of texts")
    return value


def _mapping(message: Mapping[str, Any], member: str) -> dict[str, Any]:
    value = message.get(member, {})
    if not isinstance(value, dict):
        raise Denied(f"{member} is no object")
    return value


def _pairs(argv: Sequence[str], known: set[str]) -> dict[str, list[str]]:
    """Options with their values; any other word is denied."""
    found: dict[str, list[str]] = {}
    if len(argv) % 2:
        raise Denied(f"{argv[-1]!r} is no option that its owner lends")
    for option, value in zip(argv[::2], argv[1::2], strict=True):
        if option not in known:
            raise Denied(f"{option!r} is no option that its owner lends")
        found.setdefault(option, []).append(value)
    return found


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and _PORT_MIN <= int(text) < 1 << 16):
        raise Denied(f"{text!r} is no port that its owner lends")
    return int(text)


def _require_free(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.closing(socket.socket(family)) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, port))
        except OSError:
            raise _taken(port) from None


def _taken(port: int) -> Denied:
    return Denied(f"Port {port} is taken on this machine")
