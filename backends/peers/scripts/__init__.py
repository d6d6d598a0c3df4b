"""What is run on other machines: POSIX sh and awk, sent at each call."""

from __future__ import annotations

import re
import shlex
from functools import cache
from importlib.resources import files

_REMARKS = re.compile(r"^[ \t]*#.*\n|^[ \t]+", re.MULTILINE)


@cache
def read_script(name: str) -> str:
    """A file of this folder, without its remarks and indentation.

    Neither may be part of a text of several lines in it.
    """
    return _REMARKS.sub("", files(__name__).joinpath(name).read_text())


@cache
def host_script(*programs: str) -> str:
    """``host.sh`` together with the awk programs that its verb needs."""
    program = shlex.quote("".join(map(read_script, programs)))
    return f"program={program}\n{read_script('host.sh')}"
