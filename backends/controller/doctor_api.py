"""The part of the API that examines machines and the ways between them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import web

from backends.controller.responses import json_response
from backends.errors import DllmError
from backends.machines.health import READ_S, read_health
from backends.machines.ways import ways_between
from backends.state.health import MachineHealth

if TYPE_CHECKING:
    from collections.abc import Callable

    from backends.machines.machine import Machine
    from backends.machines.peers import Peers


class DoctorApi:
    """Answers what ``doctor`` asks of all machines at once.

    ``serves`` tells whether a machine takes part in a cluster now: then nothing is
    measured there that would slow it down.
    """

    def __init__(self, peers: Peers, serves: Callable[[str], bool]) -> None:
        self._peers = peers
        self._serves = serves

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/doctor/health", self._health),
            web.post("/v1/doctor/ways", self._ways),
        ]

    async def _health(self, request: web.Request) -> web.Response:
        found = await asyncio.gather(*map(self._read, self._peers.all()))
        return json_response(found)

    async def _read(self, machine: Machine) -> MachineHealth:
        quiet = self._serves(machine.name)
        try:
            async with asyncio.timeout(2 * READ_S):
                return await read_health(machine.host, quiet=quiet)
        except DllmError as error:
            return MachineHealth(machine=machine.name, unread=error.what)
        except TimeoutError:
            why = f"it did not answer within {2 * READ_S:g} s"
            return MachineHealth(machine=machine.name, unread=why)

    async def _ways(self, request: web.Request) -> web.Response:
        machines = [one for one in self._peers.all() if _has_helper(one)]
        found = await ways_between(machines, self._peers.values(), self._serves)
        return json_response(found)


def _has_helper(machine: Machine) -> bool:
    try:
        machine.relay_program()
    except DllmError:
        return False
    return True
