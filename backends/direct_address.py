"""The direct address of a peer's relay, by the setting and by the facts."""

from __future__ import annotations

import ipaddress
import re

from backends.errors import UsageError
from backends.machine_names import bracketed
from backends.state import Value

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

AUTO = "auto"
TUNNEL = "tunnel"
PORT_MAX = 65535
_BRACKETED = re.compile(r"\[(?P<host>[^]]*)\](?::(?P<port>[0-9]{1,5}))?")
_PLAIN = re.compile(r"(?P<host>[^:]*)(?::(?P<port>[0-9]{1,5}))?")


class DirectAddress(Value, frozen=True, kw_only=True):
    """An address of a machine at which its relay may listen."""

    address: str = ""
    """Empty: nowhere."""
    port: int = 0
    """0: the number that the relay has on the loopback."""
    why: str = ""
    """Why nowhere: words that a sentence may begin with."""

    def endpoint(self, port: int | str) -> str:
        if not self.address:
            return ""
        return f"{bracketed(self.address)}:{self.port or port}"


def wanted_place(setting: str) -> DirectAddress:
    host, port = _parts(setting.strip())
    try:
        address = _address(host)
    except ValueError:
        raise UsageError(
            f"data cannot be {setting}",
            f'Write "{AUTO}", "{TUNNEL}", or an address of that machine with or '
            'without a port: "10.0.0.7", "10.0.0.7:50060", "[fd00::7]:50060".',
        ) from None
    if wrong := _unfit(address):
        raise UsageError(
            f"data cannot be {setting}: that is {wrong}",
            "Name the one at which this machine reaches the other.",
        )
    return DirectAddress(address=str(address), port=port)


def _address(text: str) -> _Address:
    address = ipaddress.ip_address(text)
    return getattr(address, "ipv4_mapped", None) or address


def _unfit(address: _Address) -> str:
    if address.is_unspecified:
        return "every address"
    if address.is_loopback:
        return "a loopback address"
    if address.is_multicast:
        return "an address of many machines"
    # It leads nowhere without the name of a network, which is another at each end.
    if address.version == 6 and (address.is_link_local or address.scope_id):
        return "a link-local address"
    return ""


def wrong_place(setting: object) -> UsageError | None:
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


def place_of(setting: str | None, ssh_connection: str) -> DirectAddress:
    """The address to listen at there, by the setting and by its sshd's session.

    ``ssh_connection`` is that variable: the last but one of its words is the address at
    which the machine itself was reached.
    """
    wanted = setting or AUTO
    if wanted == TUNNEL:
        return DirectAddress(why='its settings say data = "tunnel"')
    if wanted != AUTO:
        return wanted_place(wanted)
    words = ssh_connection.split()
    try:
        address = _address(words[-2])
    except (IndexError, ValueError):
        return DirectAddress(
            why="its sshd does not say at which address it was reached"
        )
    wrong = "a link-local address" if address.is_link_local else _unfit(address)
    if wrong:
        return DirectAddress(why=f"it is reached at {wrong}")
    return DirectAddress(address=str(address))
