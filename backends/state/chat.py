"""Questions to the model, its answers, and log text."""

from __future__ import annotations

from backends.state.base import Value
from backends.state.snapshots import Failure


class ChatMessage(Value, frozen=True, kw_only=True):
    """One turn of a conversation."""

    role: str
    content: str


class Sampling(Value, frozen=True, kw_only=True):
    """How the next token is drawn; None leaves the server's default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    max_tokens: int | None = None
    seed: int | None = None


class ChatRequest(Value, frozen=True, kw_only=True):
    """What is asked of the model."""

    messages: tuple[ChatMessage, ...]
    sampling: Sampling = Sampling()


class ChatTimings(Value, frozen=True, kw_only=True):
    """Figures of one answer, as llama-server measured them."""

    prompt_tokens: int = 0
    prompt_ms: float = 0.0
    tokens: int = 0
    tok_per_s: float = 0.0
    first_token_s: float | None = None
    """Seconds from sending the request to its first token, measured by us."""


class ChatDelta(Value, frozen=True, kw_only=True):
    """One piece of a streamed answer; the last one has ``done``."""

    text: str = ""
    reasoning: str = ""
    done: bool = False
    finish_reason: str = ""
    ahead: int = 0
    """Requests that are answered before this one."""
    waiting: str = ""
    """What it waits for before it is asked: ``the cluster is loading``."""
    prompt_progress: float | None = None
    """0…1 while the prompt is being read."""
    timings: ChatTimings | None = None
    failure: Failure | None = None


class LogChunk(Value, frozen=True, kw_only=True):
    """Text of a process log from byte ``offset`` to ``next_offset``."""

    name: str
    text: str
    offset: int
    next_offset: int
    restarted: bool = False
    """The log is shorter than it was: a new process of the same name."""
