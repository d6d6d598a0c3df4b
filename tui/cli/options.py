"""Options that several commands have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from backends.errors import UsageError
from backends.server_settings import (
    CTX_MIN,
    DRAFT_TOKENS_MAX,
    SLOTS_MAX,
    THREADS_MAX,
)
from backends.split.cache_types import CACHE_TYPES
from backends.state import (
    CLUSTER_NAME,
    DEFAULT_CLUSTER,
    FlashAttention,
    ServerSettings,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from click.shell_completion import CompletionItem

    Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

CLUSTER_VARIABLE = "DLLM_CLUSTER"


def _checked(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> str | None:
    """A cluster's name.

    Raises:
        UsageError: it is none.
    """
    if value is None or CLUSTER_NAME.fullmatch(value):
        return value
    raise UsageError(
        f"{value!r} is no name for a cluster",
        "Use up to 32 letters, digits, dashes and underscores.",
    )


def completing(source: str) -> Complete:
    """For ``shell_complete``: the names of a source in ``tui.cli.names``."""

    def complete(
        context: click.Context, parameter: click.Parameter, typed: str
    ) -> list[CompletionItem]:
        # Imported here because only a shell that completes needs it.
        from tui.cli.names import completions

        return completions(source, context, typed)

    return complete


class Inherited(click.Option):
    """An option that may stand before the command as well: the last one counts."""

    def consume_value(
        self, ctx: click.Context, opts: Mapping[str, click.Parameter]
    ) -> tuple[Any, ParameterSource]:
        """Find the value; that of the root ranks right after the command's own."""
        value, source = super().consume_value(ctx, opts)
        root = ctx.find_root()
        given = ParameterSource.COMMANDLINE
        if source is not given and root.get_parameter_source(self.name) is given:
            return root.params[self.name], given
        return value, source


cluster_option = click.option(
    "--cluster",
    cls=Inherited,
    metavar="NAME",
    envvar=CLUSTER_VARIABLE,
    show_envvar=True,
    default=DEFAULT_CLUSTER,
    show_default=True,
    callback=_checked,
    shell_complete=completing("clusters"),
    help="Which cluster, where there are several.",
)
any_cluster_option = click.option(
    "--cluster",
    cls=Inherited,
    metavar="NAME",
    envvar=CLUSTER_VARIABLE,
    show_envvar=True,
    callback=_checked,
    shell_complete=completing("clusters"),
    help="Only this cluster.",
)

USUAL = ServerSettings()
_SERVER_OPTIONS = (
    click.option(
        "--context",
        "--ctx",
        "ctx",
        type=click.IntRange(CTX_MIN),
        help="Context length in tokens.",
    ),
    click.option(
        "--cache-type-k",
        type=click.Choice(list(CACHE_TYPES)),
        default=USUAL.cache_type_k,
        show_default=True,
        help="How K of the KV cache is stored.",
    ),
    click.option(
        "--cache-type-v",
        type=click.Choice(list(CACHE_TYPES)),
        default=USUAL.cache_type_v,
        show_default=True,
        help="How V is stored; a quantised one needs flash attention.",
    ),
    click.option(
        "--slots",
        type=click.IntRange(1, SLOTS_MAX),
        default=USUAL.slots,
        show_default=True,
        help="Requests answered at once; they share the context.",
    ),
    click.option(
        "--flash-attention",
        type=click.Choice([choice.value for choice in FlashAttention]),
        default=USUAL.flash_attention.value,
        show_default=True,
        help="Fused attention, which needs less memory.",
    ),
    click.option(
        "--threads",
        type=click.IntRange(1, THREADS_MAX),
        help="Threads of llama-server; else as it chooses.",
    ),
    click.option(
        "--draft",
        metavar="MODEL|ngram|mtp|auto|none",
        default=USUAL.draft,
        show_default=True,
        shell_complete=completing("models"),
        help="Draft tokens, so that several share a round trip: with a small model of "
        "the same vocabulary, from earlier text (ngram), with layers of the model "
        "itself (mtp), or with the fastest of these, measured once (auto).",
    ),
    click.option(
        "--draft-max",
        type=click.IntRange(1, DRAFT_TOKENS_MAX),
        default=USUAL.draft_max,
        show_default=True,
        help="Tokens drafted at a time.",
    ),
    click.option(
        "--worker-threads",
        type=click.IntRange(1, THREADS_MAX),
        help="Threads of each CPU worker here; else the cores shared out.",
    ),
)


def server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """How llama-server is to run: the console's launch settings, as options."""
    for option in reversed(_SERVER_OPTIONS):
        command = option(command)
    return command
