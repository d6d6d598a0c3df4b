"""Quantities as text: one formatter for each, most of constant width."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from msgspec.structs import replace

from backends.link.figures import TokenTotals
from backends.state import Acceptance, Link, Speed
from backends.units import (
    MS_PER_S,
    US_PER_MS,
    format_age,
    format_bytes,
    format_count,
    format_mb_s,
    format_ms,
    format_percent,
    grouped,
    three_figures,
)

UNKNOWN = "—"
SAME_SHARE = 0.02
"""A pass of so nearly one token is one token's."""
PERCENT_MAX = 1.5
"""Of larger shares the factor says more."""
TEN = 9.95
BYTES_PER_MB = 1e6
_CARRIED = (
    *("bytes_up", "bytes_down", "wire_bytes_up", "wire_bytes_down"),
    *("weight_bytes_home", "weight_bytes_sent", "tensors_differ"),
)
_UNITS = (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024))


def count_cell(count: int) -> str:
    """A count in at most seven cells: ``20 000``, ``12.3 M``."""
    if count < 1_000_000:
        return grouped(count)
    return f"{count / 1e6:.1f} M" if count < 1e9 else f"{count / 1e9:.1f} G"


def cores_text(cores: float | None) -> str:
    """``1.8``: processor cores at work."""
    return UNKNOWN if cores is None else f"{cores:.1f}"


def short_count(count: int, least: int) -> str:
    """``4096``, ``128k``: tokens by the thousand (1024) from ``least`` on."""
    return f"{count}" if count < least else f"{count // 1024}k"


def tick_text(value: float) -> str:
    """``20``, ``0.5``: a round number of an axis or a scale."""
    return f"{value:g}"


def common_unit(largest_bytes: float) -> str:
    """The unit in which the largest of some figures has a digit before the point."""
    return next((name for name, size in _UNITS if largest_bytes >= size / 2), "KiB")


def unit_bytes(unit: str) -> int:
    return dict(_UNITS)[unit]


def bytes_text(n_bytes: float | None) -> str:
    """``16.9 GiB``, or that it is unknown."""
    return UNKNOWN if n_bytes is None else format_bytes(n_bytes)


def in_unit(n_bytes: float, unit: str) -> str:
    """``13.9``: one decimal below a hundred, none above."""
    value = n_bytes / unit_bytes(unit)
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def rounded(n_bytes: float) -> tuple[str, str]:
    """``("31", "MiB")``: two figures and the unit, for narrow places."""
    unit = common_unit(n_bytes)
    value = n_bytes / unit_bytes(unit)
    return (f"{value:.1f}" if value < TEN else f"{value:.0f}"), unit


def short_part_of(part: float, whole: float) -> str:
    """``9.7/55 GiB``, ``31 MiB/11 GiB``."""
    (some, unit), (every, whole_unit) = rounded(part), rounded(whole)
    if not part:
        return f"0/{every} {whole_unit}"
    own = "" if unit == whole_unit else f" {unit}"
    return f"{some}{own}/{every} {whole_unit}"


def part_of(part: float, whole: float) -> str:
    """``15.0 of 55.0 GiB``, or ``36.1 MiB of 11.0 GiB`` where the units differ."""
    whole_unit = common_unit(whole)
    unit = common_unit(part) if part else whole_unit
    own = "" if unit == whole_unit else f" {unit}"
    return f"{in_unit(part, unit)}{own} of {in_unit(whole, whole_unit)} {whole_unit}"


def ratio_text(part: float, whole: float) -> str:
    """``12%`` of it, ``<1%``, ``×1.3`` where it is more; empty of nothing."""
    if not whole:
        return ""
    share = part / whole
    if share > PERCENT_MAX:
        return f"×{share:.1f}" if share < TEN else f"×{share:.0f}"
    return "<1%" if 0 < share < 1 / 100 else f"{share:.0%}"


def ms_text(value_ms: float | None) -> str:
    """Milliseconds in six cells: ``  9.80``, `` 123.4``, ``  2345``, `` 12.3s``."""
    if value_ms is None:
        return "     —"
    if value_ms < 9.995:
        return f"{value_ms:6.2f}"
    if value_ms < 999.95:
        return f"{value_ms:6.1f}"
    if value_ms < 9999.5:
        return f"{value_ms:6.0f}"
    return f"{value_ms / 1000:5.1f}s" if value_ms < 999_950 else "  long"


def silence_text(link: Link) -> str:
    """``silent 12 s``: how long nothing has come for a request; empty: it has."""
    if link.unanswered_ms is None:
        return ""
    return f"silent {format_age(link.unanswered_ms / MS_PER_S)}"


def rtt_text(rtt_ms: float | None) -> str:
    """``3.10 ms``, ``42 µs``, or that it is unknown."""
    return UNKNOWN if rtt_ms is None else format_ms(rtt_ms)


def weights_text(link: Link) -> str:
    """``1.1 GiB of weights home, 3.2 MiB sent``; empty where a link cannot tell."""
    home, sent = link.weight_bytes_home, link.weight_bytes_sent
    if home is None or sent is None:
        return ""
    differ = f" ({link.tensors_differ} tensors differ)" if link.tensors_differ else ""
    return f"{format_bytes(home)} of weights home, {format_bytes(sent)} sent{differ}"


def crossed_text(link: Link) -> str:
    """``crossed ↑ 1.2 of 9.8 MiB ↓ 3.1 of 3.0 MiB``; empty without a pair."""
    up, down = wire_up_text(link), wire_down_text(link)
    return f"crossed ↑ {up} ↓ {down}" if up else ""


def way_text(link: Link) -> str:
    """``direct, 0.31 ms``, ``tunnel, 1.20 ms (why)``; empty while it is not known."""
    if not link.way:
        return ""
    rtt = "" if link.rtt_ms is None else f", {link.rtt_ms:.2f} ms"
    why = f" ({link.way_reason})" if link.way_reason else ""
    return f"{link.way}{rtt}{why}"


def pairs_text(links: Sequence[Link]) -> str:
    """``2 pairs · 1.1 GiB of weights home, …``, all added up; empty without any."""
    paired = [link for link in links if link.wire_bytes_up is not None]
    if not paired:
        return ""
    whole = reduce(_together, paired)
    pairs = format_count(len(paired), "pair")
    parts = (pairs, weights_text(whole), crossed_text(whole))
    return " · ".join(filter(None, parts))


def _together(one: Link, other: Link) -> Link:
    parts = {field: (getattr(one, field), getattr(other, field)) for field in _CARRIED}
    sums = {field: None if None in two else sum(two) for field, two in parts.items()}
    return replace(one, **sums)


def wire_up_text(link: Link) -> str:
    """``1.2 of 9.8 MiB``: what crossed of what was said; empty without a pair."""
    crossed = link.wire_bytes_up
    return "" if crossed is None else part_of(crossed, link.bytes_up)


def wire_down_text(link: Link) -> str:
    """The same of the worker's replies."""
    crossed = link.wire_bytes_down
    return "" if crossed is None else part_of(crossed, link.bytes_down)


def rate_text(link: Link, *, each_way: bool = False, unit: str = " MB/s") -> str:
    """``0.42 MB/s``, or ``↑0.25 ↓0.17 MB/s``; bytes per second now."""
    up, down = link.bytes_per_s_up, link.bytes_per_s_down
    if up is None or down is None:
        return UNKNOWN
    sent, came, both = (three_figures(n / BYTES_PER_MB) for n in (up, down, up + down))
    return f"↑{sent} ↓{came}{unit}" if each_way else f"{both}{unit}"


def megabytes_text(bytes_per_s: float | None) -> str:
    """``0.42 MB/s`` in at most nine cells."""
    return UNKNOWN if bytes_per_s is None else format_mb_s(bytes_per_s / BYTES_PER_MB)


def us_text(value_us: float | None) -> str:
    """``38 µs``, ``9.80 ms``, ``1.20 s``, or that it is unknown."""
    return UNKNOWN if value_us is None else format_ms(value_us / US_PER_MS)


def newest_rate(speed: Speed) -> float | None:
    """Tokens per second now, else of the last answer."""
    return speed.last_tok_per_s if speed.tok_per_s is None else speed.tok_per_s


def shares_passes(tokens_per_pass: float | None) -> bool:
    """True if figures per token and per pass differ enough to show both."""
    return tokens_per_pass is not None and abs(tokens_per_pass - 1) >= SAME_SHARE


def shared_text(tokens_per_pass: float | None) -> str:
    """``2.8 tok/pass``; empty where a pass makes one."""
    shared = shares_passes(tokens_per_pass)
    return f"{tokens_per_pass:.1f} tok/pass" if shared else ""


def acceptance_text(acceptance: Acceptance | None) -> str:
    """``71 % of the draft accepted``; empty before anything was drafted."""
    rate = acceptance.rate if acceptance else None
    return "" if rate is None else f"{format_percent(rate)} of the draft accepted"


def trips_text(link: Link) -> str:
    """Round trips per token, and per pass where several tokens share one."""
    per_token, made = link.round_trips_per_token, link.generation
    return trips_of(per_token, made.trips_per_pass, made.tokens_per_pass)


def pass_trips_text(link: Link) -> str:
    trips = link.generation.trips_per_pass
    return UNKNOWN if trips is None else f"{trips:.1f}"


def trips_of(
    per_token: float | None, per_pass: float | None, tokens_per_pass: float | None
) -> str:
    """``2.0``, or ``0.50, 2.0/pass`` where a pass brings several tokens."""
    if per_token is None:
        return UNKNOWN
    if per_pass is None or not shares_passes(tokens_per_pass):
        return f"{per_token:.1f}"
    return f"{per_token:.2f}, {per_pass:.1f}/pass"


def totals_trips_text(totals: TokenTotals) -> str:
    """The same of all links together."""
    per_token, n_tokens = totals.round_trips, totals.tokens_per_pass
    return trips_of(per_token, (per_token or 0.0) * (n_tokens or 0.0), n_tokens)


def power_text(power_mw: int, limit_mw: int | None) -> str:
    """``71/350 W``."""
    limit = f"/{limit_mw / 1000:.0f}" if limit_mw else ""
    return f"{power_mw / 1000:.0f}{limit} W"


def clock_text(clock_mhz: int) -> str:
    return f"{clock_mhz / 1000:.2f} GHz"
