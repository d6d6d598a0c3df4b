"""Speeds learnt from measured passes: priors, least squares, outliers, keys."""

from __future__ import annotations

from math import hypot, sqrt
from random import Random

import msgspec
import pytest

from backends.split.calibration import (
    HEAD_PRIOR,
    NOISE_MIN,
    OTHER_MODEL_NOISE,
    SAME_MAX,
    USUAL_NOISE,
    Calibration,
    LinkObservation,
    Observation,
    Residual,
    decoded,
    device_key,
    device_speeds,
    given_speed,
    link_speed,
    noise_of,
    prior_of,
)
from backends.split.cost import Work, band, head_work, work_ms
from backends.state import Device, DeviceKind, DeviceSpeed, SpeedSource

KEY = "a|CPU"
PRIORS = {KEY: prior_of(DeviceKind.CPU, threads=2)}
TRUE = (30.0, 25.0, 200.0, 20.0, 0.05, 0.4)
"""ms of each kind of work on the device that is measured here."""


def took(work: Work) -> float:
    return sum(a * b for a, b in zip(TRUE, work, strict=True))


def seen(work: Work, ms: float, model: str = "m", key: str = KEY) -> Observation:
    return Observation(work={key: tuple(work)}, ms=ms, model=model, at=0.0)


def work_of(layers: int) -> Work:
    return Work(
        weight_gb=0.003 * layers,
        gvalues=0.005 * layers,
        kv_gb=0.001 * layers,
        layers=layers,
        passes=1,
    )


def solved(*observations: Observation, model: str = "m") -> DeviceSpeed:
    known = Calibration().with_run(observations)
    return device_speeds(known, PRIORS, {KEY: "a/CPU"}, model)[KEY]


def test_a_device_that_never_ran_has_the_prior_of_its_kind() -> None:
    told = solved()
    assert told.ms == pytest.approx(PRIORS[KEY].ms)
    assert (told.source, told.runs) == (SpeedSource.PRIOR, 0)
    mean, variance = work_ms(told, work_of(20))
    assert variance**0.5 > 0.3 * mean


def test_two_runs_predict_a_split_that_never_ran() -> None:
    told = solved(*(seen(work_of(n), took(work_of(n))) for n in (8, 24)))
    for layers in (4, 15, 30):
        mean, variance = work_ms(told, work_of(layers))
        assert mean == pytest.approx(took(work_of(layers)), rel=0.1)
        assert variance**0.5 < 0.15 * mean
    assert (told.source, told.runs) == (SpeedSource.MEASURED, 2)


def test_many_runs_find_each_figure() -> None:
    random = Random(5)
    runs = []
    for _ in range(40):
        work = Work(
            weight_gb=random.uniform(0.01, 1),
            gvalues=random.uniform(0.01, 1),
            kv_gb=random.uniform(0.0, 0.2),
            gops=random.uniform(0.0, 2.0),
            layers=random.randint(1, 30),
            passes=1,
        )
        runs.append(seen(work, took(work) * random.gauss(1, 0.01)))
    told = solved(*runs)
    for figure, true in zip(told.ms[:4], TRUE[:4], strict=True):
        assert figure == pytest.approx(true, rel=0.1)


def test_a_run_that_something_disturbed_counts_little() -> None:
    good = [seen(work_of(n), took(work_of(n))) for n in (5, 10, 15, 20, 25)]
    told = solved(*good, seen(work_of(12), 6 * took(work_of(12))))
    assert work_ms(told, work_of(12))[0] == pytest.approx(took(work_of(12)), rel=0.1)


@pytest.mark.parametrize("ms", [0.0, 0.01, took(work_of(12)) / 20])
def test_a_run_of_next_to_no_time_is_not_taken_for_exact(ms: float) -> None:
    good = [seen(work_of(n), took(work_of(n))) for n in (5, 10, 15, 20, 25)]
    told = solved(*good, seen(work_of(12), ms))
    assert work_ms(told, work_of(12))[0] == pytest.approx(took(work_of(12)), rel=0.1)


@pytest.mark.parametrize(("noise", "runs"), [(0.04, 2), (0.15, 10)])
def test_nine_of_ten_runs_are_within_the_band(noise: float, runs: int) -> None:
    """Of splits that never ran, on random devices; each split that did ran twice."""
    inside = [is_inside(Random(seed), noise, runs) for seed in range(150)]
    assert 0.83 <= sum(inside) / len(inside) <= 0.97


def is_inside(random: Random, noise: float, runs: int) -> bool:
    true = [ms * random.lognormvariate(0, 0.5) for ms in PRIORS[KEY].ms]

    def ran(layers: int) -> Observation:
        should = sum(a * b for a, b in zip(true, work_of(layers), strict=True))
        return seen(work_of(layers), should * random.lognormvariate(0, noise))

    splits = [random.randint(2, 30) for _ in range(runs)]
    known = Calibration().with_run(ran(n) for n in splits for _ in range(2))
    told = noise_of(known, PRIORS, "m")
    speed = device_speeds(known, PRIORS, {KEY: "a/CPU"}, "m", told)[KEY]
    new = ran(random.randint(2, 30))
    mean, variance = work_ms(speed, Work(*new.work[KEY]))
    low, high = band(mean, sqrt(variance + (told.passes * mean) ** 2))
    return low <= new.ms <= high


def test_no_figure_falls_below_nothing() -> None:
    """Times that fall with more layers make no negative cost of a layer."""
    told = solved(seen(work_of(5), 30.0), seen(work_of(25), 10.0))
    assert min(told.ms) > 0


def test_other_models_count_less() -> None:
    own = seen(work_of(20), 20.0)
    others = [seen(work_of(20 + n), 60.0, model="other") for n in range(3)]
    told = solved(own, *others)
    assert abs(work_ms(told, work_of(20))[0] - 20) < 8


def test_devices_of_one_machine_are_told_apart() -> None:
    keys = {"h|head": HEAD_PRIOR, "h|CPU": prior_of(DeviceKind.CPU)}
    runs = [
        Observation(
            work={"h|head": tuple(Work(passes=1)), "h|CPU": tuple(work_of(n))},
            ms=2 + took(work_of(n)),
            model="m",
            at=0,
        )
        for n in (4, 12, 20, 28)
    ]
    known = Calibration().with_run(runs)
    told = device_speeds(known, keys, {key: key for key in keys}, "m")
    total = told["h|head"].ms[-1] + work_ms(told["h|CPU"], work_of(16))[0]
    assert total == pytest.approx(2 + took(work_of(16)), rel=0.05)


def test_the_same_run_again_replaces_the_oldest() -> None:
    known = Calibration()
    for ms in (1.0, 2.0, 3.0, 4.0, 5.0):
        known = known.with_run([seen(work_of(10), ms)])
    assert [one.ms for one in known.observations] == [3.0, 4.0, 5.0]
    assert len(known.observations) == SAME_MAX


def test_another_build_threads_or_hardware_begin_anew() -> None:
    cpu = Device(id="a/CPU", name="CPU", kind=DeviceKind.CPU, total_bytes=8)
    first = device_key(cpu, role="worker", threads=2, build="b1")
    others = {
        device_key(cpu, role="worker", threads=2, build="b2"),
        device_key(cpu, role="worker", threads=4, build="b1"),
        device_key(cpu, role="head", threads=2, build="b1"),
        device_key(
            msgspec.structs.replace(cpu, total_bytes=16),
            role="worker",
            threads=2,
            build="b1",
        ),
        device_key(
            msgspec.structs.replace(cpu, description="EPYC"),
            role="worker",
            threads=2,
            build="b1",
        ),
    }
    assert len({first, *others}) == 6


def test_workers_of_one_machine_share_what_is_known() -> None:
    one, two = (
        Device(id=f"worker{n}/CPU", name="CPU", memory_pool="local/CPU") for n in (1, 2)
    )
    keys = {device_key(d, role="worker", threads=1, build="b") for d in (one, two)}
    assert len(keys) == 1


def test_a_given_bandwidth_is_taken_as_given() -> None:
    prior = given_speed(DeviceKind.METAL, 400.0)
    assert prior.ms[0] == pytest.approx(1000 / 400)
    assert prior.source is SpeedSource.GIVEN
    assert prior.sd[0] < prior_of(DeviceKind.METAL).sd[0]


def test_noise_is_what_the_equations_leave_over() -> None:
    random = Random(7)
    loose = [
        seen(work_of(n), took(work_of(n)) * random.gauss(1, 0.2)) for n in range(2, 30)
    ]
    exact = [seen(work_of(n), took(work_of(n))) for n in range(2, 30)]
    noisy = noise_of(Calibration().with_run(loose), PRIORS, "m")
    quiet = noise_of(Calibration().with_run(exact), PRIORS, "m")
    assert quiet.passes == NOISE_MIN
    assert 0.12 < noisy.passes < 0.3
    assert quiet.prompts == noisy.prompts == USUAL_NOISE.prompts
    assert noise_of(Calibration(), PRIORS, "m") == USUAL_NOISE
    of_others = noise_of(Calibration().with_run(exact), PRIORS, "never ran")
    assert of_others.passes == OTHER_MODEL_NOISE


def test_few_runs_do_not_explain_their_own_noise_away() -> None:
    """Two splits and two figures to find: nothing is left over, and nothing known."""
    runs = [seen(work_of(n), took(work_of(n))) for n in (5, 25)]
    assert noise_of(Calibration().with_run(runs), PRIORS, "m").passes > NOISE_MIN


def crossed(ms: float, rtt_ms: float = 5.0) -> LinkObservation:
    return LinkObservation(
        link="l", trips=1, megabytes=0.2, ms=ms, rtt_ms=rtt_ms, at=0.0
    )


def test_a_link_is_its_round_trip_and_what_runs_showed_beside() -> None:
    known = Calibration().with_run((), [crossed(5.9), crossed(6.0), crossed(6.1)])
    link = link_speed(known, "l", "a", rtt_ms=8.0, mb_s=1000.0)
    assert link.rtt_ms == 8.0
    assert link.pass_ms == pytest.approx(6.0 - 5.0 - 0.2)
    assert link.source is SpeedSource.MEASURED
    assert link_speed(known, "l", "a", far_rtt_ms=20.0).rtt_ms == 5.0
    unseen = link_speed(known, "other", "a", far_rtt_ms=20.0)
    assert (unseen.rtt_ms, unseen.source) == (20.0, SpeedSource.PRIOR)
    near = link_speed(known, "other", "a", near=True)
    assert near.rtt_ms < 0.1 < unseen.rtt_ms
    assert near.ms_per_mb == 0 < unseen.ms_per_mb


def test_a_rate_that_runs_outdid_is_corrected() -> None:
    """A GPU's bare worker on loopback: 0.2 MB in 0.3 ms are no 100 MB/s."""
    known = Calibration().with_run((), [crossed(0.3, rtt_ms=0.05)] * 3)
    link = link_speed(known, "l", "a")
    predicted_ms = link.rtt_ms + link.ms_per_mb * 0.2 + link.pass_ms
    assert predicted_ms == pytest.approx(0.3, abs=0.15)
    slow = link_speed(Calibration().with_run((), [crossed(7.0)]), "l", "a")
    assert slow.ms_per_mb == link_speed(Calibration(), "l", "a").ms_per_mb


def test_the_band_of_an_unknown_kind_reaches_from_a_cpu_to_a_big_gpu() -> None:
    work = work_of(16)
    told = prior_of(DeviceKind.OTHER)
    ms = sum(a * b for a, b in zip(told.ms, work, strict=True))
    deviation = hypot(*(a * b for a, b in zip(told.sd, work, strict=True)))
    low, high = band(ms, deviation)
    for kind in (DeviceKind.CPU, DeviceKind.CUDA):
        usual = prior_of(kind).ms
        assert low < sum(a * b for a, b in zip(usual, work, strict=True)) < high


def test_the_residual_is_a_part_of_the_prediction() -> None:
    assert Residual(predicted_ms=20, measured_ms=22, at=0).part == pytest.approx(0.1)


def test_a_file_of_another_release_is_refused() -> None:
    known = Calibration().with_run([seen(work_of(3), 1.0)], [crossed(1.0)])
    assert decoded(msgspec.json.encode(known)) == known
    with pytest.raises(ValueError, match="format 99"):
        decoded(msgspec.json.encode(msgspec.structs.replace(known, format=99)))


def test_an_output_of_more_bits_takes_as_long_for_each_weight() -> None:
    """Runs with and without the output, of twice the bits, tell bytes from weights."""
    slow = (0.0, 50.0, 0.0, 0.0, 0.0, 0.2)

    def layers(n: int) -> Work:
        return Work(weight_gb=0.002 * n, gvalues=0.0035 * n, layers=n, passes=1)

    output = Work(weight_gb=0.023, gvalues=0.028, layers=1)
    runs = [layers(n) for n in (19, 3)] + [layers(n) + output for n in (5, 18)]

    def time(work: Work) -> float:
        return sum(a * b for a, b in zip(slow, work, strict=True))

    told = solved(*(seen(work, time(work)) for work in runs))
    for work in (layers(16), layers(25), layers(2) + output, layers(30) + output):
        assert work_ms(told, work)[0] == pytest.approx(time(work), rel=0.05)


def test_the_head_takes_time_for_each_device_that_it_hands_to() -> None:
    keys = {"h|head": HEAD_PRIOR, "h|CPU": prior_of(DeviceKind.CPU, threads=1)}
    cpu = Work(weight_gb=0.002, gvalues=0.0035, layers=1)

    def run(n: int, devices: int) -> Observation:
        own = Work(0.002 * n, 0.0035 * n, layers=n, passes=1)
        work = {"h|head": tuple(head_work(devices)), "h|CPU": tuple(own)}
        return Observation(work=work, ms=0.4 + 0.7 * devices + 0.3 * n, model="m", at=0)

    known = Calibration().with_run([run(6, 2), run(9, 2)])
    told = device_speeds(known, keys, {key: key for key in keys}, "m")
    assert work_ms(told["h|CPU"], cpu)[0] == pytest.approx(0.3, rel=0.2)
    for devices in (1, 2, 3):
        alone = work_ms(told["h|head"], head_work(devices))[0]
        assert alone == pytest.approx(0.4 + 0.7 * devices, abs=0.5)


def test_a_renamed_machine_is_still_known() -> None:
    """Also one that is called as a device is."""
    cpu = Device(id="CPU/CPU", name="CPU", kind=DeviceKind.CPU)
    link = LinkObservation(
        link="CPU|b|CPU", trips=1, megabytes=1, ms=1, rtt_ms=1, at=0.0
    )
    key = device_key(cpu, role="worker", threads=2, build="x")
    known = Calibration().with_run([seen(work_of(8), 1.0, key=key)], [link])
    renamed = known.renamed("CPU", "nuc").renamed("b", "box")
    there = msgspec.structs.replace(cpu, id="nuc/CPU")
    (observed,), (way,) = renamed.observations, renamed.links
    assert list(observed.work) == [
        device_key(there, role="worker", threads=2, build="x")
    ]
    assert way.link == "nuc|box|CPU"
    assert known.renamed("worker", "x") == known
