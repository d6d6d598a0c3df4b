"""The decision to put a relay beside a worker, with the reason; pure.

The two relays speak TLS under a key of their own, also where the link goes
through SSH. The far one listens on the loopback of the worker's machine: every
user there could dial and read our files. The near end of a tunnel may be a port too.
If one of both programs was built without TLS, no relay stands beside the worker.
"""

from __future__ import annotations

import hashlib
import hmac

from msgspec.structs import replace

from backends.direct_address import DirectAddress
from backends.machine_names import LOCAL
from backends.split.flags import used_workers
from backends.state import PairMode, Plan, Value, WorkerSpec

IDENTITY_DIGITS = 32
CAN_SEAL = "worker:tls"
CAN_COMPRESS = "worker:zstd"


class Pairing(Value, frozen=True, kw_only=True):
    """The way the relay of the head meets one worker."""

    why: str
    """A sentence without its full stop."""
    program: str = ""
    """``dllm-relay`` on the worker's machine; empty: the head's relay is alone."""
    models: tuple[str, ...] = ()
    """Files there that hold the model, for all that is known."""
    key: str = ""
    """The key of both ends."""
    identity: str = ""
    """As whom the head's relay comes, whichever process it is."""
    data: DirectAddress = DirectAddress()
    """Its second address, for a connection without a tunnel."""

    def __repr__(self) -> str:
        return f"Pairing(why={self.why!r}, program={self.program!r})"

    @property
    def paired(self) -> bool:
        return bool(self.program)

    def keyed(self, worker: str, secret: str) -> Pairing:
        """The same with the key of a worker's pair, and its head's identity.

        ``secret`` is made anew for every launch and kept with its goal: a relay started
        again, by whatever controller, so has the key of the one that stayed.
        """
        return replace(
            self,
            key=_derived(secret, f"key {worker}"),
            identity=_derived(secret, f"head {worker}")[:IDENTITY_DIGITS],
        )


class PairEnd(Value, frozen=True, kw_only=True):
    machine: str
    program: str = ""
    """Its ``dllm-relay``."""
    features: tuple[str, ...]
    """The features of that helper, as its agent says."""
    models: tuple[str, ...] = ()
    searched: str = ""
    """The folders there that were searched for models: `` in A or B``."""
    data: DirectAddress = DirectAddress()


def may_pair(plan: Plan, worker: WorkerSpec) -> bool:
    return plan.relay and not alone_by_plan(plan, worker)


def paired_workers(plan: Plan) -> tuple[WorkerSpec, ...]:
    return tuple(worker for worker in used_workers(plan) if may_pair(plan, worker))


def alone_by_plan(plan: Plan, worker: WorkerSpec) -> str:
    """Why a plan wants no relay beside a worker; empty where it wants one."""
    if worker.endpoint:
        return "somebody else started its rpc-server, and no relay stands beside that"
    if plan.pair is PairMode.NEVER:
        return "pairs are turned off (pair = never)"
    if plan.pair is PairMode.AUTO and worker.peer == plan.head:
        return "no network in between"
    return ""


def pairing_of(there: PairEnd, head: PairEnd) -> Pairing:
    """The pairing, without its key, of a worker that is to have a relay beside it."""
    if open_end := _without(there, head, CAN_SEAL):
        mend = "" if open_end == LOCAL else f", then dllm-tui peers setup {open_end}"
        return Pairing(
            why=f"dllm-relay on {open_end} was built without TLS, which a pair needs:"
            f" install OpenSSL's headers there (Debian: libssl-dev){mend}"
        )
    home = "the model on disk: weights that are equal stay there"
    cross = f"no copy of the model{there.searched}: its weights cross"
    why = f"{there.machine} has {home if there.models else cross}"
    if plain := _without(there, head, CAN_COMPRESS):
        why += f"; not compressed, for dllm-relay on {plain} was built without zstd"
    return Pairing(
        why=why,
        program=there.program,
        models=there.models,
        data=DirectAddress() if there.machine == head.machine else there.data,
    )


def _without(there: PairEnd, head: PairEnd, feature: str) -> str:
    return next((m.machine for m in (there, head) if feature not in m.features), "")


def _derived(secret: str, purpose: str) -> str:
    return hmac.new(secret.encode(), purpose.encode(), hashlib.sha256).hexdigest()
