"""What follows from the fields of a snapshot."""

from __future__ import annotations

import pytest

from backends.state import ClusterBrief, ClusterSnapshot, ClusterState, MachineUsage


@pytest.mark.parametrize(
    ("other", "state", "run"),
    [
        ("a", ClusterState.SERVING, True),
        ("z", ClusterState.SERVING, True),
        ("z", ClusterState.IDLE, False),
    ],
)
def test_other_clusters_that_run(other: str, state: ClusterState, run: bool) -> None:
    own = ClusterBrief(name="lab", state=ClusterState.SERVING)
    clusters = (own, ClusterBrief(name=other, state=state))
    assert ClusterSnapshot(cluster="lab", clusters=clusters).others_run is run


def test_the_part_of_memory_that_is_used() -> None:
    used = MachineUsage(memory_total_bytes=8, memory_available_bytes=2)
    assert used.memory_share == 0.75
    assert MachineUsage().memory_share is None


def test_a_machine_is_as_busy_as_its_processors_in_the_mean() -> None:
    usage = MachineUsage(cores_permille=(500, 1000, 0, 0))
    assert usage.cpu_share == 0.375
    assert MachineUsage().cpu_share is None
