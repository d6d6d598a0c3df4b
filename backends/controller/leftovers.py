"""Track the processes of one cluster that could not be stopped.

They end when their machine is back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.errors import HostError
from backends.link.relay import is_beside
from backends.planning.blueprint import machines_of, needed_names, process_name
from backends.state import Leftover

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from backends.controller.journal import Journal
    from backends.controller.processes import ProcessBook
    from backends.controller.snapshot_store import SnapshotStore
    from backends.machines.machine import Machines
    from backends.state import Plan


class Leftovers:
    """Keeps the leftovers in the journal and in the store.

    ``book`` knows the last state of every process.
    """

    def __init__(
        self,
        cluster: str,
        machines: Machines,
        store: SnapshotStore,
        journal: Journal,
        book: ProcessBook,
    ) -> None:
        self._cluster = cluster
        self._machines = machines
        self._store = store
        self._journal = journal
        self._book = book

    def after(self, plan: Plan | None) -> tuple[Leftover, ...]:
        """Return the leftovers once ``plan`` replaces the present goal.

        Every process of the present goal on a machine out of reach becomes a leftover.
        """
        record = self._journal.record
        before = needed_names(record.goal.plan) if record.goal.plan else {}
        wanted = needed_names(plan) if plan else {}
        gone = {n: m for n, m in before.items() if wanted.get(n) != m}
        known = {(one.peer, one.name): one for one in record.leftovers}
        known |= {(one.peer, one.name): one for one in self.away(gone)}
        return tuple(o for o in known.values() if wanted.get(o.name) != o.peer)

    def away(self, names: Mapping[str, str]) -> list[Leftover]:
        """Return the given processes that may run on a machine out of reach."""
        connected = {machine.name for machine in self._machines.all()}
        return [
            Leftover(name=name, peer=machine, why=f"{machine} cannot be reached")
            for name, machine in names.items()
            if machine not in connected and self._may_stand(machine, name)
        ]

    def _may_stand(self, machine: str, name: str) -> bool:
        # A relay does not stand beside every worker: it counts only if it was
        # seen.
        guessed = is_beside(name) and not self._book.knows(machine)
        full = process_name(self._cluster, name)
        return not guessed and self._book.may_run(machine, full)

    def remember(self, left: Iterable[Leftover]) -> None:
        """Keep what could not be stopped, together with what was known of before."""
        known = {(one.peer, one.name): one for one in self._journal.record.leftovers}
        known |= {(one.peer, one.name): one for one in left}
        self._keep(known.values())

    def settled(self, machine: str) -> None:
        """Forget the leftovers of a machine that runs only wanted processes."""
        self._keep(o for o in self._journal.record.leftovers if o.peer != machine)

    def _keep(self, leftovers: Iterable[Leftover]) -> None:
        # A machine that left the settings is out of our hands.
        known = tuple(one for one in leftovers if self._is_known(one.peer))
        self._journal.change(leftovers=known)
        self._store.update(leftovers=self._journal.record.leftovers)

    def _is_known(self, machine: str) -> bool:
        try:
            self._machines.get(machine)
        except HostError:
            return False
        return True

    def machines_missing(self) -> tuple[str, ...]:
        """Machines of the goal that are not connected."""
        plan = self._journal.record.goal.plan
        connected = {machine.name for machine in self._machines.all()}
        return tuple(n for n in machines_of(plan) if n not in connected) if plan else ()
