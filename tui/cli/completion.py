"""Shell completion: its script, and the names it offers. It starts no controller."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
from click.shell_completion import CompletionItem, get_completion_class

from backends.client_config import CLIENTS
from backends.config import Config, load_config, settings
from backends.errors import DllmError
from backends.gateway.keys import KeyFile
from backends.mesh.pairings import PairingFile
from backends.paths import user_paths
from backends.plan_files import kept_plans
from backends.state import DEFAULT_CLUSTER, ClusterSnapshot
from tui.cli.command import PROGRAM, Command
from tui.cli.output import show
from tui.model.files import theme_folders

if TYPE_CHECKING:
    from backends.client.client import ControllerClient

    Source = Callable[[click.Context], Iterable[str]]

T = TypeVar("T")

EXAMPLES = """
eval "$(dllm-tui completion bash)"         in ~/.bashrc
eval "$(dllm-tui completion zsh)"          in ~/.zshrc, after compinit
dllm-tui completion fish | source          in ~/.config/fish/config.fish
"""
VARIABLE = "_DLLM_TUI_COMPLETE"
SHELLS = ("bash", "zsh", "fish")
PATIENCE_S = 1.0
"""The user waits after Tab: a controller that is silent longer is skipped."""
# A shell puts a completion into the line as it is: it must mean nothing there.
_PLAIN = re.compile(r"[\w.@%+=:,/-]+", re.ASCII)
_PATH_STARTS = ("/", ".", "~")


@click.command(cls=Command, watches=True, json=False, examples=EXAMPLES)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a shell completion script.

    It completes commands, options, and the names of clusters, peers, models,
    processes, links, devices and themes.
    """
    cli = click.get_current_context().find_root().command
    kind = get_completion_class(shell)
    assert kind is not None, "click completes in these shells"
    show(kind(cli, {}, PROGRAM, VARIABLE).source())


def completions(
    source: str, context: click.Context, typed: str
) -> list[CompletionItem]:
    """The names of a source below that begin as typed; for models, files too."""
    wanted = dict.fromkeys(n for n in _found(source, context) if n.startswith(typed))
    items = [CompletionItem(name) for name in wanted if _PLAIN.fullmatch(name)]
    if source == "models" and (not items or typed.startswith(_PATH_STARTS)):
        return [CompletionItem(typed, type="file")]
    return items


def _found(source: str, context: click.Context) -> list[str]:
    # A shell that asks for completions has no use for an error.
    with contextlib.suppress(DllmError, OSError):
        return list(SOURCES[source](context))
    return []


def theme_names() -> list[str]:
    files = (f for d in theme_folders(user_paths()) for f in d.glob("*.toml"))
    return sorted(file.stem for file in files)


def _chats(_: click.Context) -> list[str]:
    listing = _told(lambda client: client.chats.listing())
    return [chat.name or chat.id for chat in listing.chats] if listing else []


def _plan_names() -> list[str]:
    folders = user_paths().plans_dir, user_paths().launches_dir
    return [kept.name for folder in folders for kept in kept_plans(folder)]


def _hosts(_: click.Context) -> list[str]:
    text = (Path.home() / ".ssh" / "config").read_text(errors="replace")
    lines = (line.split() for line in text.splitlines())
    named = [
        n for words in lines if words[:1] in (["Host"], ["host"]) for n in words[1:]
    ]
    return [name for name in named if not set("*?!") & set(name)]


async def _model_names() -> list[str]:
    from backends.machines.local import local_agent_for_now
    from backends.models.search import search, user_folders

    async with local_agent_for_now(user_paths().run_dir) as agent:
        return [f.name for f in await search(agent, user_folders(_config().model_dirs))]


SOURCES: dict[str, Source] = {
    "chats": _chats,
    "clusters": lambda _: [
        DEFAULT_CLUSTER,
        *sorted(file.stem for file in user_paths().clusters_dir.glob("*.json")),
    ],
    "devices": lambda ctx: [d.id for p in _snapshot(ctx).peers for d in p.devices],
    "heads": lambda _: ["local", *sorted(_config().peers)],
    "hosts": _hosts,
    "consoles": lambda _: [
        one.name
        for one in PairingFile(user_paths().worker_pairings_file).read().consoles
    ],
    "keys": lambda _: [key.name for key in KeyFile(user_paths().keys_file).read()],
    "links": lambda ctx: ["all", *(link.worker for link in _snapshot(ctx).links)],
    "models": lambda _: sorted(asyncio.run(_model_names())),
    "peers": lambda _: sorted(_config().peers),
    "plans": lambda _: _plan_names(),
    "processes": lambda ctx: [process.name for process in _snapshot(ctx).processes],
    "programs": lambda _: CLIENTS,
    "settings": lambda _: [setting.name for setting in settings(_config(), "")],
    "themes": lambda _: theme_names(),
}


def _config() -> Config:
    return load_config(user_paths())


def _snapshot(context: click.Context) -> ClusterSnapshot:
    cluster = context.params.get("cluster") or DEFAULT_CLUSTER
    return _told(lambda client: client.snapshot(), cluster) or ClusterSnapshot()


def _told(
    ask: Callable[[ControllerClient], Awaitable[T]], cluster: str = DEFAULT_CLUSTER
) -> T | None:
    from backends.client.client import ControllerClient

    async def answer() -> T | None:
        async with asyncio.timeout(PATIENCE_S):
            client = ControllerClient(cluster=cluster)
            return await ask(client) if await client.running() else None

    with contextlib.suppress(TimeoutError):
        return asyncio.run(answer())
    return None
