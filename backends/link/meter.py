"""One relay's counters and passes, folded into a ``Link``."""

from __future__ import annotations

from collections import deque
from itertools import islice
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from backends.link.throughput import Throughput
from backends.link.wire import NS_PER_MS, NS_PER_S, US_PER_MS, Line, PassLine
from backends.state import Link, Pass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Tokens a "per token" figure is the median of: a few seconds of generation.
WINDOW_TOKENS = 64
# Tokens the percentiles of a token's time are of: enough for a 99th one.
TAIL_TOKENS = 512
# A token whose time elsewhere is beyond both followed a pause: nobody had asked.
PAUSE_MS_MIN = 1000.0
PAUSE_FACTOR = 10.0
# Passes kept for a trace, and of these shown in a snapshot.
PASSES_KEPT = 4096
PASSES_SHOWN = 24


class LinkMeter:
    """Takes the lines of one relay and gives the link as it is now; pure.

    Behind a tunnel the kernel tells the relay the round trip to the tunnel's near end
    only, and what the tunnel takes looks like compute. ``tunnel_rtt_ms`` gives the rest
    of the way: half of it is counted as ``up``, half as ``down``.
    """

    def __init__(
        self,
        worker: str,
        tunnel_rtt_ms: Callable[[], float | None] = lambda: None,
    ) -> None:
        """Nothing has been measured yet."""
        self._tunnel_rtt_ms = tunnel_rtt_ms
        self.passes: deque[Pass] = deque(maxlen=PASSES_KEPT)
        self._link = Link(worker=worker)
        self._throughput = Throughput()

    @property
    def link(self) -> Link:
        """The newest figures."""
        return self._link

    def take(self, line: Line) -> bool:
        """Take one line; whether anything changed."""
        if line.type == "snapshot":
            self._link = self._with_counters(line)
            return True
        if line.type == "passes":
            tunnel_ms = self._tunnel_rtt_ms() or 0.0
            self.passes.extend(_pass(one, tunnel_ms) for one in line.pass_lines())
            self._link = self._with_passes()
            return True
        return False

    def take_silence(self) -> bool:
        """The relay has said nothing for a while; whether anything changed.

        It is silent when nothing moves, so the last throughput no longer holds.
        """
        before, moving = self._link, self._link.bytes_per_s_up is not None
        if moving:
            self._link = msgspec.structs.replace(
                before, bytes_per_s_up=0.0, bytes_per_s_down=0.0
            )
        return self._link != before

    def _with_counters(self, line: Line) -> Link:
        now = self._throughput.take(
            line.at_ns / NS_PER_S, line.bytes_up, line.bytes_down
        )
        up_per_s, down_per_s = now or (None, None)
        return msgspec.structs.replace(
            self._link,
            protocol=line.protocol or "",
            mode=line.mode,
            reason=line.plain_reason or line.refused_reason or "",
            refused=line.refused,
            waiting=line.waiting,
            rtt_ms=self._rtt_ms(line),
            bytes_up=line.bytes_up,
            bytes_down=line.bytes_down,
            bytes_per_s_up=up_per_s,
            bytes_per_s_down=down_per_s,
            lab=line.lab,
            commands=line.commands,
        )

    def _rtt_ms(self, line: Line) -> float | None:
        near_ms = line.rtt_us / US_PER_MS if line.rtt_us else None
        tunnel_ms = self._tunnel_rtt_ms()
        return near_ms if tunnel_ms is None else (near_ms or 0.0) + tunnel_ms

    def _with_passes(self) -> Link:
        generated = (p for p in reversed(self.passes) if p.generated)
        latest = list(islice(generated, TAIL_TOKENS))
        recent = latest[:WINDOW_TOKENS]
        times_ms = token_times_ms(latest)
        shown = list(islice(reversed(self.passes), PASSES_SHOWN))
        return msgspec.structs.replace(
            self._link,
            round_trips_per_token=_per_token(recent, lambda p: p.round_trips),
            bytes_up_per_token=_per_token(recent, lambda p: p.bytes_up),
            bytes_down_per_token=_per_token(recent, lambda p: p.bytes_down),
            head_ms_per_token=_per_token(recent, lambda p: p.head_ms),
            up_ms_per_token=_per_token(recent, lambda p: p.up_ms),
            compute_ms_per_token=_per_token(recent, lambda p: p.compute_ms),
            down_ms_per_token=_per_token(recent, lambda p: p.down_ms),
            wait_ms_per_token=_per_token(recent, lambda p: p.wait_ms),
            token_p50_ms=_percentile(times_ms, 50),
            token_p99_ms=_percentile(times_ms, 99),
            passes=tuple(reversed(shown)),
        )


def token_times_ms(tokens: Sequence[Pass]) -> list[float]:
    """Wall times of tokens, shortest first, without those that followed a pause."""
    if not tokens:
        return []
    usual_ms = median(one.wall_ms for one in tokens)
    pause_ms = max(PAUSE_MS_MIN, PAUSE_FACTOR * usual_ms)
    return sorted(one.wall_ms for one in tokens if one.head_ms <= pause_ms)


def _percentile(ascending: Sequence[float], percent: int) -> float | None:
    """The value that so many of a hundred do not exceed."""
    if not ascending:
        return None
    return ascending[min(len(ascending) * percent // 100, len(ascending) - 1)]


def _per_token(passes: Sequence[Pass], figure: Callable[[Pass], float]) -> float | None:
    """The median: the first token after a pause has the pause in its head time."""
    return float(median(figure(p) for p in passes)) if passes else None


def _pass(line: PassLine, tunnel_ms: float) -> Pass:
    compute_ms = line.compute_ns / NS_PER_MS
    on_the_way_ms = min(tunnel_ms * line.round_trips, compute_ms)
    return Pass(
        at_ms=line.last_reply_ns / NS_PER_MS,
        tokens=line.tokens,
        generated=line.generated,
        round_trips=line.round_trips,
        bytes_up=line.bytes_up,
        bytes_down=line.bytes_down,
        head_ms=line.head_ns / NS_PER_MS,
        up_ms=line.up_ns / NS_PER_MS + on_the_way_ms / 2,
        compute_ms=compute_ms - on_the_way_ms,
        down_ms=line.down_ns / NS_PER_MS + on_the_way_ms / 2,
        wait_ms=line.wait_ns / NS_PER_MS,
    )
