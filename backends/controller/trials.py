"""What each way to guess was found to bring, kept per cluster, model and network."""

from __future__ import annotations

import contextlib
from bisect import bisect
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec.structs import replace

from backends.controller.paces import SITES_KEPT, site_of
from backends.planning.speculating import Way, as_of, found_of, way_of
from backends.state import DEFAULT_CLUSTER, NOT_JSON, DraftTrial, Value
from backends.units import format_lab
from backends.writing import write_private

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from backends.state import DraftFound, Guesses, Link, Plan

T = TypeVar("T")
RTT_EDGES_MS = (2.0, 8.0, 32.0, 128.0)
"""Between them a round trip changes no verdict much."""
RTT_SLACK = 1.5
"""So far beyond an edge it is still what it was: round trips waver."""


class _Pages(Value, frozen=True, kw_only=True):
    """The file's content."""

    trials: dict[str, tuple[DraftTrial, ...]] = {}
    """By plan and network."""
    chosen: dict[str, Way] = {}
    """What a plan guessed with last, whatever the network."""


class TrialBook:
    """All trials, in a file that is written at every change."""

    def __init__(self, file: Path) -> None:
        """Go on with what the file has; one that cannot be read begins anew."""
        self._file = file
        self._pages = _Pages()
        with contextlib.suppress(OSError, *NOT_JSON):
            self._pages = msgspec.json.decode(file.read_bytes(), type=_Pages)

    def of(self, site: str) -> tuple[DraftTrial, ...]:
        """What was tried with a plan over a network."""
        return self._pages.trials.get(site, ())

    def found_for(self, model: str) -> tuple[DraftFound, ...]:
        """What was found of every way to guess for a model, newest first."""
        sites = (
            trials
            for trials in self._pages.trials.values()
            if any(trial.model == model for trial in trials)
        )
        found = chain.from_iterable(map(found_of, sites))
        return tuple(sorted(found, key=lambda one: one.at, reverse=True))

    def keep(self, site: str, trial: DraftTrial) -> None:
        """One trial, in place of an earlier one of the same way."""
        trials = dict(self._pages.trials)
        known = trials.pop(site, ())
        others = (one for one in known if way_of(one) != way_of(trial))
        trials[site] = (*others, trial)
        self._write(replace(self._pages, trials=_latest(trials)))

    def heard(
        self, site: str, way: Way, tokens: int, guesses: Guesses, at: float
    ) -> None:
        """What became of guesses while clients were served."""
        for trial in self.of(site):
            if way_of(trial) == way:
                live = replace(
                    trial, live_tokens=tokens, live_guesses=guesses, live_at=at
                )
                self.keep(site, live)

    def forget_past(self, site: str, running: Way, at: float) -> None:
        """What speaks no longer against ways that do not run: one of them is to now.

        Else it would speak against it once that runs, and again after it was left.
        """
        trials = {**self._pages.trials, site: as_of(at, self.of(site), running)}
        self._write(replace(self._pages, trials=trials))

    def chosen(self, plan: Plan, cluster: str = DEFAULT_CLUSTER) -> Way | None:
        """What a plan guessed with last in a cluster."""
        return self._pages.chosen.get(of_cluster(cluster, site_of(plan, {})))

    def choose(self, plan: Plan, way: Way, cluster: str = DEFAULT_CLUSTER) -> None:
        """Remember what it guesses with."""
        if self.chosen(plan, cluster) != way:
            page = of_cluster(cluster, site_of(plan, {}))
            chosen = {**self._pages.chosen, page: way}
            self._write(replace(self._pages, chosen=_latest(chosen)))

    def _write(self, pages: _Pages) -> None:
        """A book that cannot be written lasts as long as we do."""
        self._pages = pages
        with contextlib.suppress(OSError):
            write_private(self._file, msgspec.json.encode(pages))


def of_cluster(cluster: str, site: str) -> str:
    """A word for a plan and network that is this cluster's own.

    Two clusters of one plan answer other clients, whose text suits other ways.
    """
    return site if cluster == DEFAULT_CLUSTER else f"{cluster}: {site}"


class Network:
    """Tells networks apart by how far away their workers are, roughly."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._bands: dict[str, int] = {}

    def site(self, plan: Plan, links: tuple[Link, ...]) -> str:
        """A word for a plan and the links it runs over."""
        for link in links:
            if link.rtt_ms is not None:
                before = self._bands.get(link.worker)
                self._bands[link.worker] = band(link.rtt_ms, before)
        far = ",".join(
            f"{one.worker}:{self._bands.get(one.worker, 0)}" for one in links
        )
        labs = {link.worker: link.lab for link in links}
        return f"{site_of(plan, labs)} {far}".strip()

    def told(self, links: Iterable[Link]) -> str:
        """``ada and bob 2 to 8 ms, eve under 2 ms (lab +1 ms)``."""
        by_words: dict[str, list[str]] = {}
        for link in links:
            by_words.setdefault(self._words(link), []).append(link.worker)
        return ", ".join(f"{' and '.join(w)} {how}" for how, w in by_words.items())

    def _words(self, link: Link) -> str:
        """How far away it is, and what a lab adds each way."""
        known = self._bands.get(link.worker)
        away = "at an unknown distance" if known is None else band_text(known)
        return f"{away} (lab {format_lab(link.lab)})" if link.lab else away


def band(rtt_ms: float, before: int | None = None) -> int:
    """Between which edges a round trip lies; a little beyond them is where it was."""
    if before is not None:
        edges = (0.0, *RTT_EDGES_MS, float("inf"))
        if edges[before] / RTT_SLACK <= rtt_ms <= edges[before + 1] * RTT_SLACK:
            return before
    return bisect(RTT_EDGES_MS, rtt_ms)


def band_text(number: int) -> str:
    """``under 2 ms``, ``2 to 8 ms``, ``over 128 ms``."""
    if not number:
        return f"under {RTT_EDGES_MS[0]:g} ms"
    if number == len(RTT_EDGES_MS):
        return f"over {RTT_EDGES_MS[-1]:g} ms"
    return f"{RTT_EDGES_MS[number - 1]:g} to {RTT_EDGES_MS[number]:g} ms"


def _latest(pages: dict[str, T]) -> dict[str, T]:
    """Those written last."""
    return dict(list(pages.items())[-SITES_KEPT:])
