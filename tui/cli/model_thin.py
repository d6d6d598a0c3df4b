"""``dllm-tui models thin``: a file with a model's header and some of its layers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from backends.units import format_bytes
from tui.cli.options import completing
from tui.cli.output import emit_json, json_option, run, say, show

if TYPE_CHECKING:
    from backends.models.thinning import ThinFile, ThinPlan

EXAMPLES = """
\b
Examples:
  dllm-tui models thin glm-4.7-flash --keep output,0-9 --dry-run   how much it would be
  dllm-tui models thin glm-4.7-flash --keep output,0-9 --out head.gguf
  dllm-tui models thin big-00001-of-00004.gguf --keep 10-46 --out /srv/models

The head needs a file with its own layers, the first ones for its CPU, the last and the
output for its GPUs; each worker, one with its. The rest then goes to workers:
dllm-tui up --model head.gguf …
"""


@click.command("thin", epilog=EXAMPLES)
@click.argument("model", shell_complete=completing("models"))
@click.option(
    "--keep",
    required=True,
    metavar="PARTS",
    help="What is to be there: layers, and the output (output,0-9,12).",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="The file to write, or a directory for it; else beside MODEL, with -thin.",
)
@click.option("--dry-run", is_flag=True, help="Only tell how much it would be.")
@json_option
def thin(model: str, keep: str, out: Path | None, dry_run: bool, as_json: bool) -> None:
    """Write a thin copy of MODEL: its whole header, some layers, holes for the rest.

    It takes the disk space of what is kept. The embedding is always kept, and so are
    the small tensors of no layer. Which bytes are there, what it was made from, and
    hashes of what is not stand in the file itself: a hole is filled from a worker's own
    file with just those bytes, or the load ends. Nothing is overwritten.
    """
    from backends.models.thinning import plan_thin
    from tui.cli.inspect import resolve

    plan = plan_thin(resolve(model), keep, out)
    say(
        f"{format_bytes(plan.kept_bytes)} of {format_bytes(plan.tensor_bytes)} are "
        f"kept in {plan.targets[0]}; {format_bytes(plan.free_bytes)} are free there."
    )
    written = () if dry_run else run(_written(plan))
    if as_json:
        emit_json({"plan": plan, "written": written})
    for file in () if as_json else written:
        show(f"{format_bytes(file.kept_bytes):>10}  {file.path}")


async def _written(plan: ThinPlan) -> tuple[ThinFile, ...]:
    from backends.models.thinning import write_thin
    from tui.cli.progress import ProgressLine, ticking

    line = ProgressLine()

    def on_bytes(done: int) -> None:
        detail = f"{format_bytes(done)} of {format_bytes(plan.size_bytes)}"
        line.show("reading", done / plan.size_bytes, detail)

    async with ticking(line):
        return await write_thin(plan, on_bytes)
