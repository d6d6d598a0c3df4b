"""The speed of devices and links, learnt from measured passes.

Each measured run is an equation: the work of some devices times their speed is the
time it took. They are solved by robust least squares with a prior. A device that never
ran keeps the prior of its kind, with a wide band. Keys name the hardware and the
engine's build, so that other hardware or another build begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import hypot, sqrt
from statistics import median
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from backends.split.cost import KINDS, NO_WORK, Work
from backends.state import (
    Device,
    DeviceKind,
    DeviceSpeed,
    LinkSpeed,
    SpeedSource,
    Value,
)
from backends.units import MS_PER_S

FORMAT = 3
KEPT_MAX = 400
"""Observations kept; the oldest goes first."""
SAME_MAX = 3
"""Of one machine with the same work: more of them say nothing new."""
NOISE_MIN = 0.03
NOISE_USUAL = 0.05
"""Part by which runs differ, before any was measured."""
PROMPT_NOISE = 0.15
"""The same of prompts: their time is less than linear in their tokens."""
OTHER_MODEL_NOISE = 0.15
"""Quants and shapes differ in speed by so much at the same bytes."""
_SOLVED_MAX = 64
"""Observations of one machine that are solved; the latest count."""
_HUBER = 1.5
_ROUNDS = 5
_PRIOR_SPREAD = 0.5
_GIVEN_SPREAD = 0.15
_LEAST = 0.02
"""Part of the prior below which no figure falls: nothing costs no time."""
_SAME_WORK = 0.02
_MS_MIN = 1e-6
_USUAL_COUNTS = 2
"""The usual noise counts like so many equations."""
_FEW = 4
_FAR_OFF = 2.5
"""Standard deviations, by the median of absolute differences."""
_NOISE_MAX = 0.5
_OWN_PART_MAX = 0.9
"""Of an equation that alone tells its devices' speed nothing can be left over."""


class Observation(Value, frozen=True, kw_only=True):
    """The time that the devices of one machine took for a pass of one run."""

    work: dict[str, tuple[float, ...]]
    """By the key of each device, in the order of ``cost.Work``."""
    ms: float
    """The median over the passes."""
    model: str
    at: float
    """Unix seconds."""


class LinkObservation(Value, frozen=True, kw_only=True):
    """The time on the way of a pass of one run, without what a lab added."""

    link: str
    """Key of the link."""
    stages: int = 1
    """Devices of the worker that hold layers."""
    trips: float
    megabytes: float
    ms: float
    rtt_ms: float
    """The link's own, as measured meanwhile."""
    at: float


class Residual(Value, frozen=True, kw_only=True):
    """A run's measured time of a pass beside the one predicted before it."""

    predicted_ms: float
    measured_ms: float
    at: float
    model: str = ""

    @property
    def part(self) -> float:
        """The difference as a part of the prediction."""
        return self.measured_ms / self.predicted_ms - 1


class Calibration(Value, frozen=True, kw_only=True):
    """All that was measured, newest last; what a file of it holds."""

    observations: tuple[Observation, ...] = ()
    links: tuple[LinkObservation, ...] = ()
    residuals: tuple[Residual, ...] = ()
    format: int = FORMAT

    def with_run(
        self,
        observations: Iterable[Observation],
        links: Iterable[LinkObservation] = (),
        residual: Residual | None = None,
    ) -> Calibration:
        """The same with one more run, and without the oldest beyond the limits."""
        kept = list(self.observations)
        for new in observations:
            alike = [old for old in kept if _is_alike(old, new)]
            for old in alike[: len(alike) - SAME_MAX + 1]:
                kept.remove(old)
            kept.append(new)
        further = (residual,) if residual else ()
        return Calibration(
            observations=tuple(kept[-KEPT_MAX:]),
            links=(*self.links, *links)[-KEPT_MAX:],
            residuals=(*self.residuals, *further)[-KEPT_MAX:],
        )

    def renamed(self, old: str, new: str) -> Calibration:
        """The same of a machine that has another name now."""

        def key(text: str, machines: int) -> str:
            """``machines``: so many parts of a key are names of machines."""
            parts = text.split("|")
            named = [new if part == old else part for part in parts[:machines]]
            return "|".join((*named, *parts[machines:]))

        def work(one: Observation) -> Observation:
            return replace(one, work={key(k, 1): of for k, of in one.work.items()})

        return replace(
            self,
            observations=tuple(map(work, self.observations)),
            links=tuple(replace(one, link=key(one.link, 2)) for one in self.links),
        )


def _is_alike(old: Observation, new: Observation) -> bool:
    if old.model != new.model or old.work.keys() != new.work.keys():
        return False
    return all(
        abs(a - b) <= _SAME_WORK * max(abs(a), abs(b))
        for key, work in new.work.items()
        for a, b in zip(old.work[key], work, strict=True)
    )


# --- keys and priors -----------------------------------------------------------------


def device_key(device: Device, *, role: str, threads: int | None, build: str) -> str:
    """The name under which a device's speed is kept.

    It tells apart hardware, engine builds, threads, and head from worker.
    """
    machine = device.memory_pool.partition("/")[0] or device.id.partition("/")[0]
    hardware = device.description or device.kind.value
    parts = (machine, device.name, hardware, device.total_bytes, role, threads, build)
    return "|".join("" if part is None else str(part) for part in parts)


def head_key(machine: str, build: str) -> str:
    """The name for what a head does beside its devices."""
    return f"{machine}|head|{build}"


def link_key(head: str, worker: str, way: str) -> str:
    return f"{head}|{worker}|{way}"


class _Usual(NamedTuple):
    gb_s: float
    gops_s: float
    layer_ms: float
    pass_ms: float
    multiplying: float = 0.1
    """Part of a weight's time that is not for its bytes."""
    spread: float = 1.0
    """Of the prior, as a part of it: the largest GPU reads ten times as fast."""
    kv: float = 1.5
    """Time of a byte of KV cache by that of weights: it is read less evenly."""


_KINDS = {
    DeviceKind.CUDA: _Usual(500, 30_000, 0.02, 0.2),
    DeviceKind.HIP: _Usual(400, 20_000, 0.03, 0.3),
    DeviceKind.METAL: _Usual(200, 10_000, 0.03, 0.3),
    DeviceKind.VULKAN: _Usual(200, 8_000, 0.04, 0.4),
    DeviceKind.CPU: _Usual(46, 230, 0.02, 0.15, 0.5, _PRIOR_SPREAD, kv=3.0),
    DeviceKind.OTHER: _Usual(150, 5_000, 0.03, 0.3, spread=2.0),
}
_GB_OF_GVALUE = 0.5625
"""Bytes of a weight of Q4_K."""
_THREADS = 4
"""Of the CPU that the figures above are for."""
_CPU_GB_S_MAX = 80.0
_HEAD_MS = 0.4
"""Sampling and the server, a pass."""
_HANDOVER_MS = 0.5
"""The head's own time for each device of a worker, a pass."""


class Prior(NamedTuple):
    """Mean and standard deviation of each kind of work's time."""

    ms: tuple[float, ...]
    sd: tuple[float, ...]
    source: SpeedSource = SpeedSource.PRIOR


def prior_of(kind: DeviceKind, threads: int = 0) -> Prior:
    """The prior of a device that never ran; 0: the threads of a CPU are not known."""
    usual = _KINDS[kind]
    if kind is DeviceKind.CPU and threads:
        gb_s = min(usual.gb_s * threads / _THREADS, _CPU_GB_S_MAX)
        gops_s = usual.gops_s * threads / _THREADS
        usual = usual._replace(gb_s=gb_s, gops_s=gops_s)
    return _prior(usual)


def given_speed(kind: DeviceKind, gb_s: float, gops_s: float | None = None) -> Prior:
    """The speed of a device from a cluster file: its memory's bandwidth is known."""
    usual = _KINDS[kind]
    gops_s = gops_s or gb_s * usual.gops_s / usual.gb_s
    given = usual._replace(
        gb_s=gb_s, gops_s=gops_s, multiplying=0.0, spread=_GIVEN_SPREAD
    )
    return _prior(given)._replace(source=SpeedSource.GIVEN)


def _prior(usual: _Usual) -> Prior:
    weight_ms = MS_PER_S / usual.gb_s
    ms = (
        (1 - usual.multiplying) * weight_ms,
        usual.multiplying * weight_ms * _GB_OF_GVALUE,
        usual.kv * weight_ms,
        MS_PER_S / usual.gops_s,
        usual.layer_ms,
        usual.pass_ms,
    )
    wide = 2 * usual.spread
    loose = (usual.spread, wide, wide, wide, wide, wide)
    return Prior(ms, tuple(a * b for a, b in zip(ms, loose, strict=True)))


_HEAD_FIGURES = (*NO_WORK[:-2], _HANDOVER_MS, _HEAD_MS)
HEAD_PRIOR = Prior(_HEAD_FIGURES, _HEAD_FIGURES)


# --- solving -------------------------------------------------------------------------


class Noise(NamedTuple):
    """The parts by which runs differ from what they should have taken."""

    passes: float = NOISE_USUAL
    prompts: float = PROMPT_NOISE


USUAL_NOISE = Noise()
OF_OTHERS = Noise(passes=OTHER_MODEL_NOISE)
"""The noise if only other models ran."""


def device_speeds(
    calibration: Calibration,
    priors: Mapping[str, Prior],
    names: Mapping[str, str],
    model: str,
    noise: Noise = USUAL_NOISE,
) -> dict[str, DeviceSpeed]:
    """The speed of each key's device, under the name it has in a plan."""
    found: dict[str, DeviceSpeed] = {}
    for known, of_group, _, solved in _solutions(calibration, priors, model, noise):
        for number, key in enumerate(known):
            if key not in names:
                continue
            runs = sum(key in one.work for one in of_group)
            found[key] = _speed(solved, number, names[key], known[key], runs)
    return found


class _Solution(NamedTuple):
    priors: Mapping[str, Prior]
    """Of each device that was measured together with the others."""
    observations: Sequence[Observation]
    equations: Sequence[_Equation]
    solved: _Solved


def _solutions(
    calibration: Calibration, priors: Mapping[str, Prior], model: str, noise: Noise
) -> Iterator[_Solution]:
    for group in _groups(calibration.observations, priors):
        of_group = [
            one
            for one in calibration.observations
            if one.work.keys() <= set(group) and one.work
        ][-_SOLVED_MAX:]
        known = {key: priors.get(key, prior_of(DeviceKind.OTHER)) for key in group}
        equations = _equations(known, of_group, model, noise)
        yield _Solution(known, of_group, equations, _solve(known, equations))


def _groups(
    observations: Iterable[Observation], wanted: Iterable[str]
) -> list[list[str]]:
    """The wanted keys with all that they were ever measured together with."""
    groups = [{key} for key in wanted]
    for one in observations:
        touched = [group for group in groups if group & one.work.keys()]
        if touched:
            merged = set(one.work).union(*touched)
            groups = [group for group in groups if group not in touched] + [merged]
    return [sorted(group) for group in groups]


def _speed(
    solved: _Solved, number: int, name: str, prior: Prior, runs: int
) -> DeviceSpeed:
    start = number * KINDS
    span = range(start, start + KINDS)
    return DeviceSpeed(
        device=name,
        ms=tuple(solved.mean[start : start + KINDS]),
        covariance=tuple(solved.covariance[row][col] for row in span for col in span),
        source=SpeedSource.MEASURED if runs else prior.source,
        runs=runs,
    )


def _doubt(one: Observation, model: str, noise: Noise) -> float:
    # As a part of the time.
    own = noise.prompts if is_prompt(one) else noise.passes
    return own if one.model == model else max(own, OTHER_MODEL_NOISE)


def is_prompt(one: Observation) -> bool:
    return any(Work(*work).gops for work in one.work.values())


class _Solved(NamedTuple):
    mean: list[float]
    covariance: list[list[float]]


class _Equation(NamedTuple):
    row: list[float]
    ms: float
    doubt: float
    """As a part of the time."""

    def sd(self, said_ms: float) -> float:
        # Noise grows with what a run should have taken: one that seems to have taken
        # next to no time is no surer than others.
        return max(self.ms, said_ms, _MS_MIN) * self.doubt

    def said_ms(self, figures: Sequence[float]) -> float:
        return sum(a * b for a, b in zip(self.row, figures, strict=True))


def _equations(
    keys: Iterable[str], observations: Sequence[Observation], model: str, noise: Noise
) -> list[_Equation]:
    return [
        _Equation(
            [figure for key in keys for figure in one.work.get(key, NO_WORK)],
            one.ms,
            _doubt(one, model, noise),
        )
        for one in observations
    ]


def _solve(priors: Mapping[str, Prior], equations: Sequence[_Equation]) -> _Solved:
    mean = [figure for prior in priors.values() for figure in prior.ms]
    spread = [figure for prior in priors.values() for figure in prior.sd]
    solved = _robust(mean, spread, equations)
    # What came out below nothing is held at the least, and the rest solved anew.
    for _ in mean:
        below = [
            at
            for at, figure in enumerate(solved.mean)
            if figure < _LEAST * mean[at] and mean[at] > 0
        ]
        if not below:
            break
        for at in below:
            mean[at], spread[at] = _LEAST * mean[at], _LEAST * mean[at] / 10
        solved = _robust(mean, spread, equations)
    return solved


def _robust(
    prior: Sequence[float], spread: Sequence[float], equations: Sequence[_Equation]
) -> _Solved:
    """Least squares in which a far-off equation counts less (Huber's weights)."""
    # By how much all is slower than the prior says, at first: one disturbed run would
    # lead a plain solution far away.
    said = [one.said_ms(prior) for one in equations]
    ratios = [
        one.ms / said_ms
        for one, said_ms in zip(equations, said, strict=True)
        if said_ms
    ]
    slower = median(ratios) if ratios else 1.0
    counts = [
        one.sd(slower * said_ms) ** -2
        for one, said_ms in zip(equations, said, strict=True)
    ]
    solved = _weighted(prior, spread, equations, counts)
    for _ in range(_ROUNDS if len(equations) > 2 else 0):
        for at, one in enumerate(equations):
            said_ms = one.said_ms(solved.mean)
            off, sd = abs(one.ms - said_ms), one.sd(said_ms)
            counts[at] = min(1.0, _HUBER * sd / off if off else 1.0) / sd**2
        solved = _weighted(prior, spread, equations, counts)
    return solved


def _weighted(
    prior: Sequence[float],
    spread: Sequence[float],
    equations: Sequence[_Equation],
    counts: Sequence[float],
) -> _Solved:
    """Solve in units of the prior's spread, so that the figures are of one size.

    ``counts`` are the equations' weights.
    """
    # Imported here because numpy is no matter of starting up.
    import numpy as np

    by = np.array(spread)
    plain = np.array([one.row for one in equations]).reshape(-1, len(by))
    rest = np.array([one.ms for one in equations]) - plain @ np.array(prior)
    scaled = plain * by
    counted = scaled.T * np.array(counts)
    # The prior makes it well-conditioned and positive.
    inverse = np.linalg.inv(np.eye(len(by)) + counted @ scaled)
    shift = inverse @ (counted @ rest)
    mean = np.array(prior) + by * shift
    return _Solved(mean.tolist(), (inverse * np.outer(by, by)).tolist())


def noise_of(
    calibration: Calibration, priors: Mapping[str, Prior], model: str
) -> Noise:
    """The parts by which runs of this model differ from what they should have taken.

    What an equation leaves over is small if it says much about its devices itself. It
    is told with that part made good, so that all have the spread of the noise. Few
    equations say little about the noise, so the usual one counts beside them.
    """
    off: tuple[list[float], list[float]] = [], []
    ran = {one.model for one in calibration.observations}
    usual = USUAL_NOISE if not ran or model in ran else OF_OTHERS
    for found in _solutions(calibration, priors, model, USUAL_NOISE):
        for one, equation in zip(found.observations, found.equations, strict=True):
            if one.model == model and one.ms > 0:
                off[is_prompt(one)].append(_left_over(equation, found.solved))
    return Noise(*map(_spread, off, usual))


def _left_over(equation: _Equation, solved: _Solved) -> float:
    row, said_ms = equation.row, equation.said_ms(solved.mean)
    used = [at for at, figure in enumerate(row) if figure]
    variance = sum(
        row[a] * row[b] * solved.covariance[a][b] for a in used for b in used
    )
    own_part = min(variance / equation.sd(said_ms) ** 2, _OWN_PART_MAX)
    return (said_ms / equation.ms - 1) / sqrt(1 - own_part)


def _spread(off: Sequence[float], usual: float) -> float:
    if not off:
        return usual
    # What is far off counts as much as what is rather far off.
    most = min(_FAR_OFF * 1.4826 * median(map(abs, off)), _NOISE_MAX)
    squares = sum(min(abs(one), most) ** 2 for one in off)
    # Few tell their own spread badly: the band has to be wider, as Student's is.
    squares *= 1 + _FEW / len(off)
    both = _USUAL_COUNTS * usual**2 + squares
    return max(NOISE_MIN, sqrt(both / (_USUAL_COUNTS + len(off))))


# --- links ---------------------------------------------------------------------------

_LINK_PASS_MS = 0.1
_LINK_PASS_SD_MS = 0.1
_RTT_SPREAD = 0.1
_UNKNOWN_RTT_MS = 1.0
_UNKNOWN_MB_S = 100.0
_TELLING_MB = 0.05
"""A pass with less crosses in too little time to tell a rate."""
_RECENT = 12


def link_speed(
    calibration: Calibration,
    key: str,
    worker: str,
    *,
    rtt_ms: float | None = None,
    far_rtt_ms: float | None = None,
    mb_s: float | None = None,
    near: bool = False,
) -> LinkSpeed:
    """The speed of a link: its round trip, and what runs showed beside that.

    ``rtt_ms`` is the link's own now, ``far_rtt_ms`` that of another connection between
    the machines. ``near`` is a worker on the head's own machine.
    """
    seen = [one for one in calibration.links if one.link == key][-_RECENT:]
    usual = 0.03 if near else _UNKNOWN_RTT_MS
    measured = median(one.rtt_ms for one in seen) if seen else None
    known = [one for one in (rtt_ms, measured, far_rtt_ms) if one is not None]
    rtt = known[0] if known else usual
    rate = mb_s or (0.0 if near else _UNKNOWN_MB_S)
    # What crossed in less time tells that the rate is higher than was thought.
    longest = [
        (max(one.ms - one.trips * one.rtt_ms, 0.0) + _LINK_PASS_MS) / one.megabytes
        for one in seen
        if one.megabytes >= _TELLING_MB
    ]
    ms_per_mb = MS_PER_S / rate if rate else 0.0
    if longest:
        ms_per_mb = min(ms_per_mb, median(longest))
    rest = [one.ms - one.trips * one.rtt_ms - one.megabytes * ms_per_mb for one in seen]
    pass_ms = max(median(rest), 0.0) if rest else _LINK_PASS_MS
    off = median(abs(one - pass_ms) for one in rest) if rest else _LINK_PASS_SD_MS
    return LinkSpeed(
        worker=worker,
        rtt_ms=rtt,
        rtt_sd_ms=rtt * (_RTT_SPREAD if known else _PRIOR_SPREAD),
        ms_per_mb=ms_per_mb,
        ms_per_mb_sd=ms_per_mb * (_RTT_SPREAD if mb_s else _PRIOR_SPREAD),
        pass_ms=pass_ms,
        pass_sd_ms=hypot(1.4826 * off, _LINK_PASS_SD_MS / sqrt(len(rest) + 1)),
        trips_per_pass=median(o.trips / o.stages for o in seen) if seen else 1.0,
        source=SpeedSource.MEASURED if seen else SpeedSource.PRIOR,
    )


def work_row(work: Work) -> tuple[float, ...]:
    """A work with the digits that say something, for a file."""
    return tuple(float(f"{figure:.6g}") for figure in work)


def decoded(raw: bytes) -> Calibration:
    """The content of a file.

    Raises:
        ValueError: it is none, or of another release.
    """
    found = msgspec.json.decode(raw, type=Calibration)
    if found.format != FORMAT:
        raise ValueError(f"format {found.format}")
    return found
