"""Split GGUFs: ``name-00001-of-0000N.gguf``, the naming of llama_split_path."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, TypeVar

from backends.errors import ModelError
from backends.printable import printable

if TYPE_CHECKING:
    from backends.models.header import Header

AnyPath = TypeVar("AnyPath", bound=PurePath)

PARTS_MAX = 1024
"""Ours; five digits would allow 99 999."""
_PATTERN = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)


@dataclass(frozen=True, slots=True)
class PartName:
    prefix: str
    number: int
    """1 for the first."""
    count: int


def part_of(file_name: str) -> PartName | None:
    match = _PATTERN.fullmatch(file_name)
    if match is None:
        return None
    number, count = int(match[2]), int(match[3])
    return PartName(match[1], number, count) if 1 <= number <= count else None


def part_name(prefix: str, number: int, count: int) -> str:
    return f"{prefix}-{number:05d}-of-{count:05d}.gguf"


def part_paths(path: AnyPath) -> list[AnyPath]:
    """All parts of a split, in order, by the path of one; else the path itself."""
    part = part_of(path.name)
    if part is None:
        return [path]
    numbers = range(1, part.count + 1)
    return [path.with_name(part_name(part.prefix, n, part.count)) for n in numbers]


def first_part(path: Path) -> Path:
    """The part to open for a path: the first of a split, or the path itself.

    A lone file that is only called like a part stays what it is.
    """
    part = part_of(path.name)
    if part is None or part.number == 1:
        return path
    first = path.with_name(part_name(part.prefix, 1, part.count))
    if _there(first) or not _there(path):
        return first
    raise missing_part(first, part.count)


def other_parts(first: Header) -> list[Path]:
    count = first.metadata.get("split.count", 0)
    if type(count) is not int or count <= 1:
        return []
    part = part_of(first.path.name)
    if part is None or part.count != count or count > PARTS_MAX:
        name = printable(first.path.name)
        expected = printable(part_name(first.path.stem, 1, count))
        raise ModelError(
            f"{name} is one of {count} parts, but its name does not say so",
            f"Name the parts as they were: {expected} and so on.",
        )
    paths = part_paths(first.path)[1:]
    for path in paths:
        if not _there(path):
            raise missing_part(path, count)
    return paths


def check_part(header: Header, number: int) -> None:
    stated = header.metadata.get("split.no")
    if stated != number - 1:
        raise ModelError(
            f"{printable(header.path.name)} is not part {number}: its metadata says "
            f"split.no = {printable(str(stated))}",
            "The parts were renamed or come from different models.",
        )


def _there(path: Path) -> bool:
    # Not Path.exists: that raises where a directory may not be entered.
    return os.path.exists(path)


def missing_part(path: Path, count: int) -> ModelError:
    return ModelError(
        f"{printable(path.name)} is missing, one of the {count} parts of the model",
        f"Put it beside the others in {printable(str(path.parent))}.",
    )
