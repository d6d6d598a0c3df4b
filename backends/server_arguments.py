"""The further arguments a person gives llama-server: what is theirs and what is ours.

A relative path counts from the person's directory, not from llama-server's; an argument
that places layers, opens ports or names the model is the plan's alone. What a plan has
settings for is taken out and set there.
"""

from __future__ import annotations

import posixpath
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from backends.errors import PlanError
from backends.places import LOCAL
from backends.state import FlashAttention, ServerSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

_PLACING = "Say which device holds what with --split and --exclude."
# Arguments that a plan decides, and the way to ask for them instead.
_OURS = {
    ("-m", "--model"): "Name the model with --model.",
    ("-mu", "--model-url", "-hf", "-hfr", "--hf-repo", "-hff", "--hf-file"): (
        "Name a model file with --model."
    ),
    ("-c", "--ctx-size"): "Give the context with --context.",
    ("--port",): "Give the port with --port, before the two dashes.",
    ("--host",): (
        "llama-server listens on the loopback alone; api_host says where the API is."
    ),
    ("--rpc",): "Name the machines with --peer.",
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
# Arguments that put tensors elsewhere than the plan does.
_MOVING = frozenset(
    [
        *("-ot", "--override-tensor", "-cmoe", "--cpu-moe", "-ncmoe", "--n-cpu-moe"),
        *("-ncffn", "--n-cpu-ffn", "-sm", "--split-mode"),
    ]
)
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

    Raises:
        PlanError: one is the plan's to decide, or a path cannot be told from here.
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


def weight_files(arguments: Sequence[str]) -> list[str]:
    """Files of weights that are named beside the model."""
    words = [_spelled(argument) for argument in arguments]
    given = [value for option, value in pairwise(words) if option in _WEIGHTS]
    files = [file for value in given for file in value.split(",")]
    scaled = [file.rpartition(":")[0] for file in files]
    return [file for file in (*files, *scaled) if file]


def _spelled(word: str) -> str:
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if word.startswith("--") else word


def _value(setting: str, text: str) -> object | None:
    """The value of a setting; None if the text is no such value."""
    if setting in _NUMBERS:
        positive = text.isascii() and text.isdigit() and int(text) > 0
        return int(text) if positive else None
    if setting == "flash_attention":
        return _FLASH_ATTENTION.get(text)
    return None if text.startswith("-") else text


def _resolved(option: str, value: str, head: str, directory: str) -> str:
    """The value of an option, its paths whole; anything else as it is."""
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
