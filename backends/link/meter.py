"""One relay's counters and passes, folded into a ``Link``.

Tokens leave the cluster as rows of logits, one each, at the worker with the last layer.
Its relay counts them. The others' passes are the same ones, a little earlier. If no
worker has the last layer, llama-server's own counters are asked. So they are if the
head drafts tokens and throws rows away.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from statistics import fmean, median
from typing import NamedTuple

import msgspec

from backends.link.figures import least_pause_ms
from backends.link.transport import LinkRoute, TransportKind
from backends.link.wire import NS_PER_MS, NS_PER_S, Line, PairLine, PassLine
from backends.state import Generation, Link, Pass
from backends.units import US_PER_MS

PASSES_MAX = 8192
WINDOW_TOKENS = 256
"""The server's figure is of at least so many tokens, once there were as many."""
BUSY_TOKENS = 4096
"""A server that is never idle is looked at anew after so many."""


class PassShape(NamedTuple):
    batch: int
    rows: int

    @property
    def generated(self) -> bool:
        """Every token fed brought out another: that is no prompt."""
        return self.rows == self.batch


class Outcomes:
    """The passes of a cluster as the worker with the last layer saw them.

    All relays run on the head, so that their clocks are one.
    """

    def __init__(self) -> None:
        self.known = False
        """True if there is a worker that sees them."""
        self.rows = 0
        """Tokens that came out of all passes."""
        self.first_rows = 0
        """Of these, of passes that were fed a prompt: an answer's first token."""
        self.lab_since_ms = float("-inf")
        """When the lab of any link last changed."""
        self._worker = ""
        self._at_ms: list[float] = []
        self._outcomes: list[PassShape] = []

    def saw(self, worker: str, at_ms: float, outcome: PassShape) -> None:
        """Take a pass; they come in order.

        Where workers compute each layer together, all see what comes out: the first
        one's word is taken.
        """
        self.known = True
        self._worker = self._worker or worker
        if worker != self._worker:
            return
        self.rows += outcome.rows
        self.first_rows += 0 if outcome.generated else outcome.rows
        if len(self._at_ms) >= 2 * PASSES_MAX:
            del self._at_ms[:PASSES_MAX], self._outcomes[:PASSES_MAX]
        self._at_ms.append(at_ms)
        self._outcomes.append(outcome)

    def of(self, at_ms: float) -> PassShape | None:
        """Of the pass that left another worker at this moment; None: not there yet."""
        found = bisect_left(self._at_ms, at_ms)
        return self._outcomes[found] if found < len(self._outcomes) else None


class ServerCount(NamedTuple):
    """llama-server's counts, and the limits of its passes."""

    tokens: int
    """Generated so far."""
    speculative: bool = False
    """Tokens are drafted: not every row that comes out becomes a token."""
    idle: bool = True
    decode_max: int = 1
    """More tokens than so many in one pass are a prompt's."""


class Guesses:
    """Tells generated passes from prompts by their sizes alone; pure.

    For a link where nobody sees what comes out, as when the head has the last layer.
    Slots decode a token each, so their number rises only by a prompt. A pass right
    after a prompt's that is larger than the next is its remainder. A prompt of one
    token is taken for generated all the same. So is a short one (no more tokens than
    slots) that follows a generated pass as large. A draft's passes are of any size up
    to ``decode_max``. So with a draft every prompt that short counts as generated.
    """

    def __init__(self) -> None:
        self.first_tokens = 0
        """Tokens that came out of prompts: one each time generation follows one.

        Of prompts read together it is one for all.
        """
        self._decoding: int | None = None
        """Size of the last pass if it was generated, 0 for a prompt."""

    def generated(
        self, batch: int, following: int | None, server: ServerCount
    ) -> bool | None:
        """True if a pass is generated; None: not to be told without the next one.

        ``following`` is the size of the next pass, where there is one.
        """
        found = self._found(batch, following, server)
        if found is not None:
            self.first_tokens += found and self._decoding == 0
            self._decoding = batch if found else 0
        return found

    def _found(
        self, batch: int, following: int | None, server: ServerCount
    ) -> bool | None:
        if batch > server.decode_max:
            return False
        if server.speculative or batch == 1:
            return True
        if self._decoding:
            return batch <= self._decoding
        return None if following is None else batch <= following


class _Mark(NamedTuple):
    tokens: int
    passes: int


class TokensPerPass:
    """Tokens by the server's count over passes by the relay's; pure.

    Both come at moments of their own, so they are compared over a span that began when
    nothing moved. The span is long unless it ended so as well.
    """

    def __init__(self) -> None:
        self._marks: deque[_Mark] = deque()
        self._now = _Mark(0, 0)

    def read(self, tokens: int, passes: int, *, idle: bool) -> None:
        """Take both totals of generated tokens and passes; neither ever shrinks."""
        before, marks = self._now, self._marks
        self._now = now = _Mark(max(tokens, before.tokens), passes)
        still = idle and now == before and now != (marks[-1] if marks else None)
        if not marks or still or tokens - marks[-1].tokens >= BUSY_TOKENS:
            marks.append(now)
        while len(marks) > 1 and tokens - marks[1].tokens >= WINDOW_TOKENS:
            marks.popleft()

    @property
    def figure(self) -> float | None:
        if not self._marks:
            return None
        tokens = self._now.tokens - self._marks[0].tokens
        passes = self._now.passes - self._marks[0].passes
        return tokens / passes if tokens > 0 and passes > 0 else None


# Passes a figure per pass is of: a few seconds of generation.
WINDOW_PASSES = 64
# Passes the percentiles of a pass's time are of: enough for a 99th one.
TAIL_PASSES = 512
# Passes kept for a trace, and of these shown in a snapshot.
PASSES_KEPT = 4096
PASSES_SHOWN = 24
# Passes that wait for the last layer's relay to say what came out of them.
WAITING_MAX = 512
# Of a round trip in milliseconds: the relay tells whole microseconds.
RTT_DIGITS = 3
# Of a head's relay without another one beside the worker.
ALONE = PairLine(wire_bytes_up=None, wire_bytes_down=None)


class LinkMeter:
    """Takes the lines of one relay and gives the link as it is now; pure.

    Behind a tunnel the kernel knows the round trip to the tunnel's near end only. The
    time in the tunnel looks like compute. ``tunnel_rtt_ms`` gives the rest
    of the way: half of it is counted as ``up``, half as ``down``.

    What came out of a pass is known to the relay before the last layer alone; the
    meters of a cluster share it as ``outcomes``. If no worker has that layer, passes
    are told by their sizes (see ``Guesses`` for the mistakes of that). All tokens made
    are then the ones that llama-server counts.
    """

    def __init__(
        self,
        worker: str,
        tunnel_rtt_ms: Callable[[], float | None] = lambda: None,
        outcomes: Outcomes | None = None,
        why: str = "",
        route: Callable[[], LinkRoute] = LinkRoute,
    ) -> None:
        self._route = route
        self._tunnel_rtt_ms = tunnel_rtt_ms
        self._outcomes = Outcomes() if outcomes is None else outcomes
        self.passes: deque[Pass] = deque(maxlen=PASSES_KEPT)
        self._waiting: deque[tuple[Pass, PassShape | None]] = deque()
        self._link = Link(worker=worker, why=why)
        self._lab_known = False
        self._shown_since_ms = float("-inf")
        self._throughput = Throughput()
        self._generated = 0
        self._trips = 0
        self._guesses = Guesses()
        self._server = ServerCount(0)
        self._server_first: int | None = None
        self._server_ratio = TokensPerPass()

    @property
    def link(self) -> Link:
        return self._link

    def take(self, line: Line) -> bool:
        """Take one line; whether anything changed."""
        if line.type == "snapshot":
            self._outcomes.known |= line.rows is not None
            if self._lab_known and line.lab != self._link.lab:
                known_ms = self._outcomes.lab_since_ms
                self._outcomes.lab_since_ms = max(known_ms, line.at_ns / NS_PER_MS)
            self._lab_known = True
            self._link = self._with_counters(line)
            self.judge()
            return True
        if line.type == "passes":
            paired = self._link.mode == "pair"
            tunnel_ms = 0.0 if paired else self._tunnel_rtt_ms() or 0.0
            for one in line.pass_lines():
                self._await(_pass(one, tunnel_ms), one.rows)
            self.judge()
            return True
        return False

    def _await(self, one: Pass, rows: int | None) -> None:
        own = None if rows is None else PassShape(one.batch, rows)
        self._waiting.append((one, own))
        if own is not None:
            self._outcomes.saw(self._link.worker, one.at_ms, own)

    def judge(self) -> bool:
        """Tell generated passes from prompts, as far as it is known yet.

        Call it when any meter of the cluster took a line. Whether anything changed.
        """
        judged = 0
        while self._waiting:
            one = self._judged(*self._waiting[0])
            if one is None:
                break
            self._waiting.popleft()
            self.passes.append(one)
            self._generated += one.generated
            self._trips += one.round_trips if one.generated else 0
            judged += 1
        changed = bool(judged) or self._shown_since_ms != self._outcomes.lab_since_ms
        if changed:
            self._link = self._with_passes()
        return changed

    def _judged(self, one: Pass, own: PassShape | None) -> Pass | None:
        """None while the last layer's relay, or the next pass, may still tell."""
        outcome = own or self._outcomes.of(one.at_ms)
        if outcome is not None:
            return msgspec.structs.replace(
                one, tokens=outcome.rows, generated=outcome.generated
            )
        if self._outcomes.known and len(self._waiting) <= WAITING_MAX:
            return None
        following = self._waiting[1][0].batch if len(self._waiting) > 1 else None
        generated = self._guesses.generated(one.batch, following, self._server)
        if generated is None:
            return None
        return msgspec.structs.replace(
            one, tokens=one.batch if generated else 0, generated=generated
        )

    def read_server(self, server: ServerCount) -> bool:
        """Take what llama-server counts; whether anything changed."""
        self._server = server
        if self._server_first is None:
            self._server_first = server.tokens
        seen = self._outcomes if self._outcomes.known else None
        first = seen.first_rows if seen else self._guesses.first_tokens
        later = server.tokens - first
        self._server_ratio.read(later, self._generated, idle=server.idle)
        before, self._link = self._link, self._with_passes()
        return self._link != before

    def take_silence(self) -> bool:
        """The relay has said nothing for a while; whether anything changed.

        A relay is silent while nothing moves: the last throughput no longer holds, and
        no request waits for its answer, for it would keep telling of one.
        """
        before, moving = self._link, self._link.bytes_per_s_up is not None
        if before.unanswered_ms is not None:
            self._link = msgspec.structs.replace(self._link, unanswered_ms=None)
        if moving:
            self._link = msgspec.structs.replace(
                self._link, bytes_per_s_up=0.0, bytes_per_s_down=0.0
            )
        return self._link != before

    def _with_counters(self, line: Line) -> Link:
        now = self._throughput.take(
            line.at_ns / NS_PER_S, line.bytes_up, line.bytes_down
        )
        up_per_s, down_per_s = now or (None, None)
        pair = line.pair or ALONE
        route = self._route()
        way, way_reason = _way(line.pair, route)
        return msgspec.structs.replace(
            self._link,
            protocol=line.protocol or "",
            mode="pair" if line.pair and line.mode == "metered" else line.mode,
            way=way,
            way_reason=way_reason,
            reason=_reason(line, route.trouble),
            refused=line.refused,
            waiting=line.waiting,
            unanswered_ms=line.unanswered_ms,
            rtt_ms=self._rtt_ms(line),
            bytes_up=line.bytes_up,
            bytes_down=line.bytes_down,
            wire_bytes_up=pair.wire_bytes_up,
            wire_bytes_down=pair.wire_bytes_down,
            overhead_bytes_up=pair.overhead_bytes_up,
            overhead_bytes_down=pair.overhead_bytes_down,
            weight_bytes_home=pair.weight_bytes_home,
            weight_bytes_sent=pair.weight_bytes_sent,
            tensors_differ=pair.tensors_differ,
            tensors_missing=pair.tensors_missing,
            reconnects=pair.reconnects,
            pause_ms=pair.pause_ms,
            bytes_per_s_up=up_per_s,
            bytes_per_s_down=down_per_s,
            lab=line.lab,
            commands=line.commands,
        )

    def _rtt_ms(self, line: Line) -> float | None:
        lab_ms = 2 * line.lab.latency_ms if line.lab else 0.0
        near_ms = max(round(line.rtt_us / US_PER_MS - lab_ms, RTT_DIGITS), 0.0)
        # The pings of a pair have been through the tunnel.
        tunnel_ms = None if line.pair else self._tunnel_rtt_ms()
        return near_ms or None if tunnel_ms is None else near_ms + tunnel_ms

    def _with_passes(self) -> Link:
        """The link with its figures; times are of passes under the present lab alone.

        The head's time has the other links' in it, so a lab on any of them counts.
        """
        self._shown_since_ms = since_ms = self._outcomes.lab_since_ms
        generated = (p for p in reversed(self.passes) if p.generated)
        latest = list(islice(generated, TAIL_PASSES))
        made = self._generation(latest[:WINDOW_PASSES])
        tokens = made.tokens_per_pass
        latest = [p for p in latest if p.began_ms >= since_ms]
        recent = latest[:WINDOW_PASSES]
        present = (p for p in reversed(self.passes) if p.began_ms >= since_ms)
        shown = list(islice(present, PASSES_SHOWN))

        def median_ms(part: Callable[[Pass], float]) -> float | None:
            """A median: the pass after a pause has the pause in its head time."""
            return _share(float(median(map(part, recent))), tokens) if recent else None

        return msgspec.structs.replace(
            self._link,
            round_trips_per_token=_share(made.trips_per_pass, tokens),
            bytes_up_per_token=_share(made.bytes_up_per_pass, tokens),
            bytes_down_per_token=_share(made.bytes_down_per_pass, tokens),
            head_ms_per_token=median_ms(lambda p: p.head_ms),
            up_ms_per_token=median_ms(lambda p: p.up_ms),
            compute_ms_per_token=median_ms(lambda p: p.compute_ms),
            down_ms_per_token=median_ms(lambda p: p.down_ms),
            wait_ms_per_token=median_ms(lambda p: p.wait_ms),
            pass_p50_ms=_percentile(pass_times_ms(recent), 50),
            pass_p99_ms=_percentile(pass_times_ms(latest), 99),
            generation=made,
            passes=tuple(reversed(shown)),
        )

    def _generation(self, recent: Sequence[Pass]) -> Generation:
        by_wire = self._outcomes.known and not self._server.speculative
        counted = self._server.tokens - (self._server_first or 0)
        by_passes = by_wire or not (
            self._server.speculative or self._server_first is None
        )
        ratio = _mean(recent, lambda p: p.tokens)
        return Generation(
            passes=self._generated,
            tokens=self._outcomes.rows if by_wire else counted,
            trips=self._trips,
            tokens_from="wire" if by_wire else "server",
            tokens_per_pass=ratio if by_passes else self._server_ratio.figure,
            trips_per_pass=_mean(recent, lambda p: p.round_trips),
            bytes_up_per_pass=_mean(recent, lambda p: p.bytes_up),
            bytes_down_per_pass=_mean(recent, lambda p: p.bytes_down),
        )


def _reason(line: Line, trouble: str) -> str:
    is_down = line.pair is not None and not line.pair.up
    broken = trouble or (line.pair.reason if line.pair else "") if is_down else ""
    return broken or line.plain_reason or line.refused_reason or ""


def _way(pair: PairLine | None, route: LinkRoute) -> tuple[str, str]:
    kind = "" if route.kind is None else route.kind.value
    if route.kind is not TransportKind.TUNNEL or pair is None:
        return kind, ""
    if not pair.up:
        return "", ""
    if route.direct and pair.place == route.direct:
        return TransportKind.DIRECT.value, ""
    return kind, pair.detour or route.why


def pass_times_ms(passes: Sequence[Pass]) -> list[float]:
    """Wall times of passes, shortest first, without those that followed a pause."""
    pause_ms = least_pause_ms(passes)
    return sorted(one.wall_ms for one in passes if one.head_ms <= pause_ms)


def _percentile(ascending: Sequence[float], percent: int) -> float | None:
    if not ascending:
        return None
    return ascending[min(len(ascending) * percent // 100, len(ascending) - 1)]


def _mean(passes: Sequence[Pass], figure: Callable[[Pass], float]) -> float | None:
    return fmean(map(figure, passes)) if passes else None


def _share(figure: float | None, tokens: float | None) -> float | None:
    return figure / tokens if figure is not None and tokens else None


def _pass(line: PassLine, tunnel_ms: float) -> Pass:
    compute_ms = line.compute_ns / NS_PER_MS
    on_the_way_ms = min(tunnel_ms * line.round_trips, compute_ms)
    return Pass(
        at_ms=line.last_reply_ns / NS_PER_MS,
        batch=line.batch,
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


WINDOW_S = 1.0
"""The mean over so long: two ticks of traffic do not flicker."""
TICK_S = 0.25
"""Between two reports of a relay through which something moves."""


class _Totals(NamedTuple):
    at_s: float
    up: int
    down: int


class Throughput:
    """Bytes per second each way over the last second; pure."""

    def __init__(self) -> None:
        self._seen: deque[_Totals] = deque()

    def take(self, at_s: float, up: int, down: int) -> tuple[float, float] | None:
        """Take the totals of a moment; None while there is nothing to compare with."""
        now = _Totals(at_s, up, down)
        last = self._seen[-1] if self._seen else now
        if at_s < last.at_s or up < last.up or down < last.down:
            self._seen.clear()
        elif at_s - last.at_s > WINDOW_S:
            # A silence does not count.
            self._seen.clear()
            self._seen.append(_Totals(at_s - TICK_S, last.up, last.down))
        self._seen.append(now)
        while len(self._seen) > 2 and self._seen[1].at_s <= at_s - WINDOW_S:
            self._seen.popleft()
        first = self._seen[0]
        elapsed_s = at_s - first.at_s
        if elapsed_s <= 0:
            return None
        return (up - first.up) / elapsed_s, (down - first.down) / elapsed_s
