"""Numbers as people read them: one formatter for each quantity, here or nowhere."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable
from itertools import groupby

from backends.state import Lab

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
US_PER_MS = 1000.0
MS_PER_S = 1000.0


def three_figures(value: float) -> str:
    """``9.80``, ``12.3``, ``120``: the decimals that still say something."""
    if value < 9.995:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def grouped(count: int) -> str:
    return f"{count:,}".replace(",", " ")


def format_count(count: int, noun: str) -> str:
    return f"{grouped(count)} {noun}{'' if count == 1 else 's'}"


def format_mean(count: float, noun: str = "") -> str:
    """``0.4 trips``, ``1 trip``, ``2.3``: a count on the average, to one decimal."""
    figure = f"{count:.1f}".removesuffix(".0")
    ending = "" if figure == "1" else "s"
    return f"{figure} {noun}{ending}" if noun else figure


def format_bytes(n_bytes: float) -> str:
    """``16.9 GiB``; three significant figures, binary units."""
    value = float(n_bytes)
    for unit in _BINARY:
        if abs(value) < 1000 or unit == _BINARY[-1]:
            break
        value /= 1024
    if unit == "B":
        return f"{value:.0f} B"
    return f"{value:.1f} {unit}" if abs(value) < 100 else f"{value:.0f} {unit}"


def format_ranges(numbers: Iterable[int]) -> str:
    """``0–3, 8, 10–11`` for ascending numbers."""
    runs = []
    for _, one in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        members = [number for _, number in one]
        few = members[0] == members[-1]
        runs.append(f"{members[0]}" if few else f"{members[0]}–{members[-1]}")
    return ", ".join(runs)


def format_ms(value_ms: float) -> str:
    """``0.8 µs``, ``42 µs``, ``9.80 ms``, ``1.20 s``, in at most seven cells."""
    if value_ms < 0.00995:
        return f"{value_ms * US_PER_MS:.1f} µs"
    if value_ms < 0.9995:
        return f"{value_ms * US_PER_MS:.0f} µs"
    if value_ms < 999.5:
        return f"{three_figures(value_ms)} ms"
    return f"{three_figures(value_ms / MS_PER_S)} s"


def format_seconds(seconds: float) -> str:
    """``0.88 s``, ``12.3 s``, ``4 m 05 s``, ``3 h 12 m``: how long something took."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    return _minutes(round(seconds))


def format_age(seconds: float) -> str:
    """``75 s``, ``4 m 05 s``, ``3 h 12 m``: how long ago, counted in whole seconds."""
    return f"{seconds:.0f} s" if seconds < 99.5 else _minutes(round(seconds))


def _minutes(seconds: int) -> str:
    minutes, rest = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes} m {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} m"


def format_offset(seconds: float) -> str:
    """``+0.1 s``, ``−75.0 s``: how far a clock is ahead of ours."""
    return f"{seconds:+.1f} s".replace("-", "−")


def format_rate(tok_per_s: float | None) -> str:
    """Tokens per second in five columns: `` 21.3``, ``  —  `` when unknown."""
    if tok_per_s is None:
        return "  —  "
    return f"{tok_per_s:5.1f}" if tok_per_s < 999.95 else f"{tok_per_s:5.0f}"


def format_speed(tok_per_s: float) -> str:
    """``21.3 tok/s``, in a sentence."""
    return f"{format_rate(tok_per_s).strip()} tok/s"


def format_gain(tok_per_s: float) -> str:
    """``+3.1``, ``−0.4``: tokens per second more or fewer."""
    return f"{tok_per_s:+.1f}".replace("-", "−")


def format_mb_s(mb_per_s: float) -> str:
    """``0.42 MB/s``, ``118 MB/s``: what a link carries, a million bytes each."""
    return f"{three_figures(mb_per_s)} MB/s"


def format_percent(fraction: float) -> str:
    """``43 %`` of 0.43."""
    return f"{fraction * 100:.0f} %"


def format_celsius(degrees: float) -> str:
    """``71 °C``."""
    return f"{degrees:.0f} °C"


def format_difference(fraction: float) -> str:
    """``+12 %``, ``−3 %``: how far one figure is from another."""
    return f"{round(fraction * 100):+d} %".replace("-", "−")


def format_factor(times: float) -> str:
    """``×1.52``: times as fast."""
    return f"×{times:.2f}"


def format_lab(lab: Lab) -> str:
    """``+20 ± 2 ms, 6 MB/s``, each way: what was asked of a relay, as it was asked."""
    jitter = f" ± {lab.jitter_ms:g}" if lab.jitter_ms else ""
    delay = f"+{lab.latency_ms:g}{jitter} ms" if lab.latency_ms or jitter else ""
    rate = f"{lab.rate_mb_s:g} MB/s" if lab.rate_mb_s else ""
    return ", ".join(filter(None, (delay, rate)))


RATE_AFTER_S = 0.5
"""A rate over less time says little."""


class Transfer:
    """Puts a transfer in words; what came since the first ones tells the rate."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first: tuple[float, int] | None = None

    def text(self, done_bytes: int, size_bytes: int) -> str:
        """``43 % of 94 MiB · 12.1 MB/s · 5.2 s left``."""
        now_s = self._clock()
        since_s, before_bytes = self._first = self._first or (now_s, done_bytes)
        elapsed_s, came_bytes = now_s - since_s, done_bytes - before_bytes
        share = format_percent(done_bytes / size_bytes)
        parts = [f"{share} of {format_bytes(size_bytes)}"]
        if came_bytes > 0 and elapsed_s >= RATE_AFTER_S:
            rate = came_bytes / elapsed_s
            left_s = (size_bytes - done_bytes) / rate
            parts += [format_mb_s(rate / 1e6), f"{format_seconds(left_s)} left"]
        return " · ".join(parts)


def format_signal(number: int) -> str:
    """``SIGKILL``, or ``signal 40`` of one that has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def format_digits(digits: str) -> str:
    """``123 456``, which people compare by halves."""
    return f"{digits[:3]} {digits[3:]}"
