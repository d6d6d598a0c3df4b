"""The predicted speed of a plan in words, for the width there is."""

from __future__ import annotations

from backends.split.cost import band_text
from backends.state import ClusterSnapshot, Forecast, SpeedSource
from backends.units import (
    format_bytes,
    format_count,
    format_difference,
    format_seconds,
    format_speed,
)
from tui.model.edit import Edit, runs_now, same_plan
from tui.model.facts import is_off

SOURCES = {
    SpeedSource.PRIOR: "usual speeds",
    SpeedSource.GIVEN: "the cluster file",
    SpeedSource.MEASURED: "measured runs",
}


def first_token_text(told: Forecast) -> str:
    prompt = format_count(told.prompt_tokens, "token")
    return f"first token ~{format_seconds(told.first_token_s)} after {prompt}"


def crossing_text(told: Forecast) -> str:
    trips = format_count(round(told.trips_per_token), "trip")
    return f"~{trips}, {format_bytes(told.bytes_per_token)} a token"


def speed_texts(edit: Edit, snapshot: ClusterSnapshot | None) -> tuple[str, ...]:
    """The prediction, the longest text first; beside the last answer's of this plan."""
    told = edit.forecast
    if told is None:
        return ()
    speed = f"predicted {band_text(told)}"
    if edit.plan.speculation is not None:
        speed += " without the draft"
    elif measured := _measured(edit, snapshot):
        off = format_difference(measured / told.tok_per_s - 1)
        speed += f" · measured {format_speed(measured)} ({off})"
    first = f"{speed} · {first_token_text(told)}"
    crossing = f"{first} · {crossing_text(told)}"
    whole = f"{crossing} · from {SOURCES[told.source]}"
    return whole, crossing, first, speed, band_text(told)


def _measured(edit: Edit, snapshot: ClusterSnapshot | None) -> float | None:
    # Of the last answer, if this plan gave it over the network as it is.
    running = runs_now(snapshot)
    if snapshot is None or running is None or not same_plan(running, edit.plan):
        return None
    plain = all(is_off(link.lab) for link in snapshot.links)
    return snapshot.speed.last_tok_per_s if plain else None
