"""Cluster files: what they say, and one sentence for what they cannot mean."""

from __future__ import annotations

import pytest

from backends.config import Config
from backends.errors import UsageError
from backends.planning.cluster_file import (
    EXAMPLE,
    machines_of_file,
    pins_of_file,
    read_cluster,
    speeds_of_file,
)
from backends.planning.proposal import propose
from backends.state import Ask, DeviceKind, Plan, SpeedSource, Transport
from tests.unit.planning.machines import MODEL

GIVEN = read_cluster(EXAMPLE)


def plan_of(head: str = "studio") -> Plan:
    machines = machines_of_file(GIVEN, head)
    others = tuple(machine.name for machine in machines[1:])
    ask = Ask(model=MODEL.path, head=head, peers=others, relay=False)
    return propose(ask, MODEL, Config(), machines, cores=1)


def test_the_example_is_read_as_it_is_meant() -> None:
    assert GIVEN.head == "studio"
    studio, mini, twin = GIVEN.machines
    assert [device.name for device in studio.devices] == ["CPU", "MTL0"]
    assert studio.devices[1].kind is DeviceKind.METAL
    assert studio.devices[1].memory_bytes == 55 << 30
    assert studio.devices[1].gops_s == 14_000
    assert twin.devices == mini.devices
    assert mini.devices[1].most == 12
    between, network = GIVEN.links
    assert between.between == ("studio", "mini2")
    assert between.mb_s == pytest.approx(37.5)
    assert network.rtt_ms == pytest.approx(0.4)
    assert network.mb_s == 118


def test_machines_are_planned_with_as_if_they_were_there() -> None:
    head, mini, _ = machines_of_file(GIVEN, "studio")
    assert head.transport == Transport.LOCAL
    assert mini.address == "mini:50052"
    assert [device.name for device in mini.devices] == ["MTL0"], "its CPU rests"
    plan = plan_of()
    assert [worker.name for worker in plan.workers] == ["mini", "mini2"]
    assert pins_of_file(GIVEN, plan) == ("mini/MTL0<=12", "mini2/MTL0<=12")


def test_a_link_that_names_both_ends_counts_before_the_network() -> None:
    speeds = speeds_of_file(GIVEN, plan_of())
    rtts = {link.worker: link.rtt_ms for link in speeds.links}
    assert rtts == {"mini": pytest.approx(0.4), "mini2": pytest.approx(3)}
    assert {speed.source for speed in speeds.devices} == {SpeedSource.GIVEN}
    fast = next(s for s in speeds.devices if s.device == "studio/MTL0")
    assert fast.ms[0] == pytest.approx(1000 / 400)
    from_mini = speeds_of_file(GIVEN, plan_of("mini2"))
    assert {link.worker: link.rtt_ms for link in from_mini.links} == {
        "studio": pytest.approx(3),
        "mini": pytest.approx(0.4),
    }


MACHINE = '[machines.a]\nmemory = "8 GiB"\nbandwidth = "20 GB/s"\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no machines"),
        ("machines = 3", "no table"),
        ("[machines", "no TOML"),
        ("a = " + "[" * 5000, "too deep in one another"),
        (MACHINE + "most = " + "9" * 5000, "too many digits"),
        (MACHINE + "most = 0x" + "f" * 6000, "very many digits is no number of layers"),
        (MACHINE.replace('"8 GiB"', "0x" + "f" * 6000), "no figure with a unit"),
        (MACHINE.replace("8 GiB", "0.0001 KiB"), "less than any machine has"),
        (MACHINE.replace("20 GB/s", f"0.{'0' * 305}1 GB/s"), "less than any machine"),
        (MACHINE + "x" * 5000 + " = 1", "xxx…. Known"),
        (MACHINE + '"a\\nb" = 1', "unknown key 'a\\nb'"),
        ('[machines.a]\nlike = "q"\n[machines."x\\ny"]', "'x\\ny' cannot be the name"),
        (MACHINE + '[machines.a.devices]\n"x\\ny" = 3', "'x\\ny' cannot be the name"),
        (MACHINE + '[machines.a.devices.CPU]\nmemory = "1 GiB"', "is there twice"),
        (
            MACHINE
            + '[machines.a.devices.X]\nkind = "cpu"\nmemory = "1 GiB"\n'
            + 'bandwidth = "20 GB/s"',
            "devices.X is a CPU, and a machine has one",
        ),
        ("head = [1]\n" + MACHINE, "none of the machines"),
        ("head = false\n" + MACHINE, "none of the machines"),
        (MACHINE + '[[links]]\nbetween = [["a"], "a"]\nrtt = "1 ms"', "no machine"),
        (
            MACHINE
            + '[machines.b]\nlike = "a"\n'
            + '[[links]]\nbetween = ["a", "b"]\nrtt = "1 ms"\n'
            + '[[links]]\nbetween = ["b", "a"]\nrtt = "2 ms"',
            "two links between a and b",
        ),
        (MACHINE.replace("8 GiB", "8"), 'Write it like "16 GiB".'),
        (MACHINE.replace("20 GB/s", "20"), 'Write it like "16 GB/s".'),
        (MACHINE.replace("8 GiB", "8 parsecs"), "no figure with a unit"),
        (MACHINE.replace("8 GiB", "-8 GiB"), "more than nothing"),
        (MACHINE.replace("8 GiB", "0 GiB"), "more than nothing"),
        (MACHINE.replace("8 GiB", "9" * 400 + " GiB"), "more than nothing"),
        (MACHINE.replace("8 GiB", "99999999 TiB"), "more than any machine has"),
        (MACHINE.replace('bandwidth = "20 GB/s"', ""), "has no bandwidth"),
        (MACHINE + "memroy = 1", "unknown key 'memroy'. Did you mean memory"),
        (MACHINE + "most = 1000000000", "no number of layers"),
        (MACHINE + "least = -1", "no number of layers"),
        (MACHINE + "least = true", "no number of layers"),
        (MACHINE + "least = 5\nmost = 4", "at least 5 and at most 4"),
        (MACHINE + "devices = []", "no table"),
        (MACHINE + '[machines.b]\nlike = "c"', "which is no machine"),
        (
            '[machines.a]\nlike = "b"\n[machines.b]\nlike = "a"',
            "in a circle: a → b → a",
        ),
        ('head = "x"\n' + MACHINE, "none of the machines"),
        (MACHINE + '[[links]]\nbetween = ["a"]\nrtt = "1 ms"', "no two ends"),
        (
            MACHINE + '[[links]]\nbetween = ["a", "a"]\nrtt = "1 ms"',
            "joins a machine to itself",
        ),
        (MACHINE + '[[links]]\nbetween = ["a", "q"]\nrtt = "1 ms"', "no machine"),
        (MACHINE + '[network]\nrtt = "-1 ms"', "nothing or more"),
        (MACHINE + '[network]\nrate = "1 MB/s"', "has no rtt"),
        (MACHINE + '[network]\nrtt = "3 weeks"', "no figure with a unit"),
        (MACHINE + '[network]\nrtt = "1 ms"\njitter = "-1 ms"', "nothing or more"),
        (MACHINE + '[network]\nrtt = "1 ms"\nbetween = ["a", "a"]', "unknown key"),
        (MACHINE + 'like = ["a"]', "is like ['a'], which is no machine"),
        (MACHINE.replace("8 GiB", "٣ GiB"), "no figure with a unit"),
        (MACHINE.replace("machines.a", 'machines."../a"'), "cannot be the name"),
        (
            "".join(MACHINE.replace(".a]", f".m{n}]") for n in range(17)),
            "17 machines; 16 at most",
        ),
        (
            MACHINE
            + "".join(
                f'[machines.a.devices.G{n}]\nmemory = "8 GiB"\nbandwidth = "9 GB/s"\n'
                for n in range(9)
            ),
            "9 devices; 8 at most",
        ),
        (
            MACHINE
            + '[machines.a.devices.G0]\nmemory = "8 GiB"\nbandwidth = "9 GB/s"\n'
            + 'kind = "quantum"',
            "no kind of device",
        ),
    ],
)
def test_nonsense_is_one_sentence(text: str, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_cluster(text)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300
