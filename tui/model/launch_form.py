"""The launch form: reads the typed texts into settings, or reports errors."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from backends.errors import PlanError
from backends.machine_names import at_peer
from backends.server_settings import (
    CTX_MIN,
    check_cache_types,
    check_context,
    check_draft_tokens,
    check_slots,
    check_threads,
    checked_arguments,
    settings_apart,
)
from backends.split.buffers import slot_tokens
from backends.split.flags import DEVICES_MAX
from backends.state import (
    AUTO_DRAFT,
    DRAFT_MAX,
    MTP_DRAFT,
    NGRAM_DRAFT,
    NO_DRAFT,
    FlashAttention,
    ModelInfo,
    Plan,
    ServerSettings,
)
from tui.model.launch_settings import LaunchSettings

PRESETS_MAX = 6
PRESET_MIN = 256
FIELDS = {
    "ctx_size": "context",
    "cache_type_k": "K cache",
    "cache_type_v": "V cache",
    "flash_attention": "flash attention",
    "slots": "slots",
    "workers": "local workers",
    "worker_threads": "worker threads",
    "threads": "head threads",
    "draft": "draft",
    "draft_max": "draft tokens",
    "extra_args": "arguments",
}
"""Names of the fields, in their order, and what a person calls them."""
OPTIONAL = ("threads", "worker_threads")
NUMBERS = ("ctx_size", "slots", "draft_max", "workers", *OPTIONAL)


@dataclass(frozen=True)
class FormReading:
    """The settings that the texts mean, or the errors by name of field."""

    settings: LaunchSettings | None
    wrong: Mapping[str, str]


@dataclass(frozen=True)
class LaunchForm:
    """Reads and writes the texts for one plan."""

    plan: Plan
    model: ModelInfo
    directory: str
    """The directory of relative paths in the arguments."""

    def texts(self, settings: LaunchSettings) -> dict[str, str]:
        server = settings.server
        return {
            "ctx_size": str(settings.ctx_size),
            "cache_type_k": server.cache_type_k,
            "cache_type_v": server.cache_type_v,
            "flash_attention": server.flash_attention.value,
            "slots": str(server.slots),
            "draft": server.draft,
            "draft_max": str(server.draft_max),
            "workers": str(settings.workers),
            "worker_threads": _shown(settings.worker_threads),
            "threads": _shown(server.threads),
            "extra_args": shlex.join(settings.extra_args),
        }

    def presets(self) -> tuple[str, ...]:
        most = self.model.n_ctx_train or self.plan.ctx_size
        halves = (most >> shift for shift in range(PRESETS_MAX))
        return tuple(str(size) for size in halves if size >= PRESET_MIN)[::-1]

    def hints(self, texts: Mapping[str, str]) -> dict[str, str]:
        """A hint for each field, shown while it has no error."""
        trained = self.model.n_ctx_train
        return {
            "ctx_size": f"tokens; trained for {trained}" if trained else "tokens",
            "slots": self._slots_hint(texts),
            "draft_max": "drafted at a time, with a draft",
            "workers": "CPU workers on this machine",
            "worker_threads": "of each; empty: the cores shared out",
            "threads": "of llama-server; empty: as it chooses",
            "extra_args": "",
        }

    def _slots_hint(self, texts: Mapping[str, str]) -> str:
        numbers = [_number(texts.get(name, "")) for name in ("ctx_size", "slots")]
        if None in numbers or not numbers[1]:
            return "requests answered at once"
        ctx_size, slots = numbers[0] or 0, numbers[1]
        if slots == 1:
            return "one request at a time"
        each = slot_tokens(ctx_size, ServerSettings(slots=slots))
        return f"requests at once, {each} tokens each"

    def read(self, texts: Mapping[str, str]) -> FormReading:
        """Every field; what is wrong with one says nothing of the others."""
        wrong: dict[str, str] = {}
        numbers: dict[str, int | None] = {}
        for name in NUMBERS:
            numbers[name] = value = _number(texts[name])
            if value is None and not (name in OPTIONAL and not texts[name].strip()):
                wrong[name] = f"{FIELDS[name].capitalize()} must be a whole number."
        further = self._read_arguments(texts["extra_args"], wrong)
        server = ServerSettings(
            cache_type_k=texts["cache_type_k"],
            cache_type_v=texts["cache_type_v"],
            slots=_given(numbers["slots"], 1),
            flash_attention=FlashAttention(texts["flash_attention"]),
            threads=numbers["threads"],
            draft=self._draft(texts["draft"]),
            draft_max=_given(numbers["draft_max"], DRAFT_MAX),
        )
        settings = LaunchSettings(
            ctx_size=_given(numbers["ctx_size"], CTX_MIN),
            server=server,
            workers=_given(numbers["workers"], 0),
            worker_threads=numbers["worker_threads"],
            extra_args=further,
        )
        self._check(settings, wrong)
        return FormReading(None if wrong else settings, wrong)

    def _check(self, settings: LaunchSettings, wrong: dict[str, str]) -> None:
        server, ctx_size = settings.server, settings.ctx_size
        checks: dict[str, Callable[[], None]] = {
            "ctx_size": lambda: check_context(ctx_size, self.model),
            "slots": lambda: check_slots(server.slots, ctx_size),
            "threads": lambda: check_threads(server.threads),
            "draft_max": lambda: check_draft_tokens(server.draft_max),
            "worker_threads": lambda: check_threads(settings.worker_threads),
            "cache_type_v": lambda: check_cache_types(server, self.model),
        }
        for name, check in checks.items():
            if name in wrong or (name == "slots" and "ctx_size" in wrong):
                continue
            try:
                check()
            except PlanError as error:
                wrong[name] = str(error)
        if settings.workers > DEVICES_MAX:
            wrong["workers"] = f"Give 0 to {DEVICES_MAX}."

    def _draft(self, text: str) -> str:
        draft = text.strip() or NO_DRAFT
        if draft in (NO_DRAFT, NGRAM_DRAFT, MTP_DRAFT, AUTO_DRAFT) or at_peer(draft):
            return draft
        return os.path.normpath(os.path.join(self.directory, os.path.expanduser(draft)))

    def _read_arguments(self, text: str, wrong: dict[str, str]) -> tuple[str, ...]:
        try:
            words = shlex.split(text)
        except ValueError:
            wrong["extra_args"] = "Unclosed quote."
            return ()
        _, further = settings_apart(words, ServerSettings())
        if len(further) != len(words):
            wrong["extra_args"] = _own_field(words, further)
            return ()
        try:
            return checked_arguments(
                further, head=self.plan.head, directory=self.directory
            )
        except PlanError as error:
            wrong["extra_args"] = str(error)
            return ()


def _own_field(words: list[str], further: tuple[str, ...]) -> str:
    left = list(further)
    for word in words:
        if left and left[0] == word:
            left.pop(0)
        else:
            return f"{word} has a field of its own above."
    raise AssertionError("no word was taken out")


def _number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _given(number: int | None, otherwise: int) -> int:
    return otherwise if number is None else number


def _shown(number: int | None) -> str:
    return "" if number is None else str(number)
