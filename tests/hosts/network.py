"""A real network of real machines: three peers with sshd, joined with this machine.

Usage, in any test under ``tests/hosts`` (they are marked ``hosts``; run as root)::

    def test_it(network: Network) -> None:
        ada = network.peer("ada")                # also bob and cy
        network.write_ssh_config()               # Host ada, bob, cy with key and keys
        subprocess.run(["dllm-tui", "peers", "list"], env=network.env(), check=True)
        assert (ada.home / ".cache").exists()    # its disk, seen from here
        assert not ada.processes()

- Every peer has its own network, processes, mounts, host name, boot id, ``/tmp``,
  ``/run``, ``/etc/passwd`` and ``/etc/shadow``, host key and an EMPTY home with nothing
  but ``.ssh/authorized_keys``; only the read-only root file system is the test
  machine's. Peers reach each other and this machine, and nothing else.
- ``machine.Machine`` says what can be done to a peer: ``run``, ``processes``,
  ``stop_sshd``/``start_sshd``, ``configure``, ``kill_everything`` (a reboot),
  ``power_off``/``power_on``, ``link_down``/``link_up``, ``new_host_key``,
  ``limit_disk``, ``set_login_shell``, ``authorize``, ``allow_password``.
- ``network.home`` is the head's HOME, apart from the user's: the fixture sets HOME to
  it and hides the agent, for code in this process too; ``network.env()`` is for child
  processes. ``write_ssh_config`` writes ``config`` and ``known_hosts`` there.
- ``reaching.py`` has ``reach``/``reached`` (an ``Connection`` by the head's config)
  and ``until`` (wait for a condition while the event loop goes on).
- The fixture ``network`` resets everything between tests (a changed sshd, a reboot, a
  full disk), and fails the test that leaves a process on a peer: stop what you start,
  or say ``kill_processes()`` when leaving it was the point.
- The network is made once per session and needs no cleaning up: all of it hangs on
  pipes held by this process, and is gone when it ends, however that happens.
"""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import os
import shutil
import subprocess
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from tests.hosts.machine import SSHD, Machine, empty
from tests.kit.waiting import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMES = ("ada", "bob", "cy")
_TOOLS = ("unshare", "nsenter", "ip", "ss", "ssh-keygen", "openssl", SSHD)
_PREFIX = "dt-"
_numbers = itertools.count()
_KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL", "TERM")


def missing() -> str:
    """Why no network can be made here; empty when one can."""
    if not hasattr(os, "setns") and not Path("/proc/self/ns/net").exists():
        return "needs Linux namespaces"
    if os.geteuid() != 0:
        return "needs root to make network namespaces"
    absent = [tool for tool in _TOOLS if shutil.which(tool) is None]
    return f"not installed: {', '.join(absent)}" if absent else ""


class Network:
    """Three machines on a switch, and this machine as the head."""

    def __init__(self) -> None:
        # Short: sockets live below, and their paths end at 107 bytes.
        _remove_stale_directories()
        prefix = f"{_PREFIX}{os.getpid()}-"
        self.directory = Path(tempfile.mkdtemp(prefix=prefix))
        self.home = self.directory / "head"
        self._switch: subprocess.Popen[bytes] | None = None
        self._cable = f"dt{os.getpid()}n{next(_numbers)}"
        self.peers: tuple[Machine, ...] = ()
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def peer(self, name: str) -> Machine:
        """The machine of that name."""
        return next(peer for peer in self.peers if peer.name == name)

    @property
    def key(self) -> Path:
        """The private key every peer lets in, without a passphrase."""
        return self.directory / "key"

    @property
    def public_key(self) -> str:
        """Its public half, one line."""
        return self.key.with_name("key.pub").read_text().strip()

    @property
    def address(self) -> str:
        """This machine's own address on the network."""
        return str(self._net4[1])

    @property
    def config_file(self) -> Path:
        """``~/.ssh/config`` of the head."""
        return self.home / ".ssh" / "config"

    @property
    def known_hosts(self) -> Path:
        """``~/.ssh/known_hosts`` of the head."""
        return self.home / ".ssh" / "known_hosts"

    def env(self, **more: str) -> dict[str, str]:
        """Environment of a child process: head's HOME, no agent, no XDG directories."""
        kept = {k: os.environ[k] for k in _KEPT_VARIABLES if k in os.environ}
        return {**kept, "HOME": str(self.home), **more}

    def write_ssh_config(
        self,
        *,
        known: bool = True,
        identity: Path | None = None,
        options: Mapping[str, Mapping[str, str]] = {},
    ) -> Path:
        """Write the head's ssh config: one Host per peer, by its own name.

        ``options`` adds settings to a peer's block; ``known`` writes all host keys into
        known_hosts, otherwise none.
        """
        blocks = (self._block(peer, identity, options) for peer in self.peers)
        self.config_file.write_text("\n".join(blocks))
        lines = [f"{p.address},{p.address6} {p.host_key}\n" for p in self.peers]
        self.known_hosts.write_text("".join(lines) if known else "")
        self.known_hosts.chmod(0o600)
        return self.config_file

    def make_key(self, name: str, passphrase: str = "", kind: str = "ed25519") -> Path:
        """Another key pair of the head: ``~/.ssh/NAME`` and ``NAME.pub``."""
        path = self.home / ".ssh" / name
        argv = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", name]
        subprocess.run([*argv, "-f", str(path)], check=True)
        return path

    def reset(self) -> None:
        """Everything as it was made."""
        for peer in self.peers:
            peer.reset()
        self._fill_home()

    def close(self) -> None:
        """End and remove everything."""
        for peer in self.peers:
            peer.container.halt()
        if self._switch is not None:
            with contextlib.suppress(subprocess.SubprocessError):
                subprocess.run(["ip", "link", "del", "dev", self._cable], check=True)
            assert self._switch.stdin is not None
            self._switch.stdin.close()
            self._switch.wait(PATIENCE_S)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _make(self) -> None:
        self.directory.chmod(0o755)
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "head"]
        subprocess.run([*argv, "-f", str(self.key)], check=True)
        self._fill_home()
        self._net4, self._net6 = _free_networks()
        self._make_switch()
        for number, name in enumerate(NAMES):
            self.peers += (self._make_peer(number, name),)
        for peer in self.peers:
            wait_until(peer.is_listening, f"reaching {peer.name}")

    def _make_switch(self) -> None:
        self._switch = subprocess.Popen(
            ["unshare", "--net", "cat"], stdin=subprocess.PIPE, start_new_session=True
        )
        pid = str(self._switch.pid)
        own = os.readlink("/proc/self/ns/net")
        wait_until(lambda: os.readlink(f"/proc/{pid}/ns/net") != own, "the switch")
        enter = ["nsenter", "-t", pid, "-n", "--"]
        for words in (
            [*enter, *_ip("link add name bridge type bridge")],
            [*enter, *_ip("link set dev bridge up")],
            _ip(f"link add name {self._cable} type veth peer name head netns {pid}"),
            [*enter, *_ip("link set dev head master bridge up")],
            _ip(f"addr add {self.address}/24 dev {self._cable}"),
            _ip(f"-6 addr add {self._net6[1]}/64 dev {self._cable} nodad"),
            _ip(f"link set dev {self._cable} up"),
        ):
            subprocess.run(words, check=True)

    def _make_peer(self, number: int, name: str) -> Machine:
        assert self._switch is not None
        peer = Machine(
            name,
            self.directory / name,
            address=str(self._net4[10 + number]),
            address6=str(self._net6[0x10 + number]),
            public_key=self.public_key,
        )
        peer.attach(self._switch.pid, f"port{number}")
        try:
            peer.power_on()
        except BaseException:
            peer.container.halt()
            raise
        return peer

    def _fill_home(self) -> None:
        self.home.mkdir(mode=0o700, exist_ok=True)
        empty(self.home)
        (self.home / ".ssh").mkdir(mode=0o700)

    def _block(
        self,
        peer: Machine,
        identity: Path | None,
        options: Mapping[str, Mapping[str, str]],
    ) -> str:
        settings = {
            "HostName": peer.address,
            "User": peer.user,
            "IdentityFile": str(identity or self.key),
            "UserKnownHostsFile": str(self.known_hosts),
            **options.get(peer.name, {}),
        }
        lines = (f"    {name} {value}\n" for name, value in settings.items())
        return f"Host {peer.name}\n" + "".join(lines)


def _remove_stale_directories() -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        pid = path.name.split("-")[1]
        if pid.isdigit() and not Path("/proc", pid).exists():
            shutil.rmtree(path, ignore_errors=True)


def _ip(words: str) -> list[str]:
    return ["ip", *words.split()]


def _free_networks() -> tuple[ipaddress.IPv4Network, ipaddress.IPv6Network]:
    argv = ["ip", "-4", "route", "show", "table", "all"]
    routes = subprocess.check_output(argv, text=True)
    for attempt in range(256):
        number = (os.getpid() + 7 * attempt) % 0x4000
        net4 = ipaddress.IPv4Network(f"10.{64 + number // 256}.{number % 256}.0/24")
        if f"{net4[0]}" not in routes and f"{net4[1]}" not in routes:
            break
    random = uuid.uuid4().hex
    prefix = f"fd{random[:2]}:{random[2:6]}:{random[6:10]}:1::/64"
    return net4, ipaddress.IPv6Network(prefix)
