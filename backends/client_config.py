"""The configuration that each client of the API needs, in its own format."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from backends.errors import DllmError, UsageError
from backends.gateway.listen_settings import is_loopback
from backends.planning.blueprint import model_alias
from backends.state import DEFAULT_CLUSTER, ClusterSnapshot, Plan, Value
from backends.writing import write_new

VARIABLE = "DLLM_API_KEY"
"""The environment variable in which clients find a key; no file gets one."""
NO_KEY = "none"
"""Sent by clients that insist on a key, if none is needed."""
ANSWER_PART = 4
"""The longest answer, as a part of the context, for clients that want to know it."""
# Zed splits a provider's name into words: digits are one, and so is each hump.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


class ServedApi(Value, frozen=True, kw_only=True):
    url: str
    """With ``/v1``."""
    model: str
    ctx_size: int
    """Tokens that one request has room for."""
    provider: str = "dllm"
    """The name that clients give to this API."""

    @property
    def needs_key(self) -> bool:
        host = urlsplit(self.url).hostname or ""
        return host != "localhost" and not is_loopback(host)


def served(snapshot: ClusterSnapshot, url: str | None) -> ServedApi:
    """Describe what a cluster serves; ``url`` overrides the address of this machine."""
    plan = snapshot.plan
    if plan is None or snapshot.api_url is None:
        raise DllmError(
            f"Nothing serves (the cluster is {snapshot.state.value}), so there is no "
            "address and no model to tell a client",
            "Launch first: dllm-tui up m.gguf --detach.",
        )
    is_default = snapshot.cluster == DEFAULT_CLUSTER
    return ServedApi(
        url=_whole(url) if url else snapshot.api_url,
        model=model_alias(plan),
        ctx_size=_room(snapshot, plan),
        provider="dllm" if is_default else f"dllm-{snapshot.cluster}",
    )


def _room(snapshot: ClusterSnapshot, plan: Plan) -> int:
    # llama-server gives a slot no more than the model was trained on.
    trained = snapshot.model.n_ctx_train if snapshot.model else 0
    part = plan.ctx_size // plan.server.slots
    return min(part, trained) if trained else part


def _whole(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_web = parts.scheme in ("http", "https") and parts.hostname
    except ValueError:
        is_web = None
    if not is_web or any(not c.isprintable() or c in " \"'\\" for c in url):
        raise UsageError(
            f"{url!r} is no URL", "Give one such as http://studio:8090/v1."
        )
    return url.rstrip("/").removesuffix("/v1") + "/v1"


@dataclass(frozen=True)
class Recipe:
    """The part of one client's configuration that leads it to the API."""

    text: str
    file: Path | None = None
    """Its configuration file; None if it has none."""
    use: tuple[str, ...] = ()
    """Command lines that use it then."""
    key: str = VARIABLE
    """The environment variable in which it looks for a key that is needed."""
    more: Mapping[str, str] = field(default_factory=dict)
    """Further environment variables it needs."""

    def write(self) -> Path:
        if self.file is None:
            raise UsageError(
                "This client has no file to write to",
                "Leave --write out to see what to do.",
            )
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_new(self.file, self.text.encode())
        except FileExistsError:
            raise DllmError(
                f"{self.file} is there already and stays as it is",
                "Leave --write out to see the part to put in by hand.",
            ) from None
        except OSError as error:
            raise DllmError(f"Cannot write {self.file} ({error.strerror})") from error
        return self.file


@dataclass(frozen=True)
class ClientProgram:
    about: str
    recipe: Callable[[ServedApi], Recipe]


def _json(settings: Mapping[str, object]) -> str:
    return json.dumps(settings, indent=2, ensure_ascii=False) + "\n"


def _yaml(settings: Mapping[str, object], indent: str = "") -> str:
    # JSON values are YAML too, and no reader takes them for others.
    return "".join(
        f"{indent}{name}: {json.dumps(value, ensure_ascii=False)}\n"
        for name, value in settings.items()
    )


def _yaml_entry(settings: Mapping[str, object], indent: str = "") -> str:
    return f"{indent}- " + _yaml(settings, f"{indent}  ").lstrip(" ")


def _folder(variable: str, default: str) -> Path:
    named = os.environ.get(variable, "")
    return Path(named) if named.startswith("/") else Path.home() / default


def _pi(it: ServedApi) -> Recipe:
    model = {
        "id": it.model,
        "name": it.model,
        "reasoning": False,
        "input": ["text"],
        "contextWindow": it.ctx_size,
        "maxTokens": it.ctx_size // ANSWER_PART,
        "compat": {"supportsDeveloperRole": False, "maxTokensField": "max_tokens"},
    }
    provider = {
        "baseUrl": it.url,
        "api": "openai-completions",
        "apiKey": VARIABLE if it.needs_key else NO_KEY,
        "models": [model],
    }
    return Recipe(
        _json({"providers": {it.provider: provider}}),
        file=_folder("PI_CODING_AGENT_DIR", ".pi/agent") / "models.json",
        use=(f"pi --provider {it.provider} --model {shlex.quote(it.model)}",),
    )


def _opencode(it: ServedApi) -> Recipe:
    folder = _folder("XDG_CONFIG_HOME", ".config") / "opencode"
    commented = folder / "opencode.jsonc"
    limit = {"context": it.ctx_size, "output": it.ctx_size // ANSWER_PART}
    key = f"{{env:{VARIABLE}}}" if it.needs_key else NO_KEY
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "dllm-tui",
        "options": {"baseURL": it.url, "apiKey": key},
        "models": {it.model: {"name": it.model, "limit": limit}},
    }
    return Recipe(
        _json(
            {
                "$schema": "https://opencode.ai/config.json",
                "provider": {it.provider: provider},
            }
        ),
        file=commented if commented.exists() else folder / "opencode.json",
        use=(f"opencode --model {shlex.quote(f'{it.provider}/{it.model}')}",),
    )


def _aider(it: ServedApi) -> Recipe:
    settings = {
        "model": f"openai/{it.model}",
        "openai-api-base": it.url,
        "show-model-warnings": False,
    }
    # One in the file would be taken instead of the one in the environment.
    no_key = {} if it.needs_key else {"openai-api-key": NO_KEY}
    return Recipe(
        _yaml(settings | no_key),
        file=Path.home() / ".aider.conf.yml",
        use=("aider",),
        key="OPENAI_API_KEY",
    )


def _continue(it: ServedApi) -> Recipe:
    entry = {
        "name": f"{it.model} ({it.provider})",
        "provider": "openai",
        "model": it.model,
        "apiBase": it.url,
        # Continue finds it in ``.env`` beside its file.
        "apiKey": f"${{{{ secrets.{VARIABLE} }}}}" if it.needs_key else NO_KEY,
        "defaultCompletionOptions": {"contextLength": it.ctx_size},
        "roles": ["chat", "edit", "apply"],
    }
    heads = {"name": "dllm-tui", "version": "0.0.1", "schema": "v1"}
    return Recipe(
        f"{_yaml(heads)}models:\n{_yaml_entry(entry, '  ')}",
        file=_folder("CONTINUE_GLOBAL_DIR", ".continue") / "config.yaml",
    )


def _zed(it: ServedApi) -> Recipe:
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
    provider = {"api_url": it.url, "available_models": [model]}
    # Named by the provider; Zed asks for a key also if none is needed.
    variable = "_".join([*_WORD.findall(it.provider), "API_KEY"]).upper()
    return Recipe(
        _json({"language_models": {"openai_compatible": {it.provider: provider}}}),
        file=_folder("XDG_CONFIG_HOME", ".config") / "zed" / "settings.json",
        use=("zed",),
        key=variable,
        more={} if it.needs_key else {variable: NO_KEY},
    )


def _llm(it: ServedApi) -> Recipe:
    entry = {"model_id": it.provider, "model_name": it.model, "api_base": it.url}
    if it.needs_key:
        entry["api_key_name"] = "dllm"
    usual = _folder("XDG_CONFIG_HOME", ".config")
    if sys.platform == "darwin":
        usual = Path.home() / "Library" / "Application Support"
    folder = _folder("LLM_USER_PATH", str(usual / "io.datasette.llm"))
    ask = f"llm -m {it.provider} 'Why is the sky blue?'"
    return Recipe(
        _yaml_entry(entry),
        file=folder / "extra-openai-models.yaml",
        # llm keeps keys in a file of its own, in no variable.
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


def _openai_python(it: ServedApi) -> Recipe:
    key = f'os.environ["{VARIABLE}"]' if it.needs_key else repr(NO_KEY)
    text = _PYTHON.format(url=repr(it.url), key=key, model=repr(it.model))
    return Recipe(f"import os\n\n{text}" if it.needs_key else text)


def _curl(it: ServedApi) -> Recipe:
    message = {"role": "user", "content": "Why is the sky blue?"}
    body = json.dumps({"model": it.model, "messages": [message], "max_tokens": 200})
    lines = [
        f"curl {shlex.quote(f'{it.url}/chat/completions')}",
        "-H 'Content-Type: application/json'",
        *([f'-H "Authorization: Bearer ${VARIABLE}"'] if it.needs_key else []),
        f"-d {shlex.quote(body)}",
    ]
    return Recipe(" \\\n  ".join(lines) + "\n")


CLIENTS = {
    "aider": ClientProgram("pair programming in a terminal", _aider),
    "continue": ClientProgram("the assistant in VS Code and JetBrains", _continue),
    "curl": ClientProgram("a command line to try it with", _curl),
    "llm": ClientProgram("Simon Willison's command line", _llm),
    "openai-python": ClientProgram("OpenAI's package for Python", _openai_python),
    "opencode": ClientProgram("the coding agent in a terminal", _opencode),
    "pi": ClientProgram("the coding agent in a terminal", _pi),
    "zed": ClientProgram("the editor", _zed),
}
