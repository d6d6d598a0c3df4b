"""Plans as small TOML files: saved by name, compared, and the last launches.

A file has what a person decides of a plan: the model, the layers of each device, and
settings that are not the usual ones. Everything else is found anew when it is used, so
that it can be shared.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import re
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from backends.errors import PlanError, did_you_mean, disk_errors
from backends.machine_names import LOCAL
from backends.split.experts import places_text
from backends.state import Ask, LayerRange, PairMode, Plan, ServerSettings
from backends.writing import write_new, write_private

log = logging.getLogger(__name__)

LAUNCHES_MAX = 20
"""The launches kept; the oldest goes first."""
FILE_BYTES_MAX = 1 << 16
HEADING = "# A plan of dllm-tui: dllm-tui plans launch FILE\n"
_NAME = re.compile(r"\w[\w .+-]{0,63}")


class PlanFile(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    model: str
    split: dict[str, int]
    """Whole layers by device, in order; the output counts as one more."""
    head: str = LOCAL
    context: int = 4096
    relay: bool = True
    pair: PairMode = PairMode.AUTO
    worker_threads: int | None = None
    experts: tuple[LayerRange, ...] = ()
    """Device, first and last layer of experts that are not with their layers."""
    arguments: tuple[str, ...] = ()
    """Further ones for llama-server."""
    server: dict[str, Any] = {}
    """The fields of ``ServerSettings`` that are not the usual ones."""

    @classmethod
    def of(cls, plan: Plan) -> PlanFile:
        usual = msgspec.to_builtins(ServerSettings())
        server = msgspec.to_builtins(plan.server)
        return cls(
            model=plan.model,
            split={share.device: share.layers for share in plan.split.shares},
            head=plan.head,
            context=plan.ctx_size,
            relay=plan.relay,
            pair=plan.pair,
            worker_threads=plan.asked.worker_threads if plan.asked else None,
            experts=plan.experts,
            arguments=plan.extra_args,
            server={name: v for name, v in server.items() if v != usual[name]},
        )

    def ask(self) -> Ask:
        """The request for this plan; the controller finds the rest."""
        return Ask(
            model=self.model,
            split=self.split,
            head=None if self.head == LOCAL else self.head,
            ctx_size=self.context,
            relay=self.relay,
            pair=self.pair,
            worker_threads=self.worker_threads,
            experts=self.experts,
            extra_args=self.arguments,
            server=msgspec.convert(self.server, ServerSettings),
        )

    def renamed(self, old: str, new: str) -> PlanFile:
        """The same of a machine that has another name now."""

        def named(text: str, sign: str = "/") -> str:
            machine, found, rest = text.partition(sign)
            return f"{new}{found}{rest}" if found and machine == old else text

        server = dict(self.server)
        if isinstance(draft := server.get("draft"), str):
            server["draft"] = named(draft, ":")
        return msgspec.structs.replace(
            self,
            model=named(self.model, ":"),
            split={named(device): count for device, count in self.split.items()},
            head=new if self.head == old else self.head,
            experts=tuple(
                msgspec.structs.replace(one, device=named(one.device))
                for one in self.experts
            ),
            server=server,
        )

    def text(self) -> str:
        # Imported here because only who writes needs it.
        import tomlkit

        content = msgspec.to_builtins(self)
        return HEADING + tomlkit.dumps(
            {k: v for k, v in content.items() if v is not None}
        )


class KeptPlan(NamedTuple):
    name: str
    path: Path
    at: float
    """Unix seconds: saved, or launched."""
    plan: PlanFile


def read_plan(path: Path) -> PlanFile:
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
        if len(raw) > FILE_BYTES_MAX:
            raise PlanError(f"{path} is too large for a plan")
        plan = msgspec.convert(tomllib.loads(raw.decode()), PlanFile)
        plan.ask()
    except OSError as error:
        raise PlanError(f"Cannot read {path} ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        # The errors of TOML, of text that is none, and of what a plan does not have.
        raise PlanError(
            f"{path} is no plan ({error})", "Mend it, or delete it."
        ) from error
    return plan


def _kept(path: Path) -> KeptPlan:
    return KeptPlan(path.stem, path, path.stat().st_mtime, read_plan(path))


def kept_plans(folder: Path) -> Iterator[KeptPlan]:
    found = []
    for path in folder.glob("*.toml"):
        try:
            found.append(_kept(path))
        except (OSError, PlanError):
            continue
    yield from sorted(found, key=lambda kept: (-kept.at, kept.name))


def find_plan(named: str, *folders: Path) -> KeptPlan:
    """The plan of that name in one of the folders, or of that file."""
    paths = [folder / f"{named}.toml" for folder in folders if _NAME.fullmatch(named)]
    if named.endswith(".toml"):
        paths.append(Path(named).expanduser())
    for path in paths:
        if path.is_file():
            return _kept(path)
    known = [kept.name for folder in folders for kept in kept_plans(folder)]
    hint = f"{did_you_mean(named, known)}See dllm-tui plans list."
    raise PlanError(f"There is no plan {named}", hint)


def save_plan(
    folder: Path, name: str, plan: PlanFile, *, replaces: bool = False
) -> Path:
    """Save a plan by a name.

    Raises:
        FileExistsError: there is one of that name, and it is not to be replaced.
        PlanError: the name is none, or the disk refuses it.
    """
    if not _NAME.fullmatch(name):
        raise PlanError(
            f"{name!r} is no name for a plan",
            "Use up to 64 letters, digits, spaces, dots, dashes and underscores.",
        )
    path, content = folder / f"{name}.toml", plan.text().encode()
    with disk_errors("write", path, kind=PlanError, passes=FileExistsError):
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True, mode=0o700)
        if replaces:
            write_private(path, content)
        else:
            write_new(path, content)
    return path


def rename_in_plans(old: str, new: str, *folders: Path) -> None:
    """Give a machine its new name in kept plans; each stays as old as it is."""
    for kept in (one for folder in folders for one in kept_plans(folder)):
        plan = kept.plan.renamed(old, new)
        if plan == kept.plan:
            continue
        try:
            write_private(kept.path, plan.text().encode())
            os.utime(kept.path, (kept.at, kept.at))
        except OSError as error:
            log.warning("%s has the old name %s still: %s", kept.path, old, error)


def keep_launch(folder: Path, plan: PlanFile) -> None:
    """Keep a launch; the same plan again takes the place of its last one."""
    before = list(kept_plans(folder))
    name = time.strftime("%Y%m%d-%H%M%S")
    for number in itertools.count(1):
        # Several clusters may be launched in one second.
        with contextlib.suppress(FileExistsError):
            save_plan(folder, f"{name}-{number}", plan)
            break
    others = [kept for kept in before if kept.plan != plan]
    for kept in (*(k for k in before if k.plan == plan), *others[LAUNCHES_MAX - 1 :]):
        kept.path.unlink(missing_ok=True)


def plan_changes(old: PlanFile, new: PlanFile) -> list[tuple[str, str, str]]:
    """The differences: each with its name, one value, and the other."""
    one, two = _flat(old), _flat(new)
    names = dict.fromkeys([*one, *two])
    return [
        (name, one.get(name, "—"), two.get(name, "—"))
        for name in names
        if one.get(name) != two.get(name)
    ]


def _flat(plan: PlanFile) -> dict[str, str]:
    usual = msgspec.to_builtins(ServerSettings())
    values = {"model": plan.model, "head": plan.head, "context": plan.context}
    values |= {f"layers of {device}": count for device, count in plan.split.items()}
    values |= usual | plan.server
    values |= {"relay": plan.pair.value if plan.relay else "off"}
    values |= {"worker threads": plan.worker_threads}
    values |= {"experts": places_text(plan.experts) or "with their layers"}
    values |= {"arguments": " ".join(plan.arguments)}
    texts = {name: str(value) for name, value in values.items() if value is not None}
    order = [device for device, count in plan.split.items() if count]
    return texts | {"order": ", ".join(order)}
