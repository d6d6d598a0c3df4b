"""A test peer: a container with a cable, a disk and a Debian sshd."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from tests.hosts.container import HOME, Container
from tests.hosts.proc import alive, children, comm, command_line
from tests.kit.processes import kill_until_none
from tests.kit.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

SSHD = "/usr/sbin/sshd"
HOST_KEY = "ssh_host_ed25519_key"

_DEFAULTS = {
    "Port": "22",
    "HostKey": f"/etc/ssh/{HOST_KEY}",
    "PidFile": "/run/sshd.pid",
    "PermitRootLogin": "yes",
    "PubkeyAuthentication": "yes",
    "PasswordAuthentication": "no",
    "KbdInteractiveAuthentication": "no",
    "UsePAM": "no",
    "AllowTcpForwarding": "yes",
    "AllowStreamLocalForwarding": "yes",
    # Fewer would drop logins at random when many connect at once.
    "MaxStartups": "200",
    "UseDNS": "no",
    "Subsystem": "sftp internal-sftp",
    "LogLevel": "VERBOSE",
    # A worker's threads that wait leave the cores, which many share, to others.
    "SetEnv": "OMP_WAIT_POLICY=PASSIVE",
}


AGENT = "dllm-relay agent --run-dir "


class Machine:
    """One peer. All paths are the peer's own unless they are a ``Path``."""

    user = "root"

    def __init__(
        self, name: str, disk: Path, *, address: str, address6: str, public_key: str
    ) -> None:
        self.name = name
        self.address = address
        self.address6 = address6
        self.container = Container(name, disk)
        self._public_key = public_key
        self._options: dict[str, str] = {}
        self._dirty = False
        self._switch_pid = 0
        self._port_name = ""
        self._limited: list[str] = []
        self._slowed = False
        self._unplugged = False
        self.new_host_key()
        self._original_key = self._host_key_files()
        self._write_config()
        self._fill_home()

    # -- What a test looks at ----------------------------------------------------

    @property
    def home(self) -> Path:
        """Its home directory as seen from the test machine; outlives reboots."""
        return self.container.disk / "home"

    @property
    def remote_home(self) -> str:
        """Its home directory by its own name."""
        return HOME

    @property
    def host_key(self) -> str:
        """Its public host key: ``ssh-ed25519 AAAA…``."""
        text = (self._ssh_dir / f"{HOST_KEY}.pub").read_text()
        return " ".join(text.split()[:2])

    @property
    def fingerprint(self) -> str:
        """Its host key's fingerprint as OpenSSH prints it: ``SHA256:…``."""
        argv = ["ssh-keygen", "-l", "-f", str(self._ssh_dir / f"{HOST_KEY}.pub")]
        return subprocess.check_output(argv, text=True).split()[1]

    @property
    def sshd_log(self) -> str:
        """What its sshd logged since the network was made."""
        path = self._ssh_dir / "sshd.log"
        return path.read_text() if path.exists() else ""

    def inside(self, path: str) -> Path:
        """Any of its paths as seen from the test machine, until it reboots."""
        return self.container.inside(path)

    def run(
        self,
        argv: Sequence[str],
        *,
        check: bool = True,
        stdin: str = "",
        env: Mapping[str, str] = {},
        timeout_s: float = 60.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run something on it as root, not by way of SSH."""
        return subprocess.run(
            self.container.entering(argv, env=env),
            check=check,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def count_forks(self) -> int:
        """Processes and threads made on it since it booted, one for each count too."""
        return int(self.run(["cat", "/proc/sys/kernel/ns_last_pid"]).stdout)

    def processes(self) -> list[str]:
        """Command lines of all it runs but its first process, its sshd and agents."""
        return [line for line in self.left() if AGENT not in line]

    def left(self) -> list[str]:
        """The same with agents."""
        return [line for _, line in self._ours()]

    def agents(self) -> dict[int, str]:
        """Our agents there, one a session: number on this machine, command line."""
        return {pid: line for pid, line in self._ours() if AGENT in line}

    def listening(self) -> list[str]:
        """``address:port`` of every TCP listener on it but its sshd."""
        lines = self.run(["ss", "-Hltn"]).stdout.splitlines()
        found = [line.split()[3] for line in lines]
        return sorted(each for each in found if not each.endswith(f":{self._port}"))

    # -- What a test does to it --------------------------------------------------

    def kill_processes(self) -> None:
        """Kill all that :meth:`processes` names, wait, and see that it is gone."""
        kill_until_none(lambda: alive(pid for pid, _ in self._ours()))

    def stop_sshd(self) -> None:
        """Kill sshd with all its sessions, and wait; what they started may live on."""
        kill_until_none(lambda: alive(self._sshd_pids()))

    def start_sshd(self) -> None:
        """Start sshd and wait until it accepts connections."""
        self.run([SSHD, "-f", "/etc/ssh/sshd_config", "-E", "/etc/ssh/sshd.log"])
        wait_until(
            lambda: f":{self._port} " in self._listeners(),
            f"sshd's start on {self.name}",
        )

    @contextlib.contextmanager
    def frozen_sshd(self) -> Iterator[None]:
        """Whoever connects meanwhile is let in by the kernel, and gets no answer."""
        # The end of one that served somebody before may be on its way.
        frozen = alive(self._sshd_pids())
        try:
            for process in frozen:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.suspend()
            yield
        finally:
            for process in frozen:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.resume()

    def greeted(self) -> bool:
        """Whether somebody who connected to its sshd said something it did not read."""
        lines = self.run(["ss", "-Htn", f"sport = :{self._port}"]).stdout.splitlines()
        return any(int(line.split()[1]) for line in lines)

    def configure(self, **options: str) -> None:
        """Set options of sshd_config and restart it, ending its sessions."""
        self._options.update(options)
        self._write_config()
        self._dirty = True
        self.stop_sshd()
        self.start_sshd()

    def allow_password(
        self, password: str, *, keyboard_interactive: bool = False
    ) -> None:
        """Let its user log in with a password as well."""
        argv = ["openssl", "passwd", "-6", "-stdin"]
        digest = subprocess.check_output(argv, input=password, text=True).strip()
        self._edit_etc("shadow", "root", 1, digest)
        if keyboard_interactive:
            self.configure(UsePAM="yes", KbdInteractiveAuthentication="yes")
        else:
            self.configure(PasswordAuthentication="yes")

    def set_login_shell(self, path: str) -> None:
        """Give its user another shell: ``/usr/bin/fish``."""
        self._edit_etc("passwd", "root", 6, path)

    def authorize(self, *public_keys: str) -> None:
        """Let exactly these keys log in; none refuses everybody."""
        directory = self.home / ".ssh"
        directory.mkdir(mode=0o700, exist_ok=True)
        path = directory / "authorized_keys"
        path.write_text("".join(f"{key}\n" for key in public_keys))
        path.chmod(0o600)

    def new_host_key(self) -> None:
        """Give it another host key; a running sshd takes it with the next client."""
        for path in self._host_key_files():
            path.unlink()
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", self.name]
        subprocess.run([*argv, "-f", str(self._ssh_dir / HOST_KEY)], check=True)
        self._dirty = True
        if self.container.running:
            self.stop_sshd()
            self.start_sshd()

    def limit_disk(self, size_bytes: int, path: str = "") -> None:
        """Put a small disk over a directory of its home (default: all but ``.ssh``).

        What is on it is not seen through ``home`` but through ``inside``, and is lost
        when it reboots.
        """
        target = f"{HOME}/{path}" if path else HOME
        self.run(["mkdir", "-p", target])
        self.run(
            [
                "mount",
                "-t",
                "tmpfs",
                "-o",
                f"size={size_bytes},mode=700",
                "small",
                target,
            ]
        )
        if not path:
            self.run(["mkdir", "-m", "700", f"{HOME}/.ssh"])
            key = self.inside(HOME) / ".ssh" / "authorized_keys"
            key.write_text(f"{self._public_key}\n")
            key.chmod(0o600)
        self._limited.append(target)

    def put_over(self, directory: str, files: Mapping[str, str]) -> None:
        """Put a directory of these files in place of one, until it is reset.

        Its kernel's own directories can be replaced so: ``/sys/devices/system/cpu``.
        """
        self.run(["mount", "-t", "tmpfs", "over", directory])
        self._limited.append(directory)
        for name, text in files.items():
            file = self.inside(directory) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    def limit_rate(self, rate: str) -> None:
        """Let its cable carry so much towards it: ``20mbit``."""
        shape = ("tbf", "rate", rate, "burst", "64kbit", "latency", "400ms")
        port = ("dev", self._port_name, "root")
        self._in_switch("tc", "qdisc", "replace", *port, *shape)
        self._slowed = True

    def kill_everything(self) -> None:
        """Power cut and reboot: only its disk stays, and sshd runs again."""
        self.power_off()
        self.power_on()

    def power_off(self) -> None:
        """End everything at once; its address no longer answers."""
        self._limited.clear()
        self.container.halt()

    def power_on(self) -> None:
        """Boot, plug in, start sshd."""
        self.container.boot()
        self._plug_in()
        self.start_sshd()

    def link_down(self) -> None:
        """Pull its cable."""
        self._unplugged = True
        self._in_switch("ip", "link", "set", "dev", self._port_name, "down")

    def link_up(self) -> None:
        """Plug its cable in again."""
        self._unplugged = False
        self._in_switch("ip", "link", "set", "dev", self._port_name, "up")

    # -- What the network does to it ---------------------------------------------

    def attach(self, switch_pid: int, port_name: str) -> None:
        """Say where its cable ends."""
        self._switch_pid = switch_pid
        self._port_name = port_name

    def reset(self) -> None:
        """Back to how it was made: empty home, no processes, default sshd."""
        if not self.container.running:
            self.power_on()
        if self._unplugged:
            self.link_up()
        if self._slowed:
            self._in_switch("tc", "qdisc", "del", "dev", self._port_name, "root")
            self._slowed = False
        self.kill_processes()
        while self._limited:
            self.run(["umount", "-l", self._limited.pop()])
        self._fill_home()
        for place in ("/tmp", "/var/tmp", "/dev/shm"):
            empty(self.inside(place))
        if self._dirty:
            self._restore_sshd()
        elif not self.is_listening():
            self.start_sshd()

    # -- Inside --------------------------------------------------------------------

    @property
    def _ssh_dir(self) -> Path:
        return self.container.disk / "ssh"

    def _host_key_files(self) -> dict[Path, bytes]:
        names = (HOST_KEY, f"{HOST_KEY}.pub")
        paths = (self._ssh_dir / name for name in names)
        return {path: path.read_bytes() for path in paths if path.exists()}

    def _restore_sshd(self) -> None:
        for path, data in self._original_key.items():
            path.write_bytes(data)
        self._options.clear()
        self._write_config()
        for name in ("passwd", "shadow"):
            target = self.container.disk / "etc" / name
            target.write_bytes(Path("/etc", name).read_bytes())
        self._unlock_root()
        self._dirty = False
        self.stop_sshd()
        self.start_sshd()

    def _write_config(self) -> None:
        options = {**_DEFAULTS, **self._options}
        text = "".join(f"{name} {value}\n" for name, value in options.items())
        (self._ssh_dir / "sshd_config").write_text(text)

    def _fill_home(self) -> None:
        empty(self.home)
        self.home.chmod(0o700)
        self.authorize(self._public_key)
        self._unlock_root()

    def _unlock_root(self) -> None:
        # Without PAM sshd takes `!` and an unusable password for a locked account.
        path = self.container.disk / "etc" / "shadow"
        if path.read_text().split(":")[1][:1] in ("", "!", "*"):
            self._edit_etc("shadow", "root", 1, "x", dirty=False)

    def _edit_etc(
        self, name: str, user: str, field: int, value: str, *, dirty: bool = True
    ) -> None:
        path = self.container.disk / "etc" / name
        lines = [line.split(":") for line in path.read_text().splitlines()]
        for fields in lines:
            if fields[0] == user:
                fields[field] = value
        # In place: the peer has this very file mounted.
        path.write_text("".join(":".join(fields) + "\n" for fields in lines))
        self._dirty = self._dirty or dirty

    def _ours(self) -> list[tuple[int, str]]:
        keepers = children(self.container.pid) if self.container.running else {}
        found = []
        for pid in self.container.pids():
            name, line = comm(pid), command_line(pid)
            is_owner = keepers.get(pid) == "cat"
            if line and name != "sshd" and pid != self.container.pid and not is_owner:
                found.append((pid, line))
        return found

    def _sshd_pids(self) -> list[int]:
        return [pid for pid in self.container.pids() if comm(pid) == "sshd"]

    @property
    def _port(self) -> str:
        return self._options.get("Port", _DEFAULTS["Port"])

    def _listeners(self) -> str:
        return self.run(["ss", "-Hltn"]).stdout

    def is_listening(self) -> bool:
        """Whether its sshd answers from here within a second."""
        try:
            with socket.create_connection((self.address, int(self._port)), 1):
                return True
        except OSError:
            return False

    def _in_switch(self, *argv: str) -> None:
        enter = ["nsenter", "-t", str(self._switch_pid), "-n", "--"]
        subprocess.run([*enter, *argv], check=True)

    def _plug_in(self) -> None:
        # The old cable goes with the old namespace, but not at once.
        with contextlib.suppress(subprocess.CalledProcessError):
            self._in_switch("ip", "link", "del", "dev", self._port_name)
        self._in_switch(
            *("ip", "link", "add", "name", self._port_name, "type", "veth"),
            *("peer", "name", "eth0", "netns", str(self.container.pid)),
        )
        self._in_switch("ip", "link", "set", "dev", self._port_name, "master", "bridge")
        self.link_up()
        # The same as before the reboot, or others would look for the old one.
        host = int(self.address.rsplit(".", 1)[1])
        mac = f"02:00:00:00:00:{host:02x}"
        self.run(["ip", "link", "set", "dev", "eth0", "address", mac])
        self.run(["ip", "addr", "add", f"{self.address}/24", "dev", "eth0"])
        v6 = ["ip", "-6", "addr", "add", f"{self.address6}/64", "dev", "eth0", "nodad"]
        self.run(v6)
        self.run(["ip", "link", "set", "dev", "eth0", "up"])


def empty(directory: Path) -> None:
    """Remove all in a directory."""
    for entry in directory.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
