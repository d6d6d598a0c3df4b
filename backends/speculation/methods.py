"""Speculation methods, and the arguments that llama-server's own help names for them.

``--device`` is also where a draft model goes that has no ``-devd`` and ``-ngld`` of its
own: through the workers, which costs more than it gives.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from backends.engine.ask import SPEC_TYPE, spec_type
from backends.errors import EngineError, PlanError
from backends.state import (
    AUTO_DRAFT,
    MTP_DRAFT,
    NGRAM_DRAFT,
    NO_DRAFT,
    Plan,
    Speculation,
)

DRAFT_MODEL = "draft-simple"
NGRAMS = ("ngram-map-k", "ngram-map-k4v", "ngram-simple")
"""Methods that look up earlier text, the best first; all take two sizes."""
NGRAM_TOKENS = 4
"""Tokens that must have stood in this order before."""
MTP = "draft-mtp"
"""Layers of the model itself (multi-token prediction)."""
ONE_THREAD_BYTES = 16 << 20
"""Up to this size of weights, one thread drafts faster than several.

Threads wait for one another in every layer; one core reads so much in 1 to 2 ms."""
_NEEDED = ("-md", "-devd", "-ngld")
_LENGTHS = ("--spec-draft-n-max", "--draft-max")
"""Options for the draft's length; an engine with both complains about the second."""
_THREADS = "-td"
_BUILD = "Build a newer one: dllm-tui engine build."
_OURS = (
    *("-md", "-hfd", "--model-draft", "--spec-", "--draft", "--hf-repo-draft"),
    *("-devd", "--device-draft", "-ngld", "--gpu-layers-draft"),
    *("--n-gpu-layers-draft", "-otd", "--override-tensor-draft"),
)
"""Beginnings of llama-server's arguments that the plan decides."""


def knows(flags: Collection[str], method: str) -> bool:
    return spec_type(method) in flags


def methods_known(flags: Collection[str]) -> frozenset[str]:
    before = spec_type("")
    return frozenset(f.removeprefix(before) for f in flags if f.startswith(before))


def method_for(flags: Collection[str], draft: str, head: str = "") -> str:
    """The engine's method for a draft; ``head``: that its head is made for."""
    if draft == NGRAM_DRAFT:
        known = [method for method in NGRAMS if knows(flags, method)]
        if known:
            return known[0]
        raise EngineError("This llama.cpp cannot draft without a draft model", _BUILD)
    if draft == MTP_DRAFT:
        head = MTP
    if head and not knows(flags, head):
        raise EngineError(f"This llama.cpp does not know the method {head}", _BUILD)
    if draft == MTP_DRAFT:
        return MTP
    typed = SPEC_TYPE not in flags or knows(flags, head or DRAFT_MODEL)
    if not typed or not set(flags).issuperset(_NEEDED):
        raise EngineError(
            "This llama.cpp cannot keep a draft model on the head alone", _BUILD
        )
    return head or DRAFT_MODEL


def speculation_argv(
    flags: Collection[str],
    method: Speculation,
    model_path: str,
    draft_max: int,
    *,
    is_alone: bool = False,
) -> tuple[str, ...]:
    """Arguments of llama-server that keep all of a draft model on the head.

    ``model_path`` is the draft model's file there. If ``is_alone``, the head's CPU has
    no layers of the model, and its threads would only wait.
    """
    typed = (SPEC_TYPE, method.type) if SPEC_TYPE in flags else ()
    length = next((flag for flag in _LENGTHS if flag in flags), "")
    limit = (length, str(draft_max)) if length else ()
    if method.draft == MTP_DRAFT:
        return (*typed, *limit)
    if not method.model:
        sizes = (("n", NGRAM_TOKENS), ("m", draft_max))
        named = ((f"--spec-{method.type}-size-{name}", n) for name, n in sizes)
        known = [part for flag, n in named if flag in flags for part in (flag, str(n))]
        return (*typed, *known)
    name = method.device.rpartition("/")[2]
    on_cpu = name == "CPU"
    placed = ("-devd", "none" if on_cpu else name)
    layers = ("-ngld", "0" if on_cpu else str(method.n_layer + 1))
    threads = _threads(flags, method, is_alone=is_alone) if on_cpu else ()
    return ("-md", model_path, *placed, *layers, *typed, *limit, *threads)


def _threads(
    flags: Collection[str], method: Speculation, *, is_alone: bool
) -> tuple[str, ...]:
    weights = sum(one.model_bytes for one in method.memory)
    if not 0 < weights <= ONE_THREAD_BYTES or _THREADS not in flags:
        return ()
    return (_THREADS, "1", *(("-t", "1") if is_alone else ()))


def methods_of(plan: Plan) -> tuple[str, ...]:
    """The drafts that ``auto`` compares, in this order.

    ``none`` is first. The likely winner is last, so that it runs already when the
    comparison ends.
    """
    found = plan.speculation.methods if plan.speculation else ()
    return (NO_DRAFT, *(one.draft for one in reversed(found)))


def with_method(plan: Plan, draft: str) -> Plan:
    found = plan.speculation.methods if plan.speculation else ()
    chosen = next((one for one in found if one.draft == draft), None)
    return replace(
        plan,
        server=replace(plan.server, draft=chosen.draft if chosen else NO_DRAFT),
        speculation=chosen and replace(chosen, instead=()),
    )


def check_draft(plan: Plan) -> None:
    """Refuse a draft that further arguments contradict, or that is not settled."""
    draft, found = plan.server.draft, plan.speculation
    if draft == NO_DRAFT and found is None:
        return
    for word in plan.extra_args:
        if word.startswith(_OURS):
            raise PlanError(
                f"{word} cannot be given beside a draft: the plan decides that",
                "Leave it out, or say --draft none.",
            )
    if draft == AUTO_DRAFT:
        return
    own = found is not None and found.device.startswith(f"{plan.head}/")
    if found is None or found.draft != draft or (found.model and not own):
        raise PlanError(
            f"The plan does not say how its draft {draft} runs on {plan.head}",
            "Let the plan be proposed.",
        )
