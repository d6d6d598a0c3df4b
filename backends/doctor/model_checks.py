"""Checks of model files: the same bytes on every machine, tensor by tensor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from pathlib import PurePath

from backends.client.client import ControllerClient
from backends.doctor.check import Check, Finding, Verdict, check_of
from backends.errors import DllmError
from backends.machine_names import LOCAL, at_peer
from backends.models.verify import Comparison, compare_tensors
from backends.state import ClusterSnapshot, ModelFile, ModelInfo, Peer
from backends.state.models import TensorSums
from backends.units import format_bytes, format_count

NAMES_SHOWN = 3


def other_files(models: Iterable[ModelFile]) -> Check:
    """Check for files that are called as one here, and hold other bytes."""
    whole = [one for one in models if one.identity and not one.sparse]
    here = {_name(one): one for one in whole if LOCAL in one.held_by}
    findings = [
        Finding(
            machine=machine,
            what=f"{_name(one)} there is another file "
            f"({format_bytes(one.size_bytes)}, here "
            f"{format_bytes(here[_name(one)].size_bytes)})",
        )
        for one in whole
        if (ours := here.get(_name(one))) and ours.identity != one.identity
        for machine in one.held_by
        if machine != LOCAL
    ]
    shared = sum(len(one.held_by) > 1 for one in whole)
    return check_of(
        "model files",
        f"{format_count(shared, 'model')} on several machines, the same by size and "
        "samples",
        findings,
        fix="Copy the right one there (dllm-tui models copy): another quant or version "
        "stays unused, and its weights cross the network.",
    )


def _name(model: ModelFile) -> str:
    there = at_peer(model.path)
    return PurePath(there[1] if there else model.path).name


def differing_weights(snapshots: Iterable[ClusterSnapshot]) -> Check | None:
    """Check what the relays of a serving cluster found different on workers' disks."""
    links = [(snapshot, link) for snapshot in snapshots for link in snapshot.links]
    if not links:
        return None
    findings = [
        Finding(
            machine=_machine_of(snapshot, link.worker),
            what=f"{format_count(link.tensors_differ, 'tensor')} of its file "
            "differ from the head's, and were sent instead",
        )
        for snapshot, link in links
        if link.tensors_differ
    ]
    return check_of(
        "weights",
        "no worker holds other bytes than the head",
        findings,
        fix="Compare them with dllm-tui doctor MODEL, and copy the file anew.",
    )


def _machine_of(snapshot: ClusterSnapshot, worker: str) -> str:
    workers = snapshot.plan.workers if snapshot.plan else ()
    return next((one.peer for one in workers if one.name == worker), worker)


async def tensors(
    client: ControllerClient,
    model: ModelInfo,
    peers: Sequence[Peer],
    told: Callable[[str, int, int], None],
) -> Check:
    """Compare a model with every copy of its name and size, tensor by tensor.

    Each copy is read once in its life; ``told`` hears the machine and how far it is.
    """
    name = PurePath(model.path).name
    copies = [
        (peer.name, found.path)
        for peer in peers
        if peer.facts
        for found in peer.facts.models
        if found.size_bytes == model.size_bytes and PurePath(found.path).name == name
    ]
    if not copies:
        return Check(name="tensors", detail=f"no peer has a copy of {name}")
    places = [(LOCAL, model.path), *copies]
    sums = await asyncio.gather(
        *(_hashed(client, machine, path, told) for machine, path in places),
        return_exceptions=True,
    )
    findings, unread = [], []
    ours, *theirs = sums
    if isinstance(ours, BaseException):
        raise ours
    for (machine, path), found in zip(copies, theirs, strict=True):
        if isinstance(found, DllmError):
            unread.append(f"{machine} is not known: {found.what}")
        elif isinstance(found, BaseException):
            raise found
        else:
            compared = compare_tensors(ours, found, machine=machine, path=path)
            if not compared.same:
                findings.append(_differs(compared))
    return check_of(
        "tensors",
        f"{name} is the same on {', '.join(machine for machine, _ in copies)}",
        findings,
        fix="Its file is damaged, or another one: copy it there anew "
        f"(dllm-tui models copy {name} NAME). Until then what differs is sent.",
        unread="\n".join(unread),
    )


def _differs(compared: Comparison) -> Finding:
    shown = ", ".join(one.name for one in compared.differing[:NAMES_SHOWN])
    more = len(compared.differing) - NAMES_SHOWN
    return Finding(
        machine=compared.machine,
        what=f"{compared.path}: {len(compared.differing)} of "
        f"{format_count(compared.n_tensors, 'tensor')} differ ({shown}"
        f"{f' and {more} more' if more > 0 else ''})",
        verdict=Verdict.FAIL,
    )


async def _hashed(
    client: ControllerClient,
    machine: str,
    path: str,
    told: Callable[[str, int, int], None],
) -> tuple[TensorSums, ...]:
    async with aclosing(client.models.hashing(path, machine=machine)) as progress:
        async for one in progress:
            told(machine, one.done_bytes, one.size_bytes)
            if one.complete:
                return one.tensors
    raise DllmError(f"The hashing on {machine} broke off")
