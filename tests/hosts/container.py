"""A container made with ``unshare`` only: what a test peer runs in.

Its first process waits on a pipe that only this process holds the other end of: when
we end, however that happens (Ctrl-C, SIGKILL), the kernel ends everything in it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from tests.kit.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

HOME = str(Path("~root").expanduser())
"""Home directory of root, on the test machine and on every peer."""

OWN_ETC = ("passwd", "shadow", "hostname", "hosts", "machine-id")

# $1: directory with home/, etc/, ssh/ and boot_id; $2: host name; $3: home. Process 1
# collects every orphan: dash's `wait` waits for any child.
_SETUP = r"""
set -e
read -r pid rest </proc/self/stat
exec 3<&0
cat <&3 >/dev/null &
owner=$!
mount -t proc proc /proc
mount --bind "$1/boot_id" /proc/sys/kernel/random/boot_id
mount --bind "$1/home" "$3"
for name in "$1"/etc/*; do mount --bind "$name" "/etc/${name##*/}"; done
mount --bind "$1/ssh" /etc/ssh
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/sshd
for place in /dev/shm /var/tmp /tmp; do mount -t tmpfs -o mode=1777 tmpfs $place; done
mount -o remount,bind,ro /
echo "$2" >/proc/sys/kernel/hostname
ip link set lo up
cd /
echo "$pid"
exec >/dev/null 2>&1
set +e
wait $owner
"""

_UNSHARE = (
    *("unshare", "--net", "--mount", "--pid", "--uts", "--ipc"),
    *("--fork", "--kill-child"),
)


class Container:
    """Own network, mounts, processes and host name over a directory on the disk."""

    def __init__(self, name: str, disk: Path) -> None:
        """Describe it; :meth:`boot` starts it. ``disk`` outlives reboots."""
        self.name = name
        self.disk = disk
        self.pid = 0
        """Of its first process, as the test machine counts."""
        self._unshare: subprocess.Popen[str] | None = None
        for part in ("home", "etc", "ssh"):
            (disk / part).mkdir(parents=True)
        self.restore_etc()

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._unshare is not None and self._unshare.poll() is None

    def restore_etc(self) -> None:
        """Own copies of the few files of ``/etc`` that differ between machines."""
        for name in OWN_ETC:
            if Path("/etc", name).is_file():
                shutil.copy(f"/etc/{name}", self.disk / "etc" / name)
        (self.disk / "etc" / "hostname").write_text(f"{self.name}\n")
        machine_id = self.disk / "etc" / "machine-id"
        if machine_id.exists():
            machine_id.write_text(f"{uuid.uuid4().hex}\n")

    def boot(self) -> None:
        """Start it, without any process but its first."""
        (self.disk / "boot_id").write_text(f"{uuid.uuid4()}\n")
        arguments = (self.disk, self.name, HOME)
        self._unshare = subprocess.Popen(
            [*_UNSHARE, "/bin/dash", "-c", _SETUP, "setup", *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._unshare.stdout is not None
        line = self._unshare.stdout.readline()
        if not line:
            _, errors = self._unshare.communicate(timeout=PATIENCE_S)
            raise RuntimeError(f"{self.name} does not boot: {errors}")
        self.pid = int(line)

    def halt(self) -> None:
        """Pull the plug: every process is killed at once, as in a power cut."""
        if self._unshare is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        for pipe in (self._unshare.stdin, self._unshare.stdout, self._unshare.stderr):
            if pipe is not None:
                pipe.close()
        try:
            self._unshare.wait(PATIENCE_S)
        finally:
            self._unshare.kill()
            self._unshare = None

    def entering(
        self, argv: Sequence[str], *, env: Mapping[str, str] = {}
    ) -> list[str]:
        """The command line that runs ``argv`` inside, in a bare environment."""
        assignments = {
            "HOME": HOME,
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LC_ALL": "C.UTF-8",
            **env,
        }
        return [
            *("nsenter", "-t", str(self.pid), "-m", "-u", "-i", "-n", "-p", "--"),
            *("env", "-i", "-C", HOME),
            *(f"{name}={value}" for name, value in assignments.items()),
            *argv,
        ]

    def inside(self, path: str) -> Path:
        """A path of the container as seen from the test machine, until it reboots."""
        return Path(f"/proc/{self.pid}/root{path}")

    def pids(self) -> list[int]:
        """Every process inside, as the test machine counts, zombies left out."""
        if not self.running:
            return []
        home = os.readlink(f"/proc/{self.pid}/ns/pid")
        return [pid for pid, space in _pid_spaces() if space == home]


def _pid_spaces() -> Iterator[tuple[int, str]]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            # A zombie has no namespaces any more.
            with contextlib.suppress(OSError):
                yield int(name), os.readlink(f"/proc/{name}/ns/pid")
