"""Six digits that two people compare, where no token says whose key is whose.

They come from both keys, as each side sees them, and from a fresh nonce of each. Who is
in the middle has other keys, so that the screens differ. A million digits are few: who
knows the other's nonce first tries its own until both screens agree. So the console
first sends a hash of its nonce, the commitment. The nonce itself it sends only after
that of the worker. Then nobody chooses a nonce knowing the other, and each try is right
once in a million. Bluetooth's numeric comparison and ZRTP do the same.

A worker counts a try when it tells its nonce, not when digits are shown. From then on
the other side knows whether they would agree, and can hang up before anybody sees them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import secrets
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import asyncssh
import msgspec

from backends.errors import MachineError
from backends.machines.ssh.lent import client_over, reaching
from backends.mesh.connection_limits import StrangerLog, counted_as
from backends.mesh.dialling import dial_first
from backends.mesh.identity import key_of_line, own_key, public_line, raw_of
from backends.mesh.messages import (
    PAIR,
    USER_BY_DIGITS,
    DigitsStep,
    PairAnswer,
    Reader,
    read_line,
)
from backends.mesh.pairings import Asking, PairedConsole, with_console
from backends.printable import printable
from backends.state import NOT_JSON
from backends.tasks import end_tasks
from backends.units import format_age, format_digits

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from backends.mesh.pairings import PairingFile

S = TypeVar("S", DigitsStep, PairAnswer)

COMPARE_S = 60.0
"""So long people may compare."""
STEP_S = 10.0
POLL_S = 0.2
NEWCOMERS_MAX = 4
NEWCOMERS_OF_ONE_MAX = 2
TRIES_MAX = 20
TRIES_OF_ONE_MAX = 5
"""From one address."""
TRIES_S = 600.0
NAME_MAX = 32
NONCE_BYTES = 16
DIGITS = 6


def new_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def commitment(console_key: bytes, worker_key: bytes, nonce: bytes) -> str:
    """The promise of a console's nonce; it tells nothing of it."""
    return _hash(b"commitment", console_key, worker_key, nonce).hex()


def digits_of(
    console_key: bytes, worker_key: bytes, console_nonce: bytes, worker_nonce: bytes
) -> str:
    hashed = _hash(b"digits", console_key, worker_key, console_nonce, worker_nonce)
    return f"{int.from_bytes(hashed) % 10**DIGITS:0{DIGITS}}"


def shown_name(told: str, otherwise: str) -> str:
    """The name of another machine, which is data."""
    return printable(told)[:NAME_MAX].strip() or otherwise


def _hash(label: bytes, *parts: bytes) -> bytes:
    made = hashlib.sha256(b"dllm-tui pairing 1 ")
    for part in (label, *parts):
        made.update(len(part).to_bytes(4) + part)
    return made.digest()


class Writer(Protocol):
    def write(self, data: bytes) -> None: ...


def _say(writer: Writer, step: DigitsStep | PairAnswer) -> None:
    writer.write(msgspec.json.encode(step) + b"\n")


async def _heard(reader: Reader, kind: type[S]) -> S:
    try:
        return msgspec.json.decode(await read_line(reader), type=kind)
    except NOT_JSON as error:
        raise MachineError("The other side gave an answer without sense") from error


def _nonce_in(text: str) -> bytes:
    with contextlib.suppress(ValueError):
        if len(nonce := bytes.fromhex(text)) == NONCE_BYTES:
            return nonce
    raise MachineError("The other side gave an answer without sense")


# --- the worker ----------------------------------------------------------------------


class DigitsServer:
    """Lets in consoles without a token, one at a time, if the owner says so."""

    def __init__(
        self, pairings: PairingFile, name: str, say: Callable[[str], None]
    ) -> None:
        self._pairings = pairings
        self._name = name
        self._tell = say
        self._tell_of_failure = StrangerLog(say)
        self._turn = asyncio.Lock()
        self._tries: deque[tuple[float, str]] = deque(maxlen=TRIES_MAX)
        self.is_open = False
        self.is_on_screen = False
        """True if a screen asks the owner: the log need not say how to answer."""
        self.newcomers: dict[object, str] = {}
        """Connections of those who want to be paired, at most four; two an address."""

    def lets_in(self, newcomer: object, address: str) -> bool:
        address = counted_as(address)
        others = [a for one, a in self.newcomers.items() if one is not newcomer]
        crowded = others.count(address) >= NEWCOMERS_OF_ONE_MAX
        if not self.is_open or crowded or len(others) >= NEWCOMERS_MAX:
            return False
        self.newcomers[newcomer] = address
        return True

    async def serve(
        self, reader: Reader, writer: Writer, address: str, keys: tuple[str, str]
    ) -> None:
        """Pair with a console; of the keys, its own and ours, its login is proof."""
        name = "a console"
        try:
            async with asyncio.timeout(STEP_S):
                asked = await _heard(reader, DigitsStep)
            name = shown_name(asked.name, name)
            if self._turn.locked():
                raise MachineError(
                    f"{self._name} is being paired with another console",
                    "Try again in a minute.",
                )
            async with self._turn:
                async with asyncio.timeout(STEP_S):
                    self._count_try(address)
                    digits = await self._digits(reader, writer, keys, asked)
                until = time.time() + COMPARE_S
                one = Asking(
                    name=name, address=address, digits=digits, expires_at=until
                )
                await self._compared(one, reader)
            console = PairedConsole(name=name, key=keys[0], added_at=time.time())
            self._pairings.change(lambda found: with_console(found, console))
        except (MachineError, TimeoutError, ValueError) as error:
            why = str(error) if isinstance(error, MachineError) else "It went away."
            self._tell_of_failure(f"{name} ({address}) was not paired: {why}")
            _say(writer, PairAnswer(problem=why))
        else:
            self._tries.clear()
            _say(writer, PairAnswer(name=self._name))

    def _count_try(self, address: str) -> None:
        address = counted_as(address)
        oldest = time.monotonic() - TRIES_S
        recent = [come_from for at, come_from in self._tries if at > oldest]
        if len(recent) == TRIES_MAX or recent.count(address) >= TRIES_OF_ONE_MAX:
            raise MachineError(
                f"{self._name} was asked too often",
                f"Use a token, or try again in {format_age(TRIES_S)}.",
            )
        self._tries.append((time.monotonic(), address))

    async def _digits(
        self,
        reader: Reader,
        writer: Writer,
        keys: tuple[str, str],
        asked: DigitsStep,
    ) -> str:
        nonce = new_nonce()
        _say(writer, DigitsStep(name=self._name, nonce=nonce.hex()))
        revealed = _nonce_in((await _heard(reader, DigitsStep)).nonce)
        console, worker = (raw_of(key_of_line(key)) for key in keys)
        promised = commitment(console, worker, revealed)
        if not hmac.compare_digest(promised.encode(), asked.commitment.encode()):
            raise MachineError("The console changed its nonce", "Begin again.")
        return digits_of(console, worker, revealed, nonce)

    async def _compared(self, asking: Asking, reader: Reader) -> None:
        """Wait until both sides say that the digits agree."""
        shown = format_digits(asking.digits)
        text = f"{asking.name} ({asking.address}) wants to be paired"
        if not self.is_on_screen:
            text += f". If it shows {shown}: dllm-tui worker accept, and these digits"
        self._tell(text)
        self._pairings.ask(asking)
        heard = asyncio.create_task(_agrees(reader))
        try:
            while True:
                now = self._pairings.read().asking
                if now is None or time.time() > asking.expires_at:
                    raise MachineError(
                        "Nobody compared the digits in time", "Begin again."
                    )
                if now.differs:
                    raise MachineError(
                        f"The owner of {self._name} sees other digits",
                        "Somebody may be in between: use a token.",
                    )
                if now.accepted is False:
                    raise MachineError(f"The owner of {self._name} refused")
                if heard.done():
                    if not heard.result():
                        raise MachineError(f"{asking.name} refused, or went away")
                    if now.accepted:
                        return
                await asyncio.sleep(POLL_S)
        finally:
            await end_tasks(heard)
            self._pairings.ask(None)


async def _agrees(reader: Reader) -> bool:
    with contextlib.suppress(MachineError, ValueError, OSError, asyncssh.Error):
        return (await _heard(reader, DigitsStep)).agrees
    return False


# --- the console ---------------------------------------------------------------------


class DigitsPairing:
    """A pairing that a user of ours has begun, with whoever is at a place."""

    def __init__(
        self, place: str, link: asyncssh.SSHClientConnection, process: Any
    ) -> None:
        self.place = place
        self.name = ""
        """As the worker calls itself."""
        self.digits = self.host_key = ""
        self._link = link
        self._process = process
        self._agreed = False

    async def agree_on_digits(self, key: asyncssh.SSHKey, name: str) -> None:
        nonce = new_nonce()
        host_key = self._link.get_server_host_key()
        assert host_key is not None
        # The one that the digits speak of: the link may get another later.
        self.host_key = public_line(host_key)
        keys = raw_of(key), raw_of(host_key)
        promised = commitment(*keys, nonce)
        _say(self._process.stdin, DigitsStep(name=name, commitment=promised))
        told = await _heard(self._process.stdout, DigitsStep)
        if told.problem:
            raise MachineError(printable(told.problem))
        theirs = _nonce_in(told.nonce)
        _say(self._process.stdin, DigitsStep(nonce=nonce.hex()))
        self.name = shown_name(told.name, "worker")
        self.digits = digits_of(*keys, nonce, theirs)

    def decide(self, agrees: bool) -> None:
        """The word of our user."""
        self._agreed = agrees
        # If it has gone, the outcome tells.
        with contextlib.suppress(OSError, asyncssh.Error):
            _say(self._process.stdin, DigitsStep(agrees=agrees))

    async def outcome(self) -> None:
        """Wait until both sides have agreed."""
        try:
            async with asyncio.timeout(COMPARE_S + STEP_S):
                answer = await _heard(self._process.stdout, PairAnswer)
        except (TimeoutError, ValueError, OSError, asyncssh.Error) as error:
            raise MachineError(f"{self.name} went away", "Begin again.") from error
        if answer.problem:
            raise MachineError(printable(answer.problem))
        if not self._agreed:
            raise MachineError(f"{self.name} did not wait for you", "Begin again.")

    def close(self) -> None:
        self._link.close()


async def begin_pairing(place: str, key_file: Path, name: str) -> DigitsPairing | None:
    """Agree on digits with the worker at a place; None where no worker listens."""
    key = await asyncio.to_thread(own_key, key_file)
    try:
        made, _ = await dial_first([place], greets=True)
    except MachineError:
        return None
    async with reaching(place, place, STEP_S):
        try:
            login = {"username": USER_BY_DIGITS, "client_keys": [key]}
            link = await client_over(made, None, **login)
        except asyncssh.PermissionDenied as error:
            raise MachineError(
                f"The worker at {place} lets nobody in by digits now",
                "Try again in a minute, or use a token of its owner.",
            ) from error
        try:
            process = await link.create_process(subsystem=PAIR, encoding=None)
            pairing = DigitsPairing(place, link, process)
            await pairing.agree_on_digits(key, name)
        except BaseException:
            link.close()
            raise
        return pairing
