"""The memory of a worker: paired consoles, open invitations, and its pause."""

from __future__ import annotations

import fcntl
import hmac
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from backends.errors import MachineError, UsageError
from backends.mesh.quic_place import QuicPlace
from backends.mesh.token import secret_hash
from backends.state import NOT_JSON, Value
from backends.writing import try_lock, write_private

CONSOLES_MAX = 64
INVITATIONS_MAX = 64
_KEPT_S = 7 * 86_400.0
"""So long a used or expired invitation is told from one that never was."""


class PairedConsole(Value, frozen=True, kw_only=True):
    """A console that may use this machine."""

    name: str
    key: str
    """``ssh-ed25519 AAAA…``."""
    added_at: float
    seen_at: float = 0.0
    """Of its newest connection; 0: never."""
    places: tuple[str, ...] = ()
    """Its places for this machine to dial (``10.0.0.2:50070``); empty: it dials."""
    quic: QuicPlace | None = None
    """With the key of its relay."""


class Invitation(Value, frozen=True, kw_only=True):
    secret: str
    """Its hash."""
    expires_at: float
    used: bool = False


class Asking(Value, frozen=True, kw_only=True):
    """A console that its owner may let in, if both screens show these digits."""

    name: str
    address: str
    digits: str
    expires_at: float
    accepted: bool | None = None
    """None while its owner has not decided."""
    differs: bool = False
    """True if its owner typed other digits."""


class Pairings(Value, frozen=True, kw_only=True):
    """All that is remembered, in one file."""

    consoles: tuple[PairedConsole, ...] = ()
    invitations: tuple[Invitation, ...] = ()
    paused: bool = False
    name: str = ""
    """The machine, as it is called to others."""
    pid: int = 0
    """Of the program that lends this machine now, while it does."""
    addresses: tuple[str, ...] = ()
    port: int = 0
    asking: Asking | None = None
    quic: QuicPlace | None = None

    def console(self, name: str) -> PairedConsole:
        for console in self.consoles:
            if console.name == name:
                return console
        known = ", ".join(console.name for console in self.consoles) or "none yet"
        raise UsageError(f"There is no console {name}", f"Known: {known}.")

    def invited(self, secret: bytes) -> Invitation | None:
        hashed = secret_hash(secret)
        same = (i for i in self.invitations if hmac.compare_digest(i.secret, hashed))
        return next(same, None)

    def by_key(self, key: str) -> PairedConsole | None:
        return next((one for one in self.consoles if one.key == key), None)


class PairingFile:
    """The file of it; commands and the worker change it, one at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen = (0, 0)
        self._pairings = Pairings()

    def read(self) -> Pairings:
        """The pairings as they are now; read only if the file has changed."""
        try:
            status = self.path.stat()
            if (status.st_ino, status.st_mtime_ns) != self._seen:
                self._pairings = msgspec.json.decode(
                    self.path.read_bytes(), type=Pairings
                )
                self._seen = (status.st_ino, status.st_mtime_ns)
        except FileNotFoundError:
            self._pairings, self._seen = Pairings(), (0, 0)
        except (OSError, *NOT_JSON) as error:
            raise MachineError(
                f"The paired consoles in {self.path} cannot be read ({error})",
                "Mend the file, or remove it: then all must be paired anew.",
            ) from error
        return self._pairings

    def change(self, changed: Callable[[Pairings], Pairings]) -> Pairings:
        """Read, change and write it while nobody else does."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            before = self.read()
            after = changed(before)
            if after != before:
                write_private(self.path, msgspec.json.encode(after))
            return after
        except OSError as error:
            raise MachineError(
                f"{self.path} cannot be written ({error.strerror})",
                "Is the disk full, or its folder not yours?",
            ) from error
        finally:
            os.close(lock)

    def hold(self) -> int:
        """Be the one that lends this machine, while the descriptor is open."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        held = os.open(self.path.with_suffix(".held"), os.O_RDWR | os.O_CREAT, 0o600)
        if not try_lock(held):
            os.close(held)
            raise MachineError(
                f"This machine is lent already, by process {self.read().pid}",
                "End that first; dllm-tui worker invite makes tokens for it.",
            )
        return held

    @property
    def lent(self) -> bool:
        """True while a program lends this machine."""
        try:
            os.close(self.hold())
        except MachineError:
            return True
        return False

    def invite(self, secret: bytes, expires_at: float) -> None:
        one = Invitation(secret=secret_hash(secret), expires_at=expires_at)
        oldest = time.time() - _KEPT_S

        def changed(pairings: Pairings) -> Pairings:
            kept = [i for i in pairings.invitations if i.expires_at > oldest]
            return replace(pairings, invitations=(*kept[1 - INVITATIONS_MAX :], one))

        self.change(changed)

    def pair(self, secret: bytes, console: PairedConsole) -> None:
        """Use an invitation up, and remember the console that had it."""

        def changed(pairings: Pairings) -> Pairings:
            used = usable(pairings, secret)
            rest = (i for i in pairings.invitations if i is not used)
            return with_console(
                replace(pairings, invitations=(*rest, replace(used, used=True))),
                console,
            )

        self.change(changed)

    def ask(self, asking: Asking | None) -> None:
        """Have the owner asked, here or by ``worker accept``; None: no more."""
        self.change(lambda pairings: replace(pairings, asking=asking))

    def decide(self, digits: str, accepts: bool = True) -> Asking:
        """The owner's word on the console that asks; other digits refuse it."""

        def changed(pairings: Pairings) -> Pairings:
            one = pairings.asking
            if one is None or one.accepted is not None or one.expires_at < time.time():
                raise MachineError(
                    "No console asks to be paired now",
                    "Begin there: dllm-tui peers add HOST:PORT.",
                )
            is_same = hmac.compare_digest(one.digits.encode(), digits.encode())
            decided = replace(
                one, accepted=accepts and is_same, differs=accepts and not is_same
            )
            return replace(pairings, asking=decided)

        decided = self.change(changed).asking
        assert decided is not None
        if decided.differs:
            raise MachineError(
                f"The digits here are others: {decided.name} was refused",
                "Somebody may be in between: begin again, or use a token.",
            )
        return decided

    def rename(self, name: str, new: str) -> None:
        def changed(pairings: Pairings) -> Pairings:
            if any(console.name == new for console in pairings.consoles):
                raise UsageError(f"There is a console {new} already")
            renamed = replace(pairings.console(name), name=new)
            return _replaced(pairings, name, renamed)

        self.change(changed)

    def revoke(self, name: str) -> None:
        def changed(pairings: Pairings) -> Pairings:
            gone = pairings.console(name)
            kept = tuple(
                console for console in pairings.consoles if console is not gone
            )
            return replace(pairings, consoles=kept)

        self.change(changed)

    def pause(self, paused: bool) -> Pairings:
        return self.change(lambda pairings: replace(pairings, paused=paused))

    def saw(self, name: str) -> None:
        def changed(pairings: Pairings) -> Pairings:
            if all(console.name != name for console in pairings.consoles):
                return pairings
            seen = replace(pairings.console(name), seen_at=time.time())
            return _replaced(pairings, name, seen)

        self.change(changed)


def usable(pairings: Pairings, secret: bytes) -> Invitation:
    """The open invitation of a secret."""
    found = pairings.invited(secret)
    if found is None:
        raise MachineError("This token is not known there", "Ask for another one.")
    if found.used:
        raise MachineError("This token was used already", "Ask for another one.")
    if found.expires_at <= time.time():
        raise MachineError("This token has expired", "Ask for another one.")
    return found


def with_console(pairings: Pairings, console: PairedConsole) -> Pairings:
    """The pairings with one console more; one of a known key stays as it was.

    It keeps the name that its owner gave it, and its places, if there are no new ones.
    """
    known = pairings.by_key(console.key)
    if known is not None:
        console = replace(
            console,
            name=known.name,
            seen_at=known.seen_at,
            places=console.places or known.places,
            quic=console.quic if console.places else known.quic,
        )
        return _replaced(pairings, known.name, console)
    if len(pairings.consoles) >= CONSOLES_MAX:
        raise MachineError(f"{CONSOLES_MAX} consoles are paired with it: no more fit")
    taken = {one.name for one in pairings.consoles}
    numbered = (f"{console.name}-{number}" for number in range(2, CONSOLES_MAX + 3))
    free = (name for name in (console.name, *numbered) if name not in taken)
    named = replace(console, name=next(free))
    return replace(pairings, consoles=(*pairings.consoles, named))


def _replaced(pairings: Pairings, name: str, console: PairedConsole) -> Pairings:
    consoles = tuple(console if one.name == name else one for one in pairings.consoles)
    return replace(pairings, consoles=consoles)


def without_relay_key(console: PairedConsole) -> PairedConsole:
    """As it may be shown."""
    quic = replace(console.quic, relay_key="") if console.quic else None
    return replace(console, quic=quic)
