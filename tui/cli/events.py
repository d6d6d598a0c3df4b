"""``dllm-tui events``: what happened, by whom, with the evidence."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from backends.state import to_json
from tui.cli.options import any_cluster_option
from tui.cli.output import emit_json, json_option, run, say, show
from tui.cli.quantity import SECONDS, quantity
from tui.work.event_words import details, sign

if TYPE_CHECKING:
    from collections.abc import Sequence

    from backends.client.client import ControllerClient
    from backends.state import Event

EXAMPLES = """
\b
Examples:
  dllm-tui events                      what happened in the last week
  dllm-tui events --since 2h           in the last two hours
  dllm-tui events --evidence           with the last log lines of what died
  dllm-tui events --follow             and whatever happens from here on
  dllm-tui events --json | jq '.[] | select(.kind == "died")'
"""

POLL_S = 0.5


@click.command(epilog=EXAMPLES)
@click.option("--since", metavar="AGE", help="No older than this: 90s, 30m, 2h, 3d.")
@click.option("--evidence", is_flag=True, help="With the log lines of what died.")
@click.option("-f", "--follow", is_flag=True, help="Go on; Ctrl-C ends.")
@any_cluster_option
@json_option
def events(
    since: str | None,
    evidence: bool,
    follow: bool,
    cluster: str | None,
    as_json: bool,
) -> None:
    """Show what happened in the last days: who launched, what died, what was mended.

    With --json and --follow every event is a line of JSON.
    """
    oldest = _oldest(since)
    view = _View(oldest, cluster, evidence=evidence, as_json=as_json)
    run(view.follow() if follow else view.write())


def _oldest(since: str | None) -> datetime | None:
    """From when on events are wanted.

    Raises:
        UsageError: that is no age.
    """
    if since is None:
        return None
    age_s = quantity(since, SECONDS, "2h")
    return datetime.now(UTC) - timedelta(seconds=age_s)


class _View:
    """The events that were asked for, as they were asked for."""

    def __init__(
        self,
        oldest: datetime | None,
        cluster: str | None,
        *,
        evidence: bool,
        as_json: bool,
    ) -> None:
        self._oldest = oldest
        self._cluster = cluster
        self._evidence = evidence
        self._as_json = as_json
        self._newest = 0

    async def write(self) -> None:
        """What there is."""
        from backends.client.client import ControllerClient

        found = await self._more(ControllerClient())
        if self._as_json:
            emit_json(found)
        elif found:
            self._show(found)
        else:
            say("Nothing has happened.")

    async def follow(self) -> None:
        """What there is, then what comes."""
        from backends.client.client import ControllerClient

        client = ControllerClient()
        while True:
            found = await self._more(client)
            if self._as_json:
                show("".join(f"{to_json(event)}\n" for event in found), end="")
            else:
                self._show(found)
            await asyncio.sleep(POLL_S)

    async def _more(self, client: ControllerClient) -> list[Event]:
        found = await client.events(after=self._newest)
        if found:
            self._newest = found[-1].number
        return [event for event in found if self._is_wanted(event)]

    def _is_wanted(self, event: Event) -> bool:
        if self._oldest is not None and event.at < self._oldest:
            return False
        return self._cluster is None or event.cluster in ("", self._cluster)

    def _show(self, found: Sequence[Event]) -> None:
        for event in found:
            when = event.at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
            show(f"{when}  {sign(event.tone)} {event.sentence}")
            for line in self._more_of(event):
                show(f"{'':19}    {line}")

    def _more_of(self, event: Event) -> list[str]:
        """Who it was and what to do; the evidence where it is wanted."""
        lines = details(event)
        if self._evidence:
            lines += [f"| {line}" for line in event.evidence]
        return lines
