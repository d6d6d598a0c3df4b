"""llama-server's settings and further arguments: limits, and what works together."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec

from backends.errors import PlanError
from backends.machine_names import LOCAL
from backends.split.buffers import cache_type, is_quantized, is_unfused
from backends.state import FlashAttention, ModelInfo, ServerSettings

CTX_MIN = 16
CTX_STRETCH_MAX = 8
"""Further than this times its training no scaling of positions carries a model."""
CTX_UNKNOWN_MAX = 1 << 24
"""For a model that does not say what it was trained for."""
SLOTS_MAX = 256
"""As many sequences as llama.cpp keeps apart."""
THREADS_MAX = 1024
DRAFT_TOKENS_MAX = 64
"""More drafted tokens at a time are never all accepted."""


def check_server(server: ServerSettings, ctx_size: int, model: ModelInfo) -> None:
    check_slots(server.slots, ctx_size)
    check_threads(server.threads)
    check_draft_tokens(server.draft_max)
    check_cache_types(server, model)


def check_context(ctx_size: int, model: ModelInfo) -> None:
    most = most_context(model)
    if ctx_size < CTX_MIN:
        raise PlanError(
            f"A context of {ctx_size} tokens is too small",
            f"At least {CTX_MIN} (--context).",
        )
    if ctx_size > most:
        trained = model.n_ctx_train
        why = f"the model was trained for {trained}" if trained else "none is that long"
        raise PlanError(
            f"A context of {ctx_size} tokens is too large: {why}",
            f"At most {most} (--context).",
        )


def most_context(model: ModelInfo) -> int:
    return model.n_ctx_train * CTX_STRETCH_MAX or CTX_UNKNOWN_MAX


def check_slots(slots: int, ctx_size: int) -> None:
    if not 1 <= slots <= SLOTS_MAX:
        raise PlanError(
            f"{slots} slots cannot be had", f"Give 1 to {SLOTS_MAX} (--slots)."
        )
    if ctx_size // slots < CTX_MIN:
        raise PlanError(
            f"A context of {ctx_size} tokens is too small for {slots} slots, "
            "which share it",
            f"Give {slots * CTX_MIN} tokens or more (--context) or fewer --slots.",
        )


def check_threads(threads: int | None) -> None:
    if threads is not None and not 1 <= threads <= THREADS_MAX:
        raise PlanError(
            f"{threads} threads cannot be started", f"Give 1 to {THREADS_MAX}."
        )


def check_draft_tokens(count: int) -> None:
    if not 1 <= count <= DRAFT_TOKENS_MAX:
        raise PlanError(
            f"{count} tokens cannot be drafted at a time",
            f"Give 1 to {DRAFT_TOKENS_MAX} (--draft-max).",
        )


def check_cache_types(server: ServerSettings, model: ModelInfo) -> None:
    """Refuse types that are none, do not fit the model's heads, or need fused steps."""
    for name in (server.cache_type_k, server.cache_type_v):
        cache_type(name)
    if model.one_cache_type and server.cache_type_k != server.cache_type_v:
        raise PlanError(
            f"K cannot be stored as {server.cache_type_k} and V as "
            f"{server.cache_type_v}: the model keeps them as one (MLA)",
            "Give --cache-type-k and --cache-type-v the same type.",
        )
    if is_quantized(server.cache_type_v) and is_unfused(server):
        raise PlanError(
            f"V cannot be stored as {server.cache_type_v} without flash attention",
            "Give --cache-type-v f16, or leave flash attention on.",
        )
    if is_unfused(server):
        return
    _check_blocks("K", server.cache_type_k, model.k_head_lengths)
    _check_blocks("V", server.cache_type_v, model.v_head_lengths)


def _check_blocks(which: str, name: str, lengths: Sequence[int]) -> None:
    """llama.cpp stores each head in whole blocks."""
    values = cache_type(name).values
    odd = [length for length in lengths if length % values]
    if odd:
        raise PlanError(
            f"{which} cannot be stored as {name}: the model's heads have {odd[0]} "
            f"values, no multiple of {values}",
            f"Give --cache-type-{which.lower()} f16 or bf16.",
        )


_PLACING = "Say which device holds what by the split (--split, --exclude)."
# Arguments that a plan decides, and the way to ask for them instead.
_OURS = {
    ("-m", "--model"): "The plan has its model: take another (--model).",
    ("-mu", "--model-url", "-hf", "-hfr", "--hf-repo", "-hff", "--hf-file"): (
        "Get the file first, and take that as the model (--model)."
    ),
    ("-c", "--ctx-size"): "The context is a setting of its own (--context).",
    ("--port",): "The port is a setting of its own (--port, api_port).",
    ("--host",): (
        "llama-server listens on the loopback alone; api_host says where the API is."
    ),
    ("--rpc",): "Take machines into the split instead (--peer).",
    ("-dev", "--device"): _PLACING,
    ("-ngl", "--gpu-layers", "--n-gpu-layers"): _PLACING,
    ("-ts", "--tensor-split"): _PLACING,
    ("-mg", "--main-gpu"): _PLACING,
    ("-fit", "--fit"): _PLACING,
}
_HINTS = {name: hint for names, hint in _OURS.items() for name in names}

# llama-server's names of a plan's settings.
_SETTINGS = {
    name: setting
    for setting, names in {
        "cache_type_k": ("-ctk", "--cache-type-k"),
        "cache_type_v": ("-ctv", "--cache-type-v"),
        "slots": ("-np", "--parallel"),
        "flash_attention": ("-fa", "--flash-attn"),
        "threads": ("-t", "--threads"),
    }.items()
    for name in names
}
_NUMBERS = frozenset({"slots", "threads"})
_FLASH_ATTENTION = {
    **dict.fromkeys(("on", "enabled", "true", "1"), FlashAttention.ON),
    **dict.fromkeys(("off", "disabled", "false", "0"), FlashAttention.OFF),
    **dict.fromkeys(("auto", "-1"), FlashAttention.AUTO),
}

# Options whose value is a file or a folder, by llama-server's own help.
_PATHS = frozenset(
    [
        *("-md", "--model-draft", "--spec-draft-model", "-mv", "--model-vocoder"),
        *("-mm", "--mmproj", "--lora", "--control-vector"),
        *("--log-file", "--log-prompts-dir", "--grammar-file"),
        *("-jf", "--json-schema-file", "-lcs", "--lookup-cache-static"),
        *("-lcd", "--lookup-cache-dynamic", "--path", "--ui-config-file"),
        *("--webui-config-file", "--mcp-servers-config", "--api-key-file"),
        *("--ssl-key-file", "--ssl-cert-file", "--slot-save-path", "--media-path"),
        *("--models-dir", "--models-preset", "--chat-template-file"),
        "--video-ffmpeg-dir",
    ]
)
_COUNTED = frozenset({"-ncmoe", "--n-cpu-moe", "-ncffn", "--n-cpu-ffn"})
"""With a number of layers; 0 does nothing."""
_OVERRIDING = frozenset({"-ot", "--override-tensor", "-cmoe", "--cpu-moe"})
# Arguments that put tensors elsewhere than the plan does.
_MOVING = _OVERRIDING | _COUNTED | {"-sm", "--split-mode"}
_KV_OFFLOAD = {
    **dict.fromkeys(("-kvo", "--kv-offload"), True),
    **dict.fromkeys(("-nkvo", "--no-kv-offload"), False),
}
# Arguments with a file of weights that llama-server reads itself.
_WEIGHTS = frozenset(
    [
        *("-md", "--model-draft", "--spec-draft-model", "-mv", "--model-vocoder"),
        *("-mm", "--mmproj", "--lora", "--lora-scaled"),
        *("--control-vector", "--control-vector-scaled"),
    ]
)
# Of these several may be given, between commas, each with a scale after a colon.
_LISTS = frozenset({"--lora", "--control-vector"})
_SCALED = frozenset({"--lora-scaled", "--control-vector-scaled"})


def checked_arguments(
    arguments: Sequence[str], *, head: str, directory: str
) -> tuple[str, ...]:
    """The same arguments, with whole paths.

    ``directory`` is where relative paths count from on our own machine; those for a
    llama-server on another machine must be whole already.
    """
    arguments = [_spelled(argument) for argument in arguments]
    for argument in arguments:
        name = argument.partition("=")[0]
        if name in _HINTS:
            raise PlanError(
                f"{name} cannot be given to llama-server: the plan decides it",
                _HINTS[name],
            )
    before = ("", *arguments)
    return tuple(
        _resolved(option, value, head, directory)
        for option, value in zip(before, arguments, strict=False)
    )


def settings_apart(
    arguments: Sequence[str], server: ServerSettings
) -> tuple[ServerSettings, tuple[str, ...]]:
    """Settings given in llama-server's words, and the arguments that are left.

    A value we cannot read stays where it is: llama-server says what is wrong with it.
    """
    found: dict[str, Any] = {}
    rest: list[str] = []
    words = [_spelled(argument) for argument in arguments]
    while words:
        word = words.pop(0)
        setting = _SETTINGS.get(word, "")
        value = _value(setting, words[0]) if setting and words else None
        if value is None:
            rest.append(word)
        else:
            found[setting] = value
            words.pop(0)
    return msgspec.structs.replace(server, **found), tuple(rest)


def moving(arguments: Sequence[str]) -> list[str]:
    """The arguments that may move tensors elsewhere than the plan, however spelled."""
    names = [_spelled(argument).partition("=")[0] for argument in arguments]
    return [name for name in names if name in _MOVING]


BY_TENSOR = ("-sm", "tensor")
"""A part of each tensor on every device, in the place of whole layers."""


def split_mode(arguments: Sequence[str]) -> str:
    """``-sm`` as llama-server reads it: the last word counts."""
    words = [_spelled(argument) for argument in arguments]
    modes = [v for o, v in pairwise(words) if o in ("-sm", "--split-mode")]
    return modes[-1] if modes else "layer"


def pipelines(arguments: Sequence[str]) -> bool:
    """True unless they keep llama.cpp from work on several devices at once."""
    words = [_spelled(argument) for argument in arguments]
    offloads = [_KV_OFFLOAD[word] for word in words if word in _KV_OFFLOAD]
    counts = [value for option, value in pairwise(words) if option in _COUNTED]
    return (
        split_mode(arguments) == "layer"
        and all(offloads[-1:])
        and _OVERRIDING.isdisjoint(words)
        and set(counts) <= {"0"}
    )


def without_tensor(arguments: Sequence[str]) -> tuple[str, ...]:
    """The same, in whole layers again if the end asks for parts of tensors."""
    words = tuple(arguments)
    return words[:-2] if words[-2:] == BY_TENSOR else words


def is_by_tensor(arguments: Sequence[str]) -> bool:
    return split_mode(arguments) == "tensor"


def weight_files(arguments: Sequence[str]) -> list[str]:
    words = [_spelled(argument) for argument in arguments]
    given = [value for option, value in pairwise(words) if option in _WEIGHTS]
    files = [file for value in given for file in value.split(",")]
    scaled = [file.rpartition(":")[0] for file in files]
    return [file for file in (*files, *scaled) if file]


def _spelled(word: str) -> str:
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if word.startswith("--") else word


def _value(setting: str, text: str) -> object | None:
    if setting in _NUMBERS:
        positive = text.isascii() and text.isdigit() and int(text) > 0
        return int(text) if positive else None
    if setting == "flash_attention":
        return _FLASH_ATTENTION.get(text)
    return None if text.startswith("-") else text


def _resolved(option: str, value: str, head: str, directory: str) -> str:
    if option in _LISTS:
        return ",".join(_whole(p, option, head, directory) for p in value.split(","))
    if option in _SCALED:
        parts = [part.rpartition(":") for part in value.split(",")]
        whole = (_whole(p or s, option, head, directory) for p, _, s in parts)
        scales = (f":{scale}" if path else "" for path, _, scale in parts)
        return ",".join(map("".join, zip(whole, scales, strict=True)))
    return _whole(value, option, head, directory) if option in _PATHS else value


def _whole(path: str, option: str, head: str, directory: str) -> str:
    if posixpath.isabs(path):
        return path
    if head != LOCAL or not directory:
        raise PlanError(
            f"{option} {path} is not a whole path, and llama-server runs on {head}",
            f"Give the path it has there, from the root: {option} /…/{path}",
        )
    return posixpath.normpath(posixpath.join(directory, path))
