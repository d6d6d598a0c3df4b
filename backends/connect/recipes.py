"""What each client has to be told, in its own words."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from backends.connect.jsonc import Jsonc
from backends.connect.served import NO_KEY, VARIABLE, Served
from backends.connect.yaml_text import (
    with_entry,
    with_entry_below,
    with_settings,
    without_settings,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ANSWER_PART = 4
"""Where a client wants to know how long an answer may be: so much of the context."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
"""What Zed takes for a word of a name: digits are one, and so is each hump."""


@dataclass(frozen=True)
class Recipe:
    """How one client is led to what is served."""

    merge: Callable[[str], str]
    """From the text of its file as it is to that with our part in it."""
    file: Path | None = None
    """Its configuration; None where it has none."""
    use: tuple[str, ...] = ()
    """Command lines that use it then."""
    key: str = VARIABLE
    """The environment variable in which it looks for a key that is needed."""
    more: Mapping[str, str] = field(default_factory=dict)
    """Further environment variables it needs."""

    @property
    def text(self) -> str:
        """Our part alone."""
        return self.merge("")


@dataclass(frozen=True)
class Client:
    """A program that can use the API."""

    about: str
    recipe: Callable[[Served], Recipe]


def _json(*settings: tuple[Sequence[str], object]) -> Callable[[str], str]:
    def merge(text: str) -> str:
        document = Jsonc(text)
        for path, value in settings:
            document.set(path, value)
        return document.text

    return merge


def _folder(variable: str, default: str) -> Path:
    """A folder that a variable may name."""
    named = os.environ.get(variable, "")
    return Path(named) if named.startswith("/") else Path.home() / default


def _pi(it: Served) -> Recipe:
    def at(name: str) -> list[str]:
        return ["providers", it.provider, name]

    model = {
        "id": it.model,
        "name": it.model,
        "reasoning": False,
        "input": ["text"],
        "contextWindow": it.ctx_size,
        "maxTokens": it.ctx_size // ANSWER_PART,
        "compat": {"supportsDeveloperRole": False, "maxTokensField": "max_tokens"},
    }
    return Recipe(
        file=_folder("PI_CODING_AGENT_DIR", ".pi/agent") / "models.json",
        merge=_json(
            (at("baseUrl"), it.url),
            (at("api"), "openai-completions"),
            (at("apiKey"), VARIABLE if it.needs_key else NO_KEY),
            (at("models"), [model]),
        ),
        use=(f"pi --provider {it.provider} --model {shlex.quote(it.model)}",),
    )


def _opencode(it: Served) -> Recipe:
    def at(*names: str) -> list[str]:
        return ["provider", it.provider, *names]

    folder = _folder("XDG_CONFIG_HOME", ".config") / "opencode"
    commented = folder / "opencode.jsonc"
    limit = {"context": it.ctx_size, "output": it.ctx_size // ANSWER_PART}
    return Recipe(
        file=commented if commented.exists() else folder / "opencode.json",
        merge=_json(
            (["$schema"], "https://opencode.ai/config.json"),
            (at("npm"), "@ai-sdk/openai-compatible"),
            (at("name"), "dllm-tui"),
            (at("options", "baseURL"), it.url),
            (at("options", "apiKey"), _braced(it)),
            (at("models"), {it.model: {"name": it.model, "limit": limit}}),
        ),
        use=(f"opencode --model {shlex.quote(f'{it.provider}/{it.model}')}",),
    )


def _braced(it: Served) -> str:
    return f"{{env:{VARIABLE}}}" if it.needs_key else NO_KEY


def _aider(it: Served) -> Recipe:
    settings = {
        "model": f"openai/{it.model}",
        "openai-api-base": it.url,
        "show-model-warnings": False,
    }
    no_key = {"openai-api-key": NO_KEY}

    def merge(text: str) -> str:
        if it.needs_key:
            # It would be taken instead of the one in the environment.
            return with_settings(without_settings(text, no_key), settings)
        return with_settings(text, settings | no_key)

    return Recipe(
        file=Path.home() / ".aider.conf.yml",
        merge=merge,
        use=("aider",),
        key="OPENAI_API_KEY",
    )


def _continue(it: Served) -> Recipe:
    sign = f"({it.provider})"
    entry = {
        "name": f"{it.model} {sign}",
        "provider": "openai",
        "model": it.model,
        "apiBase": it.url,
        "apiKey": _secret(it),
        "defaultCompletionOptions": {"contextLength": it.ctx_size},
        "roles": ["chat", "edit", "apply"],
    }
    heads = {"name": "dllm-tui", "version": "0.0.1", "schema": "v1"}

    def is_ours(there: Mapping[str, object]) -> bool:
        return str(there.get("name")).endswith(sign)

    def merge(text: str) -> str:
        text = text if text.strip() else with_settings("", heads)
        return with_entry_below(text, "models", entry, is_ours)

    return Recipe(
        file=_folder("CONTINUE_GLOBAL_DIR", ".continue") / "config.yaml", merge=merge
    )


def _secret(it: Served) -> str:
    """Continue finds it in ``.env`` beside its file."""
    return f"${{{{ secrets.{VARIABLE} }}}}" if it.needs_key else NO_KEY


def _zed(it: Served) -> Recipe:
    def at(name: str) -> list[str]:
        return ["language_models", "openai_compatible", it.provider, name]

    model = {
        "name": it.model,
        "display_name": it.model,
        "max_tokens": it.ctx_size,
        "capabilities": {
            "tools": True,
            "images": False,
            "parallel_tool_calls": False,
            "prompt_cache_key": False,
        },
    }
    # Named by the provider; Zed asks for a key also where none is needed.
    variable = "_".join([*_WORD.findall(it.provider), "API_KEY"]).upper()
    return Recipe(
        file=_folder("XDG_CONFIG_HOME", ".config") / "zed" / "settings.json",
        merge=_json((at("api_url"), it.url), (at("available_models"), [model])),
        use=("zed",),
        key=variable,
        more={} if it.needs_key else {variable: NO_KEY},
    )


def _llm(it: Served) -> Recipe:
    entry = {"model_id": it.provider, "model_name": it.model, "api_base": it.url}
    if it.needs_key:
        entry["api_key_name"] = "dllm"
    usual = _folder("XDG_CONFIG_HOME", ".config")
    if sys.platform == "darwin":
        usual = Path.home() / "Library" / "Application Support"
    folder = _folder("LLM_USER_PATH", str(usual / "io.datasette.llm"))
    ask = f"llm -m {it.provider} 'Why is the sky blue?'"
    return Recipe(
        file=folder / "extra-openai-models.yaml",
        merge=lambda text: with_entry(
            text, entry, lambda there: there.get("model_id") == it.provider
        ),
        # A key in no variable: llm keeps it in a file of its own.
        use=("llm keys set dllm", ask) if it.needs_key else (ask,),
        key="",
    )


_PYTHON = """\
from openai import OpenAI

client = OpenAI(base_url={url}, api_key={key})
answer = client.chat.completions.create(
    model={model},
    messages=[{{"role": "user", "content": "Why is the sky blue?"}}],
)
print(answer.choices[0].message.content)
"""


def _openai_python(it: Served) -> Recipe:
    key = f'os.environ["{VARIABLE}"]' if it.needs_key else repr(NO_KEY)
    text = _PYTHON.format(url=repr(it.url), key=key, model=repr(it.model))
    return Recipe(merge=lambda _: f"import os\n\n{text}" if it.needs_key else text)


def _curl(it: Served) -> Recipe:
    message = {"role": "user", "content": "Why is the sky blue?"}
    body = json.dumps({"model": it.model, "messages": [message], "max_tokens": 200})
    lines = [
        f"curl {shlex.quote(f'{it.url}/chat/completions')}",
        "-H 'Content-Type: application/json'",
        *([f'-H "Authorization: Bearer ${VARIABLE}"'] if it.needs_key else []),
        f"-d {shlex.quote(body)}",
    ]
    text = " \\\n  ".join(lines) + "\n"
    return Recipe(merge=lambda _: text)


CLIENTS = {
    "aider": Client("pair programming in a terminal", _aider),
    "continue": Client("the assistant in VS Code and JetBrains", _continue),
    "curl": Client("a command line to try it with", _curl),
    "llm": Client("Simon Willison's command line", _llm),
    "openai-python": Client("OpenAI's package for Python", _openai_python),
    "opencode": Client("the coding agent in a terminal", _opencode),
    "pi": Client("the coding agent in a terminal", _pi),
    "zed": Client("the editor", _zed),
}
