"""Peers that lose their tunnels, their sshd or their power in a streamed answer.

Run as root with ``make trials WHAT=tunnel|sshd|machine``, or with
``python -m tools.trials.kills_on_machines``. They are like ``tools.trials.kills``,
with the workers on two peers over real SSH.

- tunnel: the controller that holds the tunnels is killed; then somebody asks for the
  status, as a service or a console does.
- sshd: an sshd is killed with all its sessions, and started again.
- machine: the cable of a machine is out until the answer is whole.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tests.engine.conftest import wait_for
from tests.hosts.conftest import CACHE
from tests.hosts.network import Network, missing
from tests.hosts.user import MODEL, HeadUser, prepared
from tests.kit.processes import kill_until_none, with_word
from tools.trials.kills import SETTLE_S, TOKENS, asked, print_head, row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tools.trials.kills import Seen

PEERS = ("ada", "bob")


def lose_tunnels(_: Network, user: HeadUser) -> None:
    os.kill(controller_of(user), signal.SIGKILL)
    user.status()


def lose_sshd(network: Network, _: HeadUser) -> None:
    network.peer("bob").stop_sshd()
    network.peer("bob").start_sshd()


def lose_machine(network: Network, _: HeadUser) -> None:
    network.peer("bob").link_down()


def controller_of(user: HeadUser) -> int:
    return with_word(user.processes(), "backends.controller")[0].pid


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
        try:
            prepared(user, *PEERS)
            for name in PEERS if not direct else ():
                user.run("config", "set", f"peers.{name}.data", "tunnel")
            yield network, user
            user.run("stop", "--all")
            user.assert_nothing_left()
            wait_for(lambda: not any(left_on(network)), "nothing is left on peers")
        finally:
            kill_until_none(user.processes)
    finally:
        network.close()


def left_on(network: Network) -> list[str]:
    return [
        line
        for peer in network.peers
        for line in (*peer.processes(), *peer.agents().values())
    ]


def is_whole_again(user: HeadUser) -> bool:
    status = user.status()
    shares = status["plan"]["split"]["shares"] if status["plan"] else []
    used = {share["device"].split("/")[0] for share in shares if share["layers"]}
    return status["state"] == "serving" and used >= set(PEERS)


def launched(user: HeadUser) -> int:
    peers = [word for name in PEERS for word in ("--peer", name)]
    user.run("up", "--model", MODEL, *peers, "--detach")
    return urlsplit(user.status()["api_url"]).port or 0


def are_there(user: HeadUser) -> bool:
    known = {peer["name"]: peer for peer in user.json("peers", "list")}
    away = ("unreachable", "probing")
    return all(
        known[name]["state"] not in away and known[name]["silent_since"] is None
        for name in PEERS
    )


def trials(what: str, count: int, random_: random.Random) -> Iterator[Seen]:
    """The answer of an undisturbed cluster, then those of the trials."""
    with somebody_with_peers(direct=what == "machine") as (network, user):
        port = launched(user)
        yield asked(port)
        for _ in range(count):
            fault = partial(FAULTS[what], network, user)
            yield disturbed(port, random_.randrange(1, TOKENS), fault)
            if what == "machine":
                # One that comes and goes is taken back later each time.
                network.peer("bob").link_up()
                wait_for(partial(are_there, user), "bob answers", SETTLE_S)
                user.run("stop")
                port = launched(user)
            wait_for(partial(is_whole_again, user), "both serve", SETTLE_S)


def disturbed(port: int, at: int, fault: Callable[[], None]) -> Seen:
    """One answer; the fault happens while it is read."""
    begun: list[Future[None]] = []
    with ThreadPoolExecutor(1) as aside:
        seen = asked(port, at, lambda: begun.append(aside.submit(fault)))
    for one in begun:
        one.result()
    return seen


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
