"""Taking away what was installed on a peer; never a model, never what runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.provision.errors import PeerBusy, ProvisionError
from backends.provision.remote import last_line, rows, script

if TYPE_CHECKING:
    from backends.peers.shell import Shell

_CLEAN_S = 120.0
_BUSY = 75


async def clean(shell: Shell) -> int:
    """Remove our engines, relays, builds, half uploads and dead process directories.

    Engines that the peer's user built or installed stay: only what carries our mark
    goes.

    Returns:
        The bytes that are free again.

    Raises:
        PeerBusy: something of ours runs there; nothing was removed.
        ProvisionError: something cannot be removed.
        PeerUnreachable: the connection broke.
    """
    result = await shell.run(script("clean"), timeout_s=_CLEAN_S, check=False)
    told = rows(result.stdout)
    if result.code == _BUSY:
        names = ", ".join(row[1] for row in told if row[0] == "runs")
        raise PeerBusy(
            f"Still running on {shell.name}: {names}", "Stop it first, then repeat."
        )
    if result.code != 0:
        raise ProvisionError(f"{shell.name}: {last_line(result)}")
    return sum(int(row[1]) for row in told if row[0] == "freed")
