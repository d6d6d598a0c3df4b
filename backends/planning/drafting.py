"""Where on the head a draft model goes, and what does not go beside a draft."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.errors import PlanError
from backends.split.layout import is_head_cpu, make_split
from backends.split.loads import overcommitted, plan_loads
from backends.state import AUTO_DRAFT, NO_DRAFT, Plan, ServerSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from backends.state import Device, ModelInfo

_GUESSING = (
    *("-md", "-hfd", "--model-draft", "--spec-", "--draft", "--hf-repo-draft"),
    *("-devd", "--device-draft", "-ngld", "--gpu-layers-draft"),
    *("--n-gpu-layers-draft", "-otd", "--override-tensor-draft"),
)
"""How llama-server's own arguments begin that say how, and where, to guess."""


def check_draft(plan: Plan) -> None:
    """Refuse a draft that further arguments contradict, or that is not settled.

    Raises:
        PlanError: it says which argument, or what to do.
    """
    draft, guess = plan.server.draft, plan.speculation
    if draft == NO_DRAFT and guess is None:
        return
    for word in plan.extra_args:
        if word.startswith(_GUESSING):
            raise PlanError(
                f"{word} cannot be given beside a draft: the plan decides how to guess",
                "Leave it out, or say --draft none.",
            )
    if draft == AUTO_DRAFT:
        return
    own = guess is not None and guess.device.startswith(f"{plan.head}/")
    if guess is None or guess.draft != draft or (guess.model and not own):
        raise PlanError(
            f"The plan does not say how its draft {draft} runs on {plan.head}",
            "Let the plan be proposed.",
        )


def whole_on(draft: ModelInfo, device: str, plan: Plan) -> Plan:
    """A draft model alone on a device of the head: a plan that takes what it takes."""
    cpu = f"{plan.head}/CPU"
    all_layers = draft.n_layer + 1
    on_cpu = device == cpu
    split = make_split(
        draft.n_layer,
        [cpu] if on_cpu else [cpu, device],
        [all_layers] if on_cpu else [0, all_layers],
    )
    # Its cache is as long as the model's, and of llama.cpp's usual type.
    server = ServerSettings(
        slots=plan.server.slots, flash_attention=plan.server.flash_attention
    )
    return Plan(
        model=draft.path,
        head=plan.head,
        split=split,
        ctx_size=plan.ctx_size,
        server=server,
        engine=plan.engine,
    )


def best_place(
    draft: ModelInfo, plan: Plan, model: ModelInfo, devices: Sequence[Device]
) -> str:
    """The head's first GPU with room for all of a draft model, else its CPU.

    ``devices`` are those of the plan, the head's own among them.
    """
    loads = plan_loads(model, plan)
    own = [device for device in devices if device.id.startswith(f"{plan.head}/")]
    for device in own:
        if is_head_cpu(device.id, plan.head):
            continue
        added = plan_loads(draft, whole_on(draft, device.id, plan))
        if device.id not in overcommitted((*loads, *added), own):
            return device.id
    return f"{plan.head}/CPU"
