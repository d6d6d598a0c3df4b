"""``dllm-tui lab``: pretend a link is slower than it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from backends.state import Lab
from backends.units import format_lab
from tui.cli.options import cluster_option, completing
from tui.cli.output import emit_json, json_option, run, show
from tui.cli.quantity import quantity

if TYPE_CHECKING:
    from backends.state import Link

EXAMPLES = """
\b
Examples:
  dllm-tui lab set worker1 --latency 20ms --jitter 2ms --rate 30MB/s
  dllm-tui lab set all --latency 5ms
  dllm-tui lab show
  dllm-tui lab clear
"""

MS = {"us": 1e-3, "ms": 1.0, "s": 1e3, "": 1.0}
MB_PER_S = {"kb/s": 1e-3, "mb/s": 1.0, "gb/s": 1e3, "mbit/s": 0.125, "gbit/s": 125.0}
ALL = "all"


@click.group(epilog=EXAMPLES)
def lab() -> None:
    """Add latency, jitter and a bandwidth limit to links, live."""


@lab.command("set", epilog=EXAMPLES)
@click.argument("link", shell_complete=completing("links"))
@click.option("--latency", default="0ms", help="Added one-way latency, e.g. 20ms.")
@click.option("--jitter", default="0ms", help="Its standard deviation, e.g. 2ms.")
@click.option("--rate", help="Bandwidth each way, e.g. 30MB/s or 100Mbit/s.")
@click.option("--seed", type=click.IntRange(0), default=1, help="Seed of the jitter.")
@cluster_option
@json_option
def set_lab(
    link: str,
    latency: str,
    jitter: str,
    rate: str | None,
    seed: int,
    cluster: str,
    as_json: bool,
) -> None:
    """Make LINK (a worker's name, or all) slower."""
    from backends.link.limits import require_possible

    wanted = Lab(
        latency_ms=quantity(latency, MS, "20ms"),
        jitter_ms=quantity(jitter, MS, "2ms"),
        rate_mb_s=quantity(rate, MB_PER_S, "30MB/s") if rate else 0.0,
        seed=seed,
    )
    require_possible(wanted)
    _apply(link, wanted, cluster, as_json=as_json)


@lab.command("clear", epilog=EXAMPLES)
@click.argument("link", default=ALL, shell_complete=completing("links"))
@cluster_option
@json_option
def clear_lab(link: str, cluster: str, as_json: bool) -> None:
    """Give LINK (or all links) its own speed back."""
    _apply(link, None, cluster, as_json=as_json)


@lab.command("show", epilog=EXAMPLES)
@cluster_option
@json_option
def show_lab(cluster: str, as_json: bool) -> None:
    """Show what is set on each link."""
    from backends.link.absence import why_no_link
    from tui.cli.status import current_snapshot

    snapshot = run(current_snapshot(cluster))
    if as_json:
        links = () if why_no_link(snapshot) else snapshot.links
        emit_json({link.worker: link.lab for link in links})
    elif why := why_no_link(snapshot):
        show(f"{why}.")
    else:
        show("\n".join(map(_line, snapshot.links)))


def _apply(link: str, wanted: Lab | None, cluster: str, *, as_json: bool) -> None:
    from backends.client.client import ControllerClient

    worker = None if link == ALL else link
    run(ControllerClient(cluster=cluster).set_lab(worker, wanted))
    if as_json:
        emit_json({"link": link, "lab": wanted})


def _line(link: Link) -> str:
    said = "as it is" if link.lab is None else f"{format_lab(link.lab)} each way"
    return f"{link.worker:16} {said}"
