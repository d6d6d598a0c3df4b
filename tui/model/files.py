"""The files of the console: what it remembers between two runs, and its themes."""

from __future__ import annotations

from pathlib import Path

import msgspec

from backends.errors import DllmError, disk_errors
from backends.paths import Paths
from backends.state import DEFAULT_CLUSTER, NOT_JSON, Plan
from backends.writing import write_private

BUILTIN_FOLDER = Path(__file__).resolve().parents[2] / "themes"


class Remembered(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state file; every field may be missing."""

    theme: str = ""
    zoomed: str = ""
    """Id of the pane that had the whole screen."""
    layouts: dict[str, str] = {}
    """The layout of each screen, by its name."""
    shares: dict[str, float] = {}
    """By screen and row of panes, the part of the row that its first pane has."""
    plans: dict[str, Plan] = {}
    """The last plan shown of each cluster, launched or not, by the cluster's name."""

    def plan_of(self, cluster: str) -> Plan | None:
        return self.plans.get(cluster)

    def with_plan(self, cluster: str, plan: Plan | None) -> Remembered:
        """With this plan of a cluster; None, which is none yet, forgets nothing."""
        if plan is None:
            return self
        return msgspec.structs.replace(self, plans={**self.plans, cluster: plan})

    def beside(self, there: Remembered, cluster: str) -> Remembered:
        """With what another console has remembered since of all clusters but one."""
        both = there.with_plan(cluster, self.plan_of(cluster))
        return msgspec.structs.replace(self, plans=both.plans)


def recall(path: Path) -> Remembered:
    """Read the state file; a missing one is an empty memory.

    Raises:
        DllmError: it is there but cannot be read or understood.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Remembered)
    except FileNotFoundError:
        return Remembered()
    except (OSError, *NOT_JSON) as error:
        raise DllmError(
            f"What the console remembered in {path} cannot be read ({error})",
            "It starts afresh and will be written anew.",
        ) from error


def recall_if_whole(path: Path) -> tuple[Remembered, DllmError | None]:
    try:
        return recall(path), None
    except DllmError as error:
        return Remembered(), error


def remember(path: Path, memory: Remembered, cluster: str = DEFAULT_CLUSTER) -> None:
    """Write the state file in one step, readable by this user only.

    The plans of other clusters than this stay as they were written last.
    """
    memory = memory.beside(recall_if_whole(path)[0], cluster)
    with disk_errors("write", path, "The console forgets its layout."):
        write_private(path, msgspec.json.encode(memory), durable=False)


def theme_folders(paths: Paths) -> list[Path]:
    """Folders of theme files: ours, then the user's own."""
    return [BUILTIN_FOLDER, paths.config_dir / "themes"]
