"""Links as relays report them after a while of serving."""

from __future__ import annotations

from math import exp, log

import msgspec

from backends.state import Link, LinkCommand, Pass


def passes(compute_ms: float, link_ms: float, count: int = 20) -> tuple[Pass, ...]:
    """A prompt, then tokens that take about so long."""
    prompt = Pass(at_ms=0, tokens=512, generated=False, head_ms=4000, compute_ms=900)
    tokens = tuple(
        Pass(
            at_ms=100.0 + n * 46,
            round_trips=1,
            head_ms=32.0 - compute_ms / 4 + n * 7 % 5,
            up_ms=link_ms + n % 3 / 10,
            compute_ms=compute_ms + n * 13 % 7 / 4,
            down_ms=link_ms * 0.9,
            wait_ms=0.4 + n % 2 / 5,
        )
        for n in range(count)
    )
    return (prompt, *tokens)


def buckets(count: int, middle_us: float) -> tuple[tuple[float, int], ...]:
    """A relay's histogram of times around a middle, with a few stragglers."""
    uppers = sorted(_upper_us(middle_us * 1000 * 2 ** (n / 8)) for n in range(-6, 7))
    hill = [
        (us, exp(-((log(us / middle_us) * 6) ** 2))) for us in dict.fromkeys(uppers)
    ]
    total = sum(share for _, share in hill)
    found = [(us, round(count * share / total)) for us, share in hill]
    stragglers = (_upper_us(middle_us * 2_600), count // 300 + 1)
    return tuple(pair for pair in (*found, stragglers) if pair[1])


def _upper_us(value_ns: float) -> float:
    octave = int(value_ns).bit_length() - 4
    return (((int(value_ns) >> octave) + 1) << octave) / 1000 - 0.001


def commands(count: int, us: float, megabytes: int) -> dict[str, LinkCommand]:
    return {
        "GRAPH_COMPUTE": LinkCommand(
            count=2 * count // 3, bytes_up=count * 9_000, bytes_down=0
        ),
        "GRAPH_RECOMPUTE": LinkCommand(count=count, bytes_up=count * 16),
        "SET_TENSOR": LinkCommand(
            count=count * 3, bytes_up=megabytes * 1024**2, p50_us=38, p99_us=410.2
        ),
        "GET_TENSOR": LinkCommand(
            count=count,
            bytes_up=count * 300,
            bytes_down=count * 8192,
            p50_us=us,
            p99_us=us * 1.4,
            max_us=us * 2.6,
            histogram_us=buckets(count, us),
        ),
        "GET_ALIGNMENT": LinkCommand(
            count=14, answered=13, bytes_up=9, bytes_down=8, p50_us=0.8, p99_us=420
        ),
    }


def link(name: str, compute_ms: float, rtt_ms: float, **facts: object) -> Link:
    """A link on which tokens were made."""
    tokens = passes(compute_ms, rtt_ms / 2)
    made = Link(
        worker=name,
        protocol="8.0.0",
        rtt_ms=rtt_ms,
        bytes_up=3_000_000_000,
        bytes_down=70_000_000,
        bytes_per_s_up=12_186.0 * 21.3,
        bytes_per_s_down=8_396.0 * 21.3,
        round_trips_per_token=1.0,
        bytes_up_per_token=12_186.0,
        bytes_down_per_token=8_396.0,
        head_ms_per_token=46.0 - compute_ms - rtt_ms - 0.5,
        up_ms_per_token=rtt_ms / 2 + 0.1,
        compute_ms_per_token=compute_ms,
        down_ms_per_token=rtt_ms / 2,
        wait_ms_per_token=0.4,
        pass_p50_ms=46.0,
        pass_p99_ms=61.2,
        commands=commands(4127, compute_ms * 1000, 2863),
        passes=tokens,
    )
    return msgspec.structs.replace(made, **facts)


MINI = link("mini", 9.8, 3.1)
BOX = link("box", 5.2, 0.42)
PLAIN = Link(
    worker="attic", mode="plain", reason="command 23 is unknown", waiting=("a:1",)
)
