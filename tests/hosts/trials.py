"""Peers that lose their tunnels, their sshd or their power in a streamed answer.

Run as ``make trials WHAT=tunnel|sshd|machine``, or ``python -m tests.hosts.trials`` (as
root). As ``tests.engine.trials``, with the workers on two peers over real SSH: tunnels
end with the controller that holds them, after which somebody asks for the status, as a
service or a console does; an sshd is killed with all its sessions and started again; a
machine stays away until the answer is whole.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tests.engine.conftest import wait_for
from tests.engine.trials import SETTLE_S, TOKENS, asked, print_head, row
from tests.hosts.conftest import CACHE
from tests.hosts.network import Network, missing
from tests.hosts.user import MODEL, HeadUser, prepared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.engine.trials import Seen

PEERS = ("ada", "bob")


def lose_tunnels(network: Network, user: HeadUser) -> None:
    """Kill the controller, and ask for the status until another one is there."""
    os.kill(user.status()["controller_pid"], signal.SIGKILL)
    user.status()


def lose_sshd(network: Network, user: HeadUser) -> None:
    """Kill bob's with its sessions, and start it again."""
    network.peer("bob").stop_sshd()
    network.peer("bob").start_sshd()


def lose_machine(network: Network, user: HeadUser) -> None:
    """Take bob's power away."""
    network.peer("bob").power_off()


FAULTS: dict[str, Callable[[Network, HeadUser], None]] = {
    "tunnel": lose_tunnels,
    "sshd": lose_sshd,
    "machine": lose_machine,
}


@contextmanager
def somebody_with_peers(*, direct: bool) -> Iterator[tuple[Network, HeadUser]]:
    """A user and two peers that are ready; ``direct``: data may go past SSH."""
    network = Network()
    try:
        network.write_ssh_config()
        user = HeadUser(network, CACHE)
        prepared(user, *PEERS)
        if not direct:
            for name in PEERS:
                user.run("config", "set", f"peers.{name}.data", "tunnel")
        yield network, user
        user.run("stop", "--all")
        user.assert_nothing_left()
        left = [line for peer in network.peers for line in peer.processes()]
        assert not left, f"left on peers: {left}"
    finally:
        network.close()


def is_whole_again(user: HeadUser) -> bool:
    """Whether it serves, with every peer."""
    status = user.status()
    shares = status["plan"]["split"]["shares"] if status["plan"] else []
    used = {share["device"].split("/")[0] for share in shares if share["layers"]}
    return status["state"] == "serving" and used >= set(PEERS)


def trials(what: str, count: int, random_: random.Random) -> Iterator[Seen]:
    """The answer of an undisturbed cluster, then those of the trials."""
    peers = [word for name in PEERS for word in ("--peer", name)]
    with somebody_with_peers(direct=what == "machine") as (network, user):
        user.run("up", "--model", MODEL, *peers, "--detach")
        port = urlsplit(user.status()["api_url"]).port or 0
        yield asked(port)
        for _ in range(count):
            fault = threading.Thread(target=FAULTS[what], args=(network, user))
            yield asked(port, random_.randrange(1, TOKENS), fault.start)
            fault.join()
            if what == "machine":
                network.peer("bob").power_on()
            wait_for(partial(is_whole_again, user), "both serve again", SETTLE_S)


def main() -> None:
    """Try, print the table; the exit status is the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--kill", choices=sorted(FAULTS), required=True)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if reason := missing():
        parser.error(reason)
    print_head()
    random_ = random.Random(options.seed)
    whole, *seen = trials(options.kill, options.trials, random_)
    line, is_well = row("ours", options.kill, len(PEERS), whole, seen)
    print(line)
    sys.exit(not is_well)


if __name__ == "__main__":
    main()
