"""Command lines as a shell takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.state import ProcessRole

if TYPE_CHECKING:
    from backends.state import ClusterSnapshot


def launch_command(snapshot: ClusterSnapshot | None) -> str:
    """The command line of the llama-server that runs; empty for none."""
    # Imported when needed: a start of the console does not copy.
    from shlex import join

    for process in snapshot.processes if snapshot else ():
        if process.role is ProcessRole.SERVER and process.argv:
            return join(process.argv)
    return ""
