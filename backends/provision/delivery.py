"""Sending a folder of programs: uploaded aside, tried there, put in place at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncssh

from backends.provision.refusals import (
    DoesNotRun,
    WrongFile,
    peer_full,
    transfer_error,
)
from backends.provision.remote import last_line, refusal, rows, script
from backends.provision.upload import Meter, upload

if TYPE_CHECKING:
    from collections.abc import Callable

    from backends.errors import HostError
    from backends.machines.shell import Shell, ShellResult
    from backends.provision.head import Parcel
    from backends.provision.upload import Files

SPARE_BYTES = 8_000_000
"""Room that is left on a disk we fill."""
TRIAL_S = 180.0
"""Hashing and trying some programs; a first start of CUDA takes long."""
_DIFFERS = 65
_DOES_NOT_RUN = 66


async def deliver(
    shell: Shell,
    files: Files,
    parcel: Parcel,
    root: str,
    tell: Callable[[str, float], None],
) -> None:
    """Send a parcel and put it in place; what was sent before is not sent again.

    Args:
        shell: the peer.
        files: opens SFTP there.
        parcel: what to send.
        root: our cache there.
        tell: gets a text and a fraction (0…1) as it goes on.

    Raises:
        DoesNotRun: the programs do not run there.
        PeerFull: no room.
        WrongFile: it arrived changed, twice.
        PeerUnreachable: the connection broke.
    """
    name = parcel.folder.replace("/", "_")
    aside = f"{root}/provision/{name}.{parcel.digest}"
    for attempt in (1, 2):
        await _upload(shell, files, parcel, aside, name, tell)
        result = await _put_in_place(shell, parcel, aside, f"{root}/{parcel.folder}")
        # What lay there of an earlier try was not what we thought: send it anew.
        if result.code != _DIFFERS or attempt == 2:
            break
    raise_for(shell.name, result)


async def _upload(
    shell: Shell,
    files: Files,
    parcel: Parcel,
    aside: str,
    name: str,
    tell: Callable[[str, float], None],
) -> None:
    size = parcel.size_bytes
    await check_room(shell, aside, name, size)
    meter = Meter(size, tell)
    try:
        async with files() as sftp:
            for file in parcel.files:
                await upload(sftp, file.path, f"{aside}/{file.name}", meter)
    except asyncssh.SFTPFailure as error:
        raise await failure(shell, aside, name, size, error) from error
    except (asyncssh.Error, OSError) as error:
        raise transfer_error(shell.name, error) from error


async def check_room(shell: Shell, folder: str, name: str, need_bytes: int) -> None:
    """Make a folder for an upload; ``name`` is that of all tries of the same thing.

    Raises:
        PeerFull: less than ``need_bytes`` are free there.
        ProvisionError: it cannot be made.
    """
    free_bytes, taken_bytes = await _room(shell, folder, name)
    # What an earlier try has taken already is not needed again.
    if free_bytes + taken_bytes < need_bytes + SPARE_BYTES:
        raise peer_full(shell.name, folder, need_bytes + SPARE_BYTES, free_bytes)


async def _room(shell: Shell, folder: str, name: str) -> tuple[int, int]:
    """Bytes free on the disk of a folder, and in the folder itself."""
    result = await shell.run(script("prepare"), folder, name, check=False)
    if result.code != 0:
        raise refusal(shell.name, result)
    told = dict(row[:2] for row in rows(result.stdout))
    free, taken = (int(told.get(key) or 0) * 1024 for key in ("free", "taken"))
    return free, taken


async def failure(
    shell: Shell, folder: str, name: str, need_bytes: int, error: asyncssh.SFTPFailure
) -> HostError:
    """Why a write failed: SFTP has no word for a full disk."""
    free_bytes, _ = await _room(shell, folder, name)
    if free_bytes < SPARE_BYTES or "space" in error.reason:
        return peer_full(shell.name, folder, need_bytes)
    return transfer_error(shell.name, error)


async def _put_in_place(
    shell: Shell, parcel: Parcel, aside: str, target: str
) -> ShellResult:
    described = [
        text for file in parcel.files for text in (file.sha256, file.name, file.trial)
    ]
    return await shell.run(
        script("install"), aside, target, *described, timeout_s=TRIAL_S, check=False
    )


def raise_for(peer: str, result: ShellResult) -> None:
    """Turn the status of ``install.sh`` into what it means.

    Raises:
        ProvisionError: it was not 0.
    """
    said = last_line(result)
    if result.code == _DIFFERS:
        raise WrongFile(
            f"What was sent to {peer} arrived changed ({said})",
            "Is its disk or its memory in order?",
        )
    if result.code == _DOES_NOT_RUN:
        raise DoesNotRun(f"{peer}: {said}")
    if result.code != 0:
        raise refusal(peer, result)
