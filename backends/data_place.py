"""Where a peer's relay is met directly: what the setting wants, and what there is."""

from __future__ import annotations

import ipaddress
import re

from backends.errors import UsageError
from backends.state import Value

AUTO = "auto"
TUNNEL = "tunnel"
PORT_MAX = 65535
_BRACKETED = re.compile(r"\[(?P<host>[^]]*)\](?::(?P<port>[0-9]{1,5}))?")
_PLAIN = re.compile(r"(?P<host>[^:]*)(?::(?P<port>[0-9]{1,5}))?")


class DataPlace(Value, frozen=True, kw_only=True):
    """An address of a machine at which its relay may listen."""

    address: str = ""
    """Empty: nowhere."""
    port: int = 0
    """0: the number that the relay has on the loopback."""
    why: str = ""
    """Why nowhere: words that a sentence may begin with."""

    def endpoint(self, port: int | str) -> str:
        """``10.0.0.7:4711``, ``[fd00::7]:4711``; empty where there is none."""
        if not self.address:
            return ""
        shown = f"[{self.address}]" if ":" in self.address else self.address
        return f"{shown}:{self.port or port}"


def wanted_place(setting: str) -> DataPlace:
    """What an address with or without a port says.

    Raises:
        UsageError: it says none, or every address.
    """
    host, port = _parts(setting.strip())
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise UsageError(
            f"data cannot be {setting}",
            f'Write "{AUTO}", "{TUNNEL}", or an address of that machine with or '
            'without a port: "10.0.0.7", "10.0.0.7:50060", "[fd00::7]:50060".',
        ) from None
    if address.is_unspecified:
        raise UsageError(
            f"data cannot be {setting}: that is every address",
            "Name the one at which this machine reaches the other.",
        )
    return DataPlace(address=str(address), port=port)


def wrong_place(setting: object) -> UsageError | None:
    """What is wrong with a setting, if it is a text at all."""
    if isinstance(setting, str) and setting not in (AUTO, TUNNEL):
        try:
            wanted_place(setting)
        except UsageError as error:
            return error
    return None


def _parts(text: str) -> tuple[str, int]:
    """Address and port, 0 for none; an address of IPv6 has colons of its own."""
    found = _BRACKETED.fullmatch(text) or _PLAIN.fullmatch(text)
    if found is None:
        return text, 0
    port = int(found["port"] or 0)
    is_port = port <= PORT_MAX and found["port"] != "0"
    return (found["host"], port) if is_port else ("", 0)


def place_of(setting: str | None, ssh_connection: str) -> DataPlace:
    """Where to listen there, by the setting and by what its sshd says of a session.

    ``ssh_connection`` is that variable: the last but one of its words is the address at
    which the machine itself was reached.
    """
    wanted = setting or AUTO
    if wanted == TUNNEL:
        return DataPlace(why='its settings say data = "tunnel"')
    if wanted != AUTO:
        return wanted_place(wanted)
    words = ssh_connection.split()
    try:
        address = ipaddress.ip_address(words[-2])
    except (IndexError, ValueError):
        return DataPlace(why="its sshd does not say at which address it was reached")
    if address.is_loopback:
        return DataPlace(why="its sshd is reached at a loopback address")
    if address.is_link_local:
        return DataPlace(why="its sshd is reached at a link-local address")
    return DataPlace(address=str(address))
