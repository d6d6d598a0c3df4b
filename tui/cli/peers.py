"""``dllm-tui peers``: other machines, from a name to a worker that can serve."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from backends.errors import HostError
from backends.places import suggested_name
from backends.state import PeerState, ProvisionMode
from tui.cli.options import completing
from tui.cli.output import emit_json, json_option, run, say, show
from tui.cli.peer_text import peer_lines, peer_summary

if TYPE_CHECKING:
    from backends.state import Peer

EXAMPLES = """
\b
Examples:
  dllm-tui peers add mini                    a Host of ~/.ssh/config, or a host name
  dllm-tui peers add ada@10.0.0.7 --name nuc
  dllm-tui peers add box --bare 10.0.0.3:50052
  dllm-tui peers provision mini
  dllm-tui up --model m.gguf --peer mini --peer nuc --detach
"""


@click.group(epilog=EXAMPLES)
def peers() -> None:
    """Know other machines, look at them, and make them ready to serve."""


@peers.command("list", epilog=EXAMPLES)
@json_option
def list_peers(as_json: bool) -> None:
    """List the machines of the settings and how they are."""
    from backends.client.client import ControllerClient

    known = run(ControllerClient().settled_peers())
    if as_json:
        emit_json(known)
        return
    lines = peer_lines(known)
    show("\n".join(lines) or "No peers yet. Add one: dllm-tui peers add NAME.")


@peers.command("add", epilog=EXAMPLES)
@click.argument("destination", shell_complete=completing("hosts"))
@click.option("--name", help="What to call it; else the host's name.")
@click.option("--bare", metavar="HOST:PORT", help="An rpc-server somebody started.")
@click.option(
    "--accept-host-key",
    metavar="SHA256:…",
    help="Trust the host if this is the fingerprint of its key.",
)
@json_option
def add_peer(
    destination: str,
    name: str | None,
    bare: str | None,
    accept_host_key: str | None,
    as_json: bool,
) -> None:
    """Add DESTINATION, what one would give to ssh, and look at it."""
    from tui.cli.peer_session import added

    name = name or suggested_name(destination)
    peer = run(
        added(
            name,
            ssh=None if bare else destination,
            bare=bare,
            trusted=accept_host_key,
            interactive=sys.stdin.isatty(),
        )
    )
    if peer.state is PeerState.UNREACHABLE:
        why = peer.note.rstrip(".")
        raise HostError(f"{name} was added, but cannot be reached: {why}")
    _show(peer, as_json)


@peers.command("remove", epilog=EXAMPLES)
@click.argument("name", shell_complete=completing("peers"))
def remove_peer(name: str) -> None:
    """Forget NAME; what is installed there stays (see clean)."""
    from backends.client.client import ControllerClient

    run(ControllerClient().remove_peer(name))
    say(f"{name} is forgotten.")


@peers.command("probe", epilog=EXAMPLES)
@click.argument(
    "names", nargs=-1, metavar="[NAME]…", shell_complete=completing("peers")
)
@json_option
def probe_peers(names: tuple[str, ...], as_json: bool) -> None:
    """Look at NAME… (all when none is given) now, all at the same time."""
    from tui.cli.peer_session import probed

    found = run(probed(names))
    if as_json:
        emit_json(found)
        return
    for peer in found:
        show("\n".join(peer_summary(peer)))


@peers.command("provision", epilog=EXAMPLES)
@click.argument("name", shell_complete=completing("peers"))
@click.option(
    "--mode",
    type=click.Choice([mode.value for mode in ProvisionMode]),
    default=ProvisionMode.AUTO.value,
    help="Copy this machine's build, build there, or whatever fits.",
)
@json_option
def provision_peer(name: str, mode: str, as_json: bool) -> None:
    """Install engine and helper on NAME, in your own cache directory there.

    Ctrl-C stops it; the next time it goes on where it was.
    """
    from tui.cli.peer_session import provisioned

    _show(run(provisioned(name, ProvisionMode(mode))), as_json)


@peers.command("clean", epilog=EXAMPLES)
@click.argument("name", shell_complete=completing("peers"))
@json_option
def clean_peer(name: str, as_json: bool) -> None:
    """Remove from NAME what provision installed; models stay."""
    from backends.client.client import ControllerClient
    from backends.units import format_bytes

    freed = run(ControllerClient().clean_peer(name))
    if as_json:
        emit_json({"name": name, "freed_bytes": freed})
    else:
        show(f"{format_bytes(freed)} freed on {name}.")


@peers.command("copy", epilog=EXAMPLES)
@click.argument("name", shell_complete=completing("peers"))
@click.argument("model", metavar="MODEL", shell_complete=completing("models"))
@json_option
def copy_model(name: str, model: str, as_json: bool) -> None:
    """Copy the file MODEL to NAME, checked; Ctrl-C stops, the next time resumes."""
    from tui.cli.peer_session import copied
    from tui.cli.session import require_model

    path = run(copied(name, require_model(model)))
    if as_json:
        emit_json({"name": name, "path": path})
    else:
        show(f"{name} has it at {path}.")


def _show(peer: Peer, as_json: bool) -> None:
    if as_json:
        emit_json(peer)
    else:
        show("\n".join(peer_summary(peer)))
