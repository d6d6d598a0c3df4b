"""Numbers as people read them: bytes, rates, times, each of constant width."""

from __future__ import annotations

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


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


def format_seconds(seconds: float) -> str:
    """``0.88 s``, ``12.3 s``, ``4 m 05 s``, ``3 h 12 m``."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} m {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} m"


def format_rate(tok_per_s: float | None) -> str:
    """Tokens per second in five columns: `` 21.3``, ``  —  `` when unknown."""
    if tok_per_s is None:
        return "  —  "
    return f"{tok_per_s:5.1f}" if tok_per_s < 1000 else f"{tok_per_s:5.0f}"
