"""``dllm-tui inspect``: what a GGUF holds, layer by layer, from its header alone."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from backends.config import load_config
from backends.errors import ModelError
from backends.machines.host import local_host_for_now
from backends.models.folders import user_folders
from backends.models.layers import read_model
from backends.models.search import find_model
from backends.models.thin import thin_words
from backends.paths import user_paths
from backends.units import format_bytes, format_percent, format_ranges
from tui.cli.options import completing
from tui.cli.output import emit_json, run
from tui.kit.safe_text import safe_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from backends.state import Layer, ModelInfo

EPILOG = """\b
Examples:
  dllm-tui inspect ~/models/llama-3.1-8b-q4_k_m.gguf
  dllm-tui inspect big-00001-of-00004.gguf     any part stands for all
  dllm-tui inspect glm-4.7-flash               a name from the catalogue
  dllm-tui inspect MODEL --json | jq '.layers[].bytes'
"""
TOLD_SHARE = 0.005
_PATH_STARTS = ("/", "./", "../", "~")
_GROUPS = (
    ("attention", "attention"),
    ("ffn", "FFN"),
    ("experts", "experts"),
    ("recurrent", "state"),
    ("other", "other"),
)
"""Fields of ``LayerBytes`` and their columns; an empty column is left out."""


@click.command("inspect", epilog=EPILOG)
@click.argument("model", shell_complete=completing("models"))
@click.option("--json", "as_json", is_flag=True, help="Print JSON, nothing else.")
def inspect(model: str, as_json: bool) -> None:
    """Show what MODEL holds: layers, their bytes and quants, KV per token.

    MODEL is a GGUF file or a name from the catalogue. Only headers are read.
    """
    info = read_model(resolve(model))
    if as_json:
        emit_json(info)
    else:
        _show(info)


def resolve(model: str) -> Path:
    """The file meant by a path or a catalogue name.

    Raises:
        ModelError: it is neither, or its name is no text.
    """
    path = Path(os.path.expanduser(model))
    if not is_text(model):
        raise ModelError(
            f"The name {safe_line(model)} is not valid UTF-8",
            "Rename the file, or give a link to it another name.",
        )
    if os.path.exists(path) or model.startswith(_PATH_STARTS):
        return path
    return run(_found(model))


async def _found(name: str) -> Path:
    paths = user_paths()
    folders = user_folders(load_config(paths).model_dirs)
    async with local_host_for_now(paths.run_dir) as host:
        return await find_model(name, host, folders)


def is_text(name: str) -> bool:
    """Whether a name is UTF-8; what is not reaches us as lone surrogates."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _show(info: ModelInfo) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(file=sys.stdout, markup=False, highlight=False, emoji=False)
    console.print(Text(safe_line(info.name), style="bold"))
    for label, text in facts(info):
        line = Text(f"{label:<15}", style="dim")
        console.print(line.append(safe_line(text), style="not dim"))
    console.print()
    console.print(layer_table(info))


def facts(info: ModelInfo) -> list[tuple[str, str]]:
    """The model as a whole: label and text, one line each."""
    lines = [
        ("file", info.path if len(info.files) < 2 else _parts_text(info)),
        ("format", _format_text(info)),
        ("architecture", f"{info.arch}, {info.file_type}"),
        ("layers", f"{info.n_layer} + output"),
        ("width", f"{info.n_embd}, vocabulary {info.n_vocab}"),
        ("heads", f"{info.n_head}, KV heads {info.n_head_kv}"),
        ("context", f"{info.n_ctx_train} tokens trained"),
        ("chat template", "yes" if info.has_chat_template else "no"),
    ]
    if info.n_expert:
        lines.insert(6, ("experts", f"{info.n_expert}, {info.n_expert_used} used"))
    if info.thin:
        held = f"{thin_words(info.thin)}, {format_bytes(info.thin.kept_bytes)}"
        lines.insert(1, ("there", held))
    if info.unknown_types:
        lines.append(("unknown types", _unknown_text(info)))
    return lines


def _parts_text(info: ModelInfo) -> str:
    return f"{info.path} and {len(info.files) - 1} more parts"


def _format_text(info: ModelInfo) -> str:
    size = format_bytes(info.size_bytes)
    order = f"GGUF v{info.gguf_version}, {info.byte_order}-endian"
    return f"{order}, {size}, {info.n_tensors} tensors"


def _unknown_text(info: ModelInfo) -> str:
    return f"{', '.join(info.unknown_types)} (sized by the gap to the next tensor)"


def layer_table(info: ModelInfo) -> Table:
    """Rows of equal layers, then embedding, output and totals."""
    from rich.table import Table

    shown = [
        (f, t) for f, t in _GROUPS if any(getattr(x.groups, f) for x in info.layers)
    ]
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("layers", overflow="fold", min_width=12)
    for title in ("each", *(title for _, title in shown), "~KV/token"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("quants", overflow="fold")
    for layers in equal_layers(info.layers):
        groups = [format_bytes(getattr(layers[0].groups, name)) for name, _ in shown]
        kv = format_bytes(layers[0].kv_bytes_per_token)
        label = f"{format_ranges(layer.index for layer in layers)} ×{len(layers)}"
        size = format_bytes(layers[0].bytes)
        table.add_row(label, size, *groups, kv, quant_mix(layers[0]))
    for row in _sums(info, len(shown)):
        table.add_row(*row)
    return table


def _sums(info: ModelInfo, n_groups: int) -> list[list[str]]:
    """The last rows: embedding, output and everything together."""
    blank = [""] * n_groups
    tied = "the token embedding again (tied)" if info.tied_output else ""
    kv = sum(layer.kv_bytes_per_token for layer in info.layers)
    return [
        ["embedding", format_bytes(info.embedding_bytes), *blank, "", ""],
        ["output", format_bytes(info.output_bytes), *blank, "", tied],
        ["total", format_bytes(info.tensor_bytes), *blank, format_bytes(kv), ""],
    ]


def equal_layers(layers: Sequence[Layer]) -> list[list[Layer]]:
    """Layers that differ in nothing but their index together, lowest first."""

    def content(layer: Layer) -> tuple[object, ...]:
        quants = tuple(sorted(layer.quants.items()))
        return layer.bytes, layer.groups, quants, layer.kv_bytes_per_token

    rows: dict[tuple[object, ...], list[Layer]] = {}
    for layer in layers:
        rows.setdefault(content(layer), []).append(layer)
    return list(rows.values())


def quant_mix(layer: Layer) -> str:
    """``Q4_K 78 %, Q6_K 22 %``, the largest first; types under 1 % only named."""
    parts = []
    for name, size in layer.quants.items():
        share = size / layer.bytes if layer.bytes else 0.0
        parts.append(f"{name} {format_percent(share)}" if share >= TOLD_SHARE else name)
    return safe_line(", ".join(parts))
