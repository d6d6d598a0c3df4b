"""The parts of one cluster that its other parts share."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from backends.controller.calibration_store import CalibrationStore
from backends.controller.event_recorders import EventRecorder
from backends.controller.gateway_process import ApiPorts, Gateway
from backends.controller.journal import Journal, Record
from backends.controller.links import Links, Transports
from backends.controller.processes import ProcessBook
from backends.controller.snapshot_store import SnapshotStore
from backends.controller.steps import Steps
from backends.gateway.listen_settings import ApiSettings, api_settings
from backends.machines.local_inventory import LocalInventory
from backends.machines.machine import Machines
from backends.speculation.auto import TrialBook
from backends.state import Plan

SECRET_BYTES = 32


@dataclass(kw_only=True, eq=False)
class ClusterContext:
    """Everything of one cluster that has no behaviour of its own in its phases."""

    name: str
    machines: Machines
    inventory: LocalInventory
    store: SnapshotStore
    journal: Journal
    recorder: EventRecorder
    book: ProcessBook
    api_ports: ApiPorts
    trials: TrialBook
    calibrations: CalibrationStore
    gateway_socket: Path

    def __post_init__(self) -> None:
        self.news = asyncio.Event()
        """Set when a process or a machine came or went, or a way broke."""
        self.steps = Steps(self.store)
        self.ways = Transports(self.news.set)
        self.links = Links(self.store, self.ways, self.recorder)
        self.gateway = Gateway(
            self.name,
            self.machines,
            self.store,
            self.recorder,
            self.gateway_socket,
            time.time,
        )

    @property
    def record(self) -> Record:
        return self.journal.record

    @property
    def has_served(self) -> bool:
        """True if the goal was reached before, by whatever controller."""
        return bool(self.record.server)

    @property
    def api(self) -> ApiSettings:
        """Return the access rules of the API as launched, whatever changed since."""
        launched, inventory = self.record.goal.api, self.inventory
        return launched or api_settings(inventory.settings(), inventory.paths)

    def demanded_port(self, plan: Plan) -> int | None:
        return plan.api_port or self.api.port

    def secret(self) -> str:
        """The secret of the goal, from which its relays have their keys."""
        if not self.record.secret:
            self.journal.change(secret=secrets.token_hex(SECRET_BYTES))
        return self.record.secret
