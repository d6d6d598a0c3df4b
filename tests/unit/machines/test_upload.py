"""Sending a file, and why that failed: here, there, or in between."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backends.errors import HostError, PeerUnreachable
from backends.machines.shell import transfer_error
from backends.machines.ssh.files import Meter, upload

if TYPE_CHECKING:
    from tests.kit.local_peer import LocalShell

UNREADABLE = Path("/proc/self/mem")
"""Opens, and answers a read of its beginning with EIO."""


@pytest.mark.skipif(not UNREADABLE.exists(), reason="Linux has such a file")
async def test_a_broken_disk_here_is_no_broken_connection(
    shell: LocalShell, tmp_path: Path
) -> None:
    meter = Meter(1, lambda text, done: None)
    async with shell.files() as sftp:
        with pytest.raises(OSError, match="Input/output error") as caught:
            await upload(sftp, UNREADABLE, str(tmp_path / "copy"), meter)
    error = transfer_error("mini", caught.value)
    assert not isinstance(error, PeerUnreachable)
    assert str(error).startswith(
        f"{UNREADABLE} on this machine cannot be read or written (Input/output error)"
    )


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError(),
        BrokenPipeError(),
        TimeoutError(),
        OSError(errno.EHOSTUNREACH, "No route to host"),
    ],
)
def test_a_broken_connection_resumes(error: OSError) -> None:
    told: HostError = transfer_error("mini", error)
    assert isinstance(told, PeerUnreachable)
    assert "The connection to mini broke" in str(told)
