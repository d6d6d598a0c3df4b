"""Why something could not be put onto a machine: one class for each way out."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import asyncssh

from backends.errors import HostError, PeerUnreachable
from backends.state import Failure
from backends.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

TAIL_LINES = 15


class ProvisionError(HostError):
    """Something could not be installed on a peer; carries the end of its output."""

    def __init__(self, what: str, hint: str = "", *, tail: Sequence[str] = ()) -> None:
        """Keep the last lines of what was printed there."""
        super().__init__(what, hint)
        self.tail = tuple(tail)[-TAIL_LINES:]

    def failure(self, at: float = 0.0) -> Failure:
        """The same as a value that can cross the border, output included."""
        return Failure(what=self.what, hint=self.hint, log_tail=self.tail, at=at)


class PeerBusy(ProvisionError):
    """Somebody else installs something there, or what is to go still runs."""


class PeerFull(ProvisionError):
    """The disk there is full, or too small to begin."""


class DoesNotRun(ProvisionError):
    """Our programs cannot run there as they are."""


class CannotBuild(ProvisionError):
    """What is needed to compile is not there."""


class WrongFile(ProvisionError):
    """A file there is not what it should be."""


def peer_full(
    peer: str, folder: str, need_bytes: int, free_bytes: int | None = None
) -> PeerFull:
    """The sentence for a full disk, before (``free_bytes`` given) or during."""
    what = f"The disk of {peer} holding {folder} became full"
    if free_bytes is not None:
        free = format_bytes(free_bytes)
        what = f"Only {free} are free on the disk of {peer} holding {folder}"
    return PeerFull(what, f"It needs {format_bytes(need_bytes)}: free some and repeat.")


def transfer_error(peer: str, error: Exception) -> HostError:
    """Explain a failed transfer: a broken connection, a refusal there, our disk."""
    if isinstance(error, asyncssh.SFTPNoConnection | asyncssh.SFTPConnectionLost):
        return PeerUnreachable(f"The connection to {peer} broke", _RESUMES)
    if isinstance(error, asyncssh.SFTPPermissionDenied):
        return ProvisionError(f"{peer} refused to write a file ({error.reason})")
    if isinstance(error, asyncssh.SFTPError):
        return ProvisionError(f"{peer} could not write a file ({error.reason})")
    if isinstance(error, OSError) and not _is_network(error):
        what = f"{error.filename or 'A file'} on this machine cannot be read or written"
        return ProvisionError(
            f"{what} ({error.strerror or error})", "Is its disk in order, and not full?"
        )
    return PeerUnreachable(f"The connection to {peer} broke ({error})", _RESUMES)


def _is_network(error: OSError) -> bool:
    unrouted = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)
    return isinstance(error, ConnectionError | TimeoutError) or error.errno in unrouted


_RESUMES = "Repeat it: it goes on where it stopped."
