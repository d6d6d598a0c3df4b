"""What ``up --dry-run`` prints: plan, memory, command lines."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import msgspec

from backends.split.layout import format_range
from backends.state import ProcessRole
from backends.units import format_bytes
from tui.cli.session import prompts_text
from tui.kit.sources import told
from tui.work.launch_settings import unusual

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backends.state import Preview


def preview_json(preview: Preview) -> dict[str, Any]:
    """A preview as ``--json`` shows it: the plan carries its layer ranges."""
    value: dict[str, Any] = msgspec.to_builtins(preview)
    value["plan"]["layers"] = value.pop("layers")
    return value


def preview_text(preview: Preview) -> str:
    """The same for people; devices in the order in which ``--split`` counts them."""
    return "\n".join(_lines(preview))


def _lines(preview: Preview) -> Iterator[str]:
    plan = preview.plan
    yield f"{plan.model} · context {plan.ctx_size} · head {plan.head}"
    if settings := unusual(plan):
        yield settings
    yield ""
    yield f"{'device':24}{'layers':>7}  {'which':18}{'needs':>10}{'has':>10}  source"
    which = {r.device: format_range(r, plan.split.n_layer) for r in preview.layers}
    for share, memory in zip(plan.split.shares, preview.memory, strict=True):
        yield (
            f"{share.device:24}{share.layers:>7}  {which.get(share.device, '—'):18}"
            f"{told(format_bytes(memory.total_bytes), memory.source):>10}"
            f"{_available(preview, share.device):>10}"
            f"  {memory.source.value}"
        )
    servers = (c.argv for c in preview.commands if c.role is ProcessRole.SERVER)
    yield from filter(None, map(prompts_text, servers))
    yield from (("", *preview.notes) if preview.notes else ())
    if preview.refusal is not None:
        yield from ("", f"It would be refused: {preview.refusal.sentence}")
    for command in preview.commands:
        yield from ("", f"{command.name} on {command.machine}:")
        yield f"  {_command_line(command.argv)}"


def _available(preview: Preview, device: str) -> str:
    known = preview.available_bytes.get(device)
    return "?" if known is None else format_bytes(known)


def _command_line(argv: tuple[str, ...]) -> str:
    """A line one could give to a shell, but for ports not chosen yet."""
    return " ".join(part if "<port>" in part else shlex.quote(part) for part in argv)
