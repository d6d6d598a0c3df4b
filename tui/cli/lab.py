"""``dllm-tui lab``: pretend a link is slower than it is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from backends.errors import UsageError
from backends.state import Lab
from tui.cli.output import emit_json, json_option, run

if TYPE_CHECKING:
    from collections.abc import Mapping

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


def quantity(text: str, units: Mapping[str, float], example: str) -> float:
    """A number with its unit, in the base unit of ``units``.

    Raises:
        UsageError: it is not one.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z/]*)\s*", text.lower())
    if match is None or match[2] not in units:
        raise UsageError(f"{text!r} is not understood", f"Write it like {example}.")
    return float(match[1]) * units[match[2]]


@click.group(epilog=EXAMPLES)
def lab() -> None:
    """Add latency, jitter and a bandwidth limit to links, live."""


@lab.command("set", epilog=EXAMPLES)
@click.argument("link")
@click.option("--latency", default="0ms", help="Added one-way latency, e.g. 20ms.")
@click.option("--jitter", default="0ms", help="Its standard deviation, e.g. 2ms.")
@click.option("--rate", help="Bandwidth each way, e.g. 30MB/s or 100Mbit/s.")
@click.option("--seed", type=click.IntRange(0), default=1, help="Seed of the jitter.")
@json_option
def set_lab(
    link: str, latency: str, jitter: str, rate: str | None, seed: int, as_json: bool
) -> None:
    """Make LINK (a worker's name, or all) slower."""
    wanted = Lab(
        latency_ms=quantity(latency, MS, "20ms"),
        jitter_ms=quantity(jitter, MS, "2ms"),
        rate_mb_s=quantity(rate, MB_PER_S, "30MB/s") if rate else 0.0,
        seed=seed,
    )
    _apply(link, wanted, as_json=as_json)


@lab.command("clear", epilog=EXAMPLES)
@click.argument("link", default=ALL)
@json_option
def clear_lab(link: str, as_json: bool) -> None:
    """Give LINK (or all links) its own speed back."""
    _apply(link, None, as_json=as_json)


@lab.command("show", epilog=EXAMPLES)
@json_option
def show_lab(as_json: bool) -> None:
    """Show what is set on each link."""
    from tui.cli.status import current_snapshot

    links = run(current_snapshot()).links
    if as_json:
        emit_json({link.worker: link.lab for link in links})
    else:
        click.echo("\n".join(map(_line, links)) or "No link: nothing runs.")


def _apply(link: str, wanted: Lab | None, *, as_json: bool) -> None:
    from backends.controller.client import ControllerClient

    worker = None if link == ALL else link
    run(ControllerClient().set_lab(worker, wanted))
    if as_json:
        emit_json({"link": link, "lab": wanted})


def _line(link: Link) -> str:
    if link.lab is None:
        return f"{link.worker:16} as it is"
    rate = f"{link.lab.rate_mb_s:g} MB/s" if link.lab.rate_mb_s else "no limit"
    latency, jitter = link.lab.latency_ms, link.lab.jitter_ms
    return f"{link.worker:16} +{latency:g} ± {jitter:g} ms each way, {rate}"
