"""A bundle for a bug report: what is known, without names, addresses, keys, prompts.

Names of machines become ``peer1``, addresses ``ip1``, homes ``~``, users ``user1``.
Chats are left out, and so are logs of llama-server, which may quote prompts.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import io
import json
import os
import platform
import re
import socket
import tarfile
import time
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from backends.client.client import ControllerClient
from backends.config import load_config, read_text
from backends.controller.event_log import EventFiles
from backends.errors import DllmError, disk_errors
from backends.gateway.keys import KeyFile
from backends.machine_names import LOCAL
from backends.paths import Paths
from backends.planning.blueprint import SERVER
from backends.redaction import (
    KEY,
    LEFT_OUT,
    NAMED_KEY,
    TOLD_KEY,
    shown_argv,
)
from backends.state import DEFAULT_CLUSTER, ClusterSnapshot, Peer, ProcessRole
from backends.writing import write_private

if TYPE_CHECKING:
    from backends.doctor.check import Check

LOG_BYTES = 256 << 10
EVENTS_MAX = 500
_HEX_KEY = re.compile(r"\b[0-9a-fA-F]{32,}\b")
_BASE64_KEY = re.compile(
    r"(?<![A-Za-z0-9+/])(?=[A-Za-z+/]*[0-9])(?=[a-z0-9+/]*[A-Z])"
    r"[A-Za-z0-9+/]{40,}={0,2}"
)
_IPV4 = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])")
_IPV6 = re.compile(
    r"(?<![0-9A-Za-z:])(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4}(?![0-9A-Za-z:])"
)
_MAC = re.compile(r"(?i)\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b")
_EMAIL = re.compile(r"\b[\w.+-]+@[A-Za-z][\w.-]*")
_HOME = re.compile(r"(?<![\w.~-])/(?:home|Users)/[^/\s\"':,]+|/root(?=[/\s\"':,]|$)")
_URL_HOST = re.compile(r"(?<=://)[^\s/\"'<>()]+")
_KEPT_ADDRESSES = ("127.0.0.1", "0.0.0.0", "::1", "::")
_KEPT_HOSTS = re.compile(
    r"(?:localhost|127\.0\.0\.1|\[::1\]|(?:[\w-]+\.)*"
    r"(?:github\.com|githubusercontent\.com|huggingface\.co|hf\.co|pypi\.org))(?::\d+)?"
)
_HOST_VARIABLES = "DLLM_ENGINE_URL HF_ENDPOINT HTTP_PROXY HTTPS_PROXY ALL_PROXY"
_CONFIGURED = re.compile(
    r"\bpeers\.[\"']?([A-Za-z0-9][\w-]*)|\b(?:ssh|bare|data|worker|host_key)\s*=\s*[\"']([^\"']+)"
)
"""Names and places of peers in settings, however wrong these are."""
_PLACES = re.compile(r"\s+(?=\S+:\d+(?:\s|$))")
"""Between the places of one worker."""
_NO_HOSTS = ("auto", "tunnel", "dials")
_WRITTEN = frozenset({"content", "prompt", "messages", "system"})
"""Members whose values are what people wrote."""
_ABOUT = """\
A report of dllm-tui doctor. Machines are called peer1, peer2 and so on, users user1,
clusters cluster1; addresses are ip1, homes ~. Keys, chats and prompts are left out.
"""


class Scrubber:
    """Replaces what names a person or a machine, the same each time by the same."""

    def __init__(
        self,
        machines: Iterable[str],
        users: Iterable[str],
        clusters: Iterable[str] = (),
    ) -> None:
        named: dict[str, str] = {}
        for kind, names in (("peer", machines), ("user", users), ("cluster", clusters)):
            found = [name for name in dict.fromkeys(names) if name]
            fresh = (name for name in found if name.lower() not in named)
            for number, name in enumerate(fresh, start=1):
                named.setdefault(name.lower(), f"{kind}{number}")
        self._named = named
        self._home = re.compile(rf"{re.escape(str(Path.home()))}(?=[/\s\"':,]|$)")
        self._addresses: dict[str, str] = {}
        words = sorted(map(re.escape, named), key=len, reverse=True)
        self._names = (
            re.compile(rf"(?i)(?<![A-Za-z0-9])(?:{'|'.join(words)})(?![A-Za-z0-9])")
            if words
            else None
        )

    def text(self, text: str) -> str:
        """A text without names, addresses and keys."""
        text = _HOME.sub("~", self._home.sub("~", text))
        text = TOLD_KEY.sub(rf"\1\2{KEY}", text)
        text = NAMED_KEY.sub(KEY, text)
        text = _HEX_KEY.sub("<hash>", text)
        text = _BASE64_KEY.sub(KEY, text)
        text = _URL_HOST.sub(self._host, text)
        text = _EMAIL.sub("<user>", text)
        text = _MAC.sub("<mac>", text)
        text = _IPV6.sub(self._address, text)
        text = _IPV4.sub(self._address, text)
        if self._names is not None:
            text = self._names.sub(lambda m: self._named[m[0].lower()], text)
        return text

    def _address(self, found: re.Match[str]) -> str:
        address = found[0]
        is_time = ":" in address and "::" not in address and address.count(":") < 7
        if address in _KEPT_ADDRESSES or is_time:
            return address
        return self._numbered(address, "ip")

    def _numbered(self, address: str, kind: str) -> str:
        number = len(self._addresses) + 1
        return self._addresses.setdefault(address, f"{kind}{number}")

    def _host(self, found: re.Match[str]) -> str:
        host = found[0]
        is_kept = _KEPT_HOSTS.fullmatch(host) or _IPV4.match(host)
        return host if is_kept else self._numbered(host, "host")

    def value(self, value: Any) -> Any:
        """A JSON value with all of its texts scrubbed; what people wrote is gone."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list | tuple):
            return shown_argv([self.value(one) for one in value])
        if isinstance(value, dict):
            return self._members(value)
        return value

    def _members(self, members: dict[Any, Any]) -> dict[str, Any]:
        found = {}
        for name, one in members.items():
            of_server = members.get("process") == SERVER
            quotes = of_server and name in ("log_tail", "evidence")
            left_out = name in _WRITTEN or quotes
            found[self.text(str(name))] = LEFT_OUT if left_out else self.value(one)
        return found


async def write_bundle(paths: Paths, checks: Sequence[Check], target: Path) -> None:
    """Write the checks, and what the controller knows, as a tar.gz."""
    client = ControllerClient(paths)
    running = await client.running()
    peers = await client.peers() if running else ()
    snapshots = await _snapshots(paths, client) if running else []
    scrubber = _scrubber(paths, peers, snapshots)
    parts = {
        "README.txt": _ABOUT,
        "about.json": _json(_about()),
        "checks.json": _json(scrubber.value(msgspec.to_builtins(checks))),
        "settings.toml": scrubber.text(_settings(paths)),
        "peers.json": _json(scrubber.value(msgspec.to_builtins(peers))),
        "snapshots.json": _json(scrubber.value(msgspec.to_builtins(snapshots))),
        "events.json": _json(
            scrubber.value(msgspec.to_builtins((await client.events())[-EVENTS_MAX:]))
        ),
        "controller.log": scrubber.text(_tail(paths.controller_log)),
    }
    for snapshot in snapshots:
        for name, text in (await _logs(paths, snapshot)).items():
            parts[scrubber.text(f"logs/{snapshot.cluster}-{name}.log")] = scrubber.text(
                text
            )
    await asyncio.to_thread(_write, target, parts)


def _write(target: Path, parts: dict[str, str]) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, text in parts.items():
            data = text.encode(errors="replace")
            info = tarfile.TarInfo(f"dllm-doctor/{name}")
            info.size, info.mtime, info.mode = len(data), int(time.time()), 0o600
            archive.addfile(info, io.BytesIO(data))
    with disk_errors("write", target):
        write_private(target.absolute(), made.getvalue())


async def _snapshots(paths: Paths, client: ControllerClient) -> list[ClusterSnapshot]:
    now = await client.snapshot()
    names = [brief.name for brief in now.clusters] or [now.cluster]
    return [await ControllerClient(paths, cluster=n).snapshot() for n in names]


async def _logs(paths: Paths, snapshot: ClusterSnapshot) -> dict[str, str]:
    client = ControllerClient(paths, cluster=snapshot.cluster)
    found = {}
    for process in snapshot.processes:
        if process.role is not ProcessRole.SERVER:
            with contextlib.suppress(DllmError):
                chunk = await client.read_log(process.name, -LOG_BYTES, LOG_BYTES)
                found[process.name] = chunk.text
    return found


def _scrubber(
    paths: Paths, peers: Sequence[Peer], snapshots: Sequence[ClusterSnapshot]
) -> Scrubber:
    machines, users = [socket.gethostname(), platform.node()], []
    with contextlib.suppress(KeyError):
        users.append(getpass.getuser())
    named = list(_CONFIGURED.findall(_settings(paths)))
    # TOML has more ways to say the same, as long as nothing in it is wrong.
    with contextlib.suppress(DllmError):
        configured = load_config(paths).peers.items()
        named += [
            (name, one.ssh or one.bare or one.worker or "") for name, one in configured
        ]
    named += [(peer.name, peer.address) for peer in peers]
    for name, place in named:
        machines.append(name)
        for one in _PLACES.split(place):
            user, host = _parts(one)
            machines.append(host)
            users.append(user)
    for variable in _HOST_VARIABLES.split():
        url = os.environ.get(variable) or os.environ.get(variable.lower(), "")
        host = url.rpartition("://")[2].partition("/")[0]
        if not _KEPT_HOSTS.fullmatch(host):
            machines.append(_parts(host)[1])
    machines += [peer.facts.hostname for peer in peers if peer.facts]
    short = [name.partition(".")[0] for name in machines]
    events = tuple(EventFiles(paths.events_dir).read())
    machines += [
        *short,
        *(event.by.host for event in events),
        *(e.peer for e in events),
    ]
    users += [event.by.user for event in events]
    users += [key.name for key in KeyFile(paths.keys_file).read()]
    clusters = [one.cluster for one in snapshots] + [event.cluster for event in events]
    return Scrubber(
        [n for n in machines if n not in (LOCAL, "localhost", *_NO_HOSTS)],
        # Every machine has it; and it is a word of paths that are no homes.
        [name for name in users if name != "root"],
        [name for name in clusters if name != DEFAULT_CLUSTER],
    )


def _parts(address: str) -> tuple[str, str]:
    # USER@HOST:PORT
    user, _, rest = address.rpartition("@")
    host = rest.rpartition(":")[0] if rest.count(":") == 1 else rest.strip("[]")
    return user, "" if _IPV4.fullmatch(host) or ":" in host else host


def _about() -> dict[str, str]:
    return {
        "version": version("dllm-tui"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def _settings(paths: Paths) -> str:
    try:
        return read_text(paths)
    except DllmError as error:
        return f"# {error}"


def _tail(file: Path) -> str:
    try:
        with file.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(log.tell() - LOG_BYTES, 0))
            return log.read().decode(errors="replace")
    except OSError as error:
        return f"It cannot be read ({error.strerror})."


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
