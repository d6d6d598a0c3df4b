"""What a second launch of a cluster is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
from msgspec.structs import replace

from backends.errors import ControllerError
from tests.unit.state.scene import busy_scene
from tui.cli.up import launched

if TYPE_CHECKING:
    from backends.client.client import ControllerClient
    from backends.state import ClusterSnapshot


class Busy:
    """A controller in which a cluster of some name serves."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster

    async def snapshot(self) -> ClusterSnapshot:
        return replace(busy_scene(0), cluster=self._cluster)


@pytest.mark.parametrize(
    ("cluster", "command"),
    [("default", "dllm-tui down,"), ("two", "dllm-tui down --cluster two,")],
)
async def test_the_way_to_end_what_is_in_the_way_names_its_cluster(
    cluster: str, command: str
) -> None:
    client = cast("ControllerClient", Busy(cluster))
    plan = busy_scene(0).plan
    assert plan is not None
    with pytest.raises(ControllerError, match=command):
        async with launched(client, plan, keep=True):
            pytest.fail("it was not refused")
