"""``dllm-tui completion``: the script that lets a shell complete our words."""

from __future__ import annotations

import click

from backends.errors import DllmError
from tui.cli.output import show

EXAMPLES = """
\b
Examples:
  eval "$(dllm-tui completion bash)"         in ~/.bashrc
  eval "$(dllm-tui completion zsh)"          in ~/.zshrc, after compinit
  dllm-tui completion fish | source          in ~/.config/fish/config.fish
"""
PROGRAM = "dllm-tui"
VARIABLE = "_DLLM_TUI_COMPLETE"
SHELLS = ("bash", "zsh", "fish")


@click.command(epilog=EXAMPLES)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print what makes SHELL complete commands, options and names.

    Names are those of clusters, peers, models, processes, links, devices and themes.
    """
    from click.shell_completion import get_completion_class

    from tui.cli.main import cli

    kind = get_completion_class(shell)
    if kind is None:
        raise DllmError(f"There is no completion for {shell}")
    show(kind(cli, {}, PROGRAM, VARIABLE).source())
