"""Machines behind routers: two homes that masquerade, and a public host between.

Both homes have the same private addresses, as homes do. Everything hangs on pipes of
this process, and is gone when it ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from tests.engine.conftest import COMMAND_S, RUN, User
from tests.kit.forking import ForkingPopen
from tests.kit.waiting import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NET = "203.0.113"
PUBLIC = f"{NET}.5"
HOME_ADDRESS = "192.168.7.2"
_ROUTER = "192.168.7.1"
_CLONE_NEWNET = 0x40000000
_RULES = """
table ip home {
  chain out { type nat hook postrouting priority 100;
    oifname "wan" masquerade HOW
  }
  chain in { type filter hook input priority 0; policy drop;
    iifname != "wan" accept
    ct state established,related accept
  }
  chain pass { type filter hook forward priority 0; policy drop;
    iifname "lan" accept
    ct state established,related accept
  }
}
"""


def missing_for_nat() -> str:
    """Why no routers can be made here; empty when they can."""
    if shutil.which("nft") is None:
        return "not installed: nft (Debian: apt-get install nftables)"
    try:
        with Space() as space:
            space.run("nft", "-f", "-", stdin=_RULES.replace("HOW", ""))
    except subprocess.CalledProcessError as error:
        return f"this kernel masquerades nothing: {error.stderr}"
    return ""


class Space:
    """A network namespace, held by a process."""

    def __init__(self) -> None:
        self._holder = subprocess.Popen(
            ["unshare", "--net", "cat"], stdin=subprocess.PIPE, start_new_session=True
        )
        self.pid = str(self._holder.pid)
        own = os.readlink("/proc/self/ns/net")
        wait_until(lambda: os.readlink(f"/proc/{self.pid}/ns/net") != own, "a net")
        self.ip("link set dev lo up")

    def __enter__(self) -> Space:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def enter(self) -> list[str]:
        return ["nsenter", "-t", self.pid, "-n", "--"]

    def run(self, *words: str, stdin: str = "") -> None:
        subprocess.run(
            [*self.enter, *words],
            input=stdin,
            check=True,
            text=True,
            capture_output=True,
        )

    def join(self) -> None:
        """Have this process in it from here on."""
        with open(f"/proc/{self.pid}/ns/net") as net:
            if ctypes.CDLL(None).setns(net.fileno(), _CLONE_NEWNET):
                raise OSError("setns")

    def ip(self, words: str) -> None:
        self.run("ip", *words.split())

    def cable(self, name: str, other: Space, its_name: str) -> None:
        """Join two nets."""
        self.ip(f"link add {name} type veth peer name {its_name} netns {other.pid}")
        self.ip(f"link set dev {name} up")
        other.ip(f"link set dev {its_name} up")

    def close(self) -> None:
        assert self._holder.stdin is not None
        self._holder.stdin.close()
        self._holder.wait(PATIENCE_S)


class HomeUser(User):
    """Somebody whose programs run in a net of theirs."""

    def __init__(self, space: Space, home: Path, cache: Path) -> None:
        super().__init__(home)
        self._space = space
        home.mkdir()
        (home / "run").mkdir(mode=0o700)
        self.env |= {"HOME": str(home), "XDG_CACHE_HOME": str(cache)}

    def start(self, *args: str, **options: Any) -> subprocess.Popen[str]:
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        options.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.Popen(
            [*self._space.enter, "dllm-tui", *args],
            env=self.env,
            cwd=self.home,
            text=True,
            **options,
        )

    def fork(self, *args: str, **options: Any) -> subprocess.Popen[str]:
        words = [sys.executable, "-P", "-c", RUN, *args]
        options["preexec_fn"] = self._space.join
        return self._popen(ForkingPopen, words, **options)

    def given(self, text: str, *args: str) -> None:
        """Run a command that reads a secret."""
        process = self.fork(*args, stdin=subprocess.PIPE)
        out, err = process.communicate(text, timeout=COMMAND_S)
        assert process.returncode == 0, out + err


class Home:
    """A machine and its router."""

    def __init__(self, internet: Space, number: int) -> None:
        self.machine, self.router = Space(), Space()
        self.address = f"{NET}.{10 + number}"
        self.router.cable("wan", internet, f"home{number}")
        internet.ip(f"link set dev home{number} master bridge")
        self.router.ip(f"addr add {self.address}/24 dev wan")
        self.machine.cable("eth", self.router, "lan")
        self.machine.ip(f"addr add {HOME_ADDRESS}/24 dev eth")
        self.machine.ip(f"route add default via {_ROUTER}")
        self.router.ip(f"addr add {_ROUTER}/24 dev lan")
        self.router.run("sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")
        self.masquerade()

    def masquerade(self, how: str = "") -> None:
        """As most routers do, or ``fully-random``: another port for each peer."""
        self.router.run("nft", "flush", "ruleset")
        self.router.run("nft", "-f", "-", stdin=_RULES.replace("HOW", how))

    def block(self, protocol: str) -> None:
        """Let nothing of ``udp`` or ``tcp`` through."""
        rule = f"insert rule ip home pass meta l4proto {protocol} drop"
        self.router.run("nft", *rule.split())

    def block_udp_to(self, other: Home) -> None:
        """Let none through there, until it masquerades anew."""
        rule = f"insert rule ip home pass ip daddr {other.address} meta l4proto udp"
        self.router.run("nft", *rule.split(), "drop")

    def move_to(self, address: str) -> None:
        """Give the machine another address, in place of its own."""
        self.machine.ip(f"addr del {HOME_ADDRESS}/24 dev eth")
        self.machine.ip(f"addr add {address}/24 dev eth")
        self.machine.ip(f"route replace default via {_ROUTER}")

    @contextlib.contextmanager
    def cut_off(self) -> Iterator[None]:
        """Drop everything meanwhile."""
        self.router.ip("link set dev lan down")
        try:
            yield
        finally:
            self.router.ip("link set dev lan up")

    def close(self) -> None:
        self.machine.close()
        self.router.close()


class Internet:
    """Two homes, and a public host."""

    def __init__(self) -> None:
        self._switch = Space()
        self._switch.ip("link add name bridge type bridge")
        self._switch.ip("link set dev bridge up")
        self.public = Space()
        self.public.cable("eth", self._switch, "public")
        self._switch.ip("link set dev public master bridge")
        self.public.ip(f"addr add {PUBLIC}/24 dev eth")
        self.homes = [Home(self._switch, number) for number in range(2)]

    def close(self) -> None:
        for home in self.homes:
            home.close()
        self.public.close()
        self._switch.close()
