"""What crosses the wire between llama-server and one worker, as its relay measured."""

from __future__ import annotations

from backends.state.base import Value


class Lab(Value, frozen=True, kw_only=True):
    """A worse network than there is, put on one link; each way alike."""

    latency_ms: float = 0.0
    """Added one-way latency."""
    jitter_ms: float = 0.0
    """Standard deviation of the added latency."""
    rate_mb_s: float = 0.0
    """Bandwidth in 10⁶ bytes per second; 0 leaves it as it is."""
    seed: int = 1


class LinkCommand(Value, frozen=True, kw_only=True):
    """One RPC command on one link; times are request sent to reply received."""

    count: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    answered: int = 0
    """Of ``count``: by the relay, without asking the worker."""
    errors: int = 0
    p50_us: float | None = None
    p99_us: float | None = None
    max_us: float | None = None
    histogram_us: tuple[tuple[float, int], ...] = ()
    """Buckets that are not empty: the longest time of each, and how many took it."""


class Pass(Value, frozen=True, kw_only=True):
    """One forward pass through one worker; the five parts add up to its wall time."""

    at_ms: float
    """When its reply had come, on the relay's own monotonic clock."""
    tokens: int = 1
    generated: bool = True
    """Whether it made a token; a prompt batch does not."""
    round_trips: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    head_ms: float = 0.0
    """Spent outside this worker since its last pass: the head and other workers."""
    up_ms: float = 0.0
    compute_ms: float = 0.0
    down_ms: float = 0.0
    wait_ms: float = 0.0

    @property
    def wall_ms(self) -> float:
        """From the reply before to its own."""
        own = self.up_ms + self.compute_ms + self.down_ms + self.wait_ms
        return self.head_ms + own


class Link(Value, frozen=True, kw_only=True):
    """The way to one worker. Figures per token are medians of the latest."""

    worker: str
    protocol: str = ""
    """``major.minor.patch`` from the HELLO reply; empty before it."""
    mode: str = "metered"
    """``metered``, or ``plain`` where the stream is not understood."""
    reason: str = ""
    """Why it is plain, or what the guard refused last."""
    refused: int = 0
    waiting: tuple[str, ...] = ()
    """Further clients that wait for their turn."""
    rtt_ms: float | None = None
    """The link's own round trip, from the kernel."""
    bytes_up: int = 0
    bytes_down: int = 0
    bytes_per_s_up: float | None = None
    bytes_per_s_down: float | None = None
    """Now: the mean over about a second."""
    round_trips_per_token: float | None = None
    bytes_up_per_token: float | None = None
    bytes_down_per_token: float | None = None
    head_ms_per_token: float | None = None
    up_ms_per_token: float | None = None
    compute_ms_per_token: float | None = None
    down_ms_per_token: float | None = None
    wait_ms_per_token: float | None = None
    token_p50_ms: float | None = None
    token_p99_ms: float | None = None
    """Wall time of a token, of the latest few hundred; pauses are no tokens."""
    lab: Lab | None = None
    commands: dict[str, LinkCommand] = {}
    passes: tuple[Pass, ...] = ()
    """The latest few, oldest first."""
