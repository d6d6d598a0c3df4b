"""Endpoints, and the ways that need none of our means."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.link.way import (
    WayKind,
    direct_way,
    local_way,
    path_of,
    port_of,
    tcp_endpoint,
    unix_endpoint,
)
from backends.paths import SOCKET_PATH_BYTES_MAX, Paths


def test_endpoints() -> None:
    assert path_of(unix_endpoint("/run/a b.sock")) == Path("/run/a b.sock")
    assert path_of(tcp_endpoint(80)) is None
    assert port_of(tcp_endpoint(4711)) == 4711
    assert port_of("[::1]:4711") == 4711
    assert port_of("unix:/x:80") == 0


async def test_plain_ways() -> None:
    local, direct = local_way(7), direct_way("10.0.0.7:50052")
    assert (local.kind, local.endpoint) == (WayKind.LOCAL, "127.0.0.1:7")
    assert (direct.kind, direct.endpoint) == (WayKind.DIRECT, "10.0.0.7:50052")
    assert (local.rtt_ms, direct.rtt_ms) == (0.0, None)
    await local.close()
    assert local.open


@pytest.mark.parametrize("length", [1, 60, 95])
def test_a_worker_s_socket_always_fits(length: int) -> None:
    directory = Path("/" + "d" * (SOCKET_PATH_BYTES_MAX - 17))
    paths = Paths(
        config_dir=directory,
        state_dir=directory,
        cache_dir=directory,
        runtime_dir=Path("/run") if length == 60 else directory,
    )
    sockets = [paths.worker_socket("default", c * length) for c in "ab"]
    assert max(len(str(socket)) for socket in sockets) <= SOCKET_PATH_BYTES_MAX
    assert sockets[0] != sockets[1]
    assert sockets == [paths.worker_socket("default", c * length) for c in "ab"]
