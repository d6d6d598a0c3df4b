"""Taking away what was installed on a peer; never a model, never what runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.provision.refusals import PeerBusy
from backends.provision.remote import refusal, rows, script

if TYPE_CHECKING:
    from backends.machines.agent.agent_host import AgentHost
    from backends.machines.shell import Shell

_CLEAN_S = 120.0
_BUSY = 75


async def clean(shell: Shell, host: AgentHost | None = None) -> int:
    """Remove our engines, relays, builds, half uploads and dead process directories.

    ``host`` tells of the processes there; None where no helper is installed.

    Engines that the peer's user built or installed stay: only what carries our mark
    goes.

    Returns:
        The bytes that are free again.

    Raises:
        PeerBusy: something of ours runs there; nothing was removed.
        ProvisionError: something cannot be removed.
        PeerUnreachable: the connection broke.
    """
    if host is not None:
        await _forget_ended(host)
    result = await shell.run(script("clean"), timeout_s=_CLEAN_S, check=False)
    told = rows(result.stdout)
    if result.code == _BUSY:
        raise _busy(shell.name, [row[1] for row in told if row[0] == "runs"])
    if result.code != 0:
        raise refusal(shell.name, result)
    return sum(int(row[1]) for row in told if row[0] == "freed")


async def _forget_ended(host: AgentHost) -> None:
    """Remove the directories of our processes there, of which none may live."""
    records = await host.records()
    living = [f"{r.name} (pid {r.pid})" for r in records if r.alive]
    if living:
        raise _busy(host.name, living)
    for record in records:
        await host.remove(record.name)


def _busy(name: str, running: list[str]) -> PeerBusy:
    return PeerBusy(
        f"Still running on {name}: {', '.join(running)}", "Stop it first, then repeat."
    )
