"""The files of weights that a plan names beside its model: drafts, adapters."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from backends.errors import ModelError, PlanError
from backends.models.header import read_header
from backends.models.parts import part_paths
from backends.models.sparse import has_holes
from backends.places import LOCAL
from backends.printable import printable
from backends.server_arguments import weight_files

if TYPE_CHECKING:
    from backends.state import Plan


async def check_whole(plan: Plan) -> None:
    """Refuse a sparse file that llama-server would read for itself alone.

    What is on a peer is for llama-server there to read; what cannot be read, for it to
    refuse.

    Raises:
        PlanError: it names the file.
    """
    draft = [plan.speculation.model] if plan.speculation else []
    files = [*weight_files(plan.extra_args), *draft] if plan.head == LOCAL else []
    if sparse := await asyncio.to_thread(_first_sparse, files):
        raise PlanError(
            f"{printable(sparse)} is sparse, and what it lacks only the model's own "
            "workers can have",
            "Name the whole file it was made from.",
        )


def _first_sparse(files: list[str]) -> str:
    for file in files:
        for part in part_paths(Path(file)):
            with contextlib.suppress(ModelError, OSError, ValueError):
                if has_holes(read_header(part)):
                    return part.name
    return ""
