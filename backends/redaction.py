"""Secrets and words left out of what is written down for others to read.

A secret is known by its form, or by the word, argument or member name before it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

LEFT_OUT = "<left out>"
KEY = "<key>"
KEY_FILE = "<key file>"
NAMED_KEY = re.compile(r"\b(?:sk|hf|dllm\d*)[-_][A-Za-z0-9_-]{16,}")
"""API keys and invitations, by how they begin."""
TOLD_KEY = re.compile(
    r"(?i)\b(bearer|api[-_]?key|token|password|passphrase|secret)"
    r"(\s*[=:]\s*|\s+)[\"']?[^\s\"']{6,}"
)
"""A word that says what follows. In prose, ``token`` says nothing of the kind."""
_GIVEN_KEY = re.compile(
    r"(?i)((?:authorization[\"']?\s*:?\s*[\"']?(?:bearer|basic)?|bearer)\s+"
    r"|--(?:api-key|hf-token)\s+"
    r"|(?:api[-_]?key|token|password|passphrase|secret)[\"']?\s*[=:]\s*)"
    r"[\"']?[^\s\"']{6,}"
)
_URL_USER = re.compile(r"(://)[^/\s@]+:[^/\s@]+@")
_KEY_PATH = re.compile(
    r"[^\s\"'=]*/(?:id_(?:rsa|dsa|ecdsa|ed25519)\w*"
    r"|private|(?:[\w.-]*[._-])?(?:key|pem))(?![\w./-])"
)
_SECRET_FLAG = re.compile(
    # Looks at the end first: else its time grows with the square of the length.
    r"-{1,2}(?!-)(?=[^\s=]*\Z)(?:p|sys|hft|private|identity-file"
    r"|(?!no-|cache-prompt$|slot-prompt-similarity$)"
    r"[^\s=]*(?:key|token(?!s)|pass|secret|header|prompt(?!s))[^\s=]*)"
)
_SECRET_MEMBER = re.compile(
    r"(?i)(?:.*(?:[-_]|api))?(?:key|token|password|passphrase|secret)"
)
WORDS = frozenset({"text", "reasoning", "question", "system", "name", "title"})
"""Members of a chat that a person or a model wrote."""
RACE_WORDS = frozenset({"prompt", "pieces"})
"""The same of a race."""
_SIGN = re.compile(r"\S")
COVER = "·"


def is_secret(flag: str) -> bool:
    """True if the value of such an argument is a key, or words of a person."""
    return bool(_SECRET_FLAG.fullmatch(flag))


def shown_argv(argv: Sequence[Any]) -> list[Any]:
    """A command line, or any list, to show: keys and prompts are left out."""
    found = []
    for before, one in zip([None, *argv], argv, strict=False):
        flag, joined, _ = one.partition("=") if isinstance(one, str) else ("", "", "")
        # rpc-server has the same short flag for its port.
        is_port = before == "-p" and isinstance(one, str) and one.isdecimal()
        if isinstance(before, str) and is_secret(before) and not is_port:
            found.append(LEFT_OUT)
        else:
            found.append(f"{flag}={LEFT_OUT}" if joined and is_secret(flag) else one)
    return [_without_passwords(one) if isinstance(one, str) else one for one in found]


def _without_passwords(text: str) -> str:
    return _URL_USER.sub(rf"\1{KEY}@", NAMED_KEY.sub(KEY, text))


def without_keys(value: Any) -> Any:
    """A JSON value without keys, invitations, passwords, and paths of key files."""
    if isinstance(value, str):
        text = _GIVEN_KEY.sub(rf"\1{KEY}", _without_passwords(value))
        return _KEY_PATH.sub(KEY_FILE, text)
    if isinstance(value, dict):
        return {
            without_keys(name): LEFT_OUT
            if one and isinstance(one, str) and _SECRET_MEMBER.fullmatch(str(name))
            else without_keys(one)
            for name, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [without_keys(one) for one in shown_argv(value)]
    return value


def without_words(value: Any, written: frozenset[str] = WORDS) -> Any:
    """JSON with every sign of its ``written`` members covered; spaces stay."""
    if isinstance(value, dict):
        return {
            name: _covered(one) if name in written else without_words(one, written)
            for name, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [without_words(one, written) for one in value]
    return value


def _covered(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_covered(one) for one in value]
    return _SIGN.sub(COVER, value) if isinstance(value, str) else value
