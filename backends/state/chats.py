"""Conversations as the controller keeps them, and how they are told while they grow."""

from __future__ import annotations

import msgspec

from backends.state.base import Value
from backends.state.plans import LayerRange
from backends.state.snapshots import Failure

TITLE_CHARS = 48


class ChatMessage(Value, frozen=True, kw_only=True):
    role: str
    content: str


class Sampling(Value, frozen=True, kw_only=True):
    """Settings for drawing the next token; None leaves the server's default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    max_tokens: int | None = None
    seed: int | None = None


class ChatRequest(Value, frozen=True, kw_only=True):
    messages: tuple[ChatMessage, ...]
    sampling: Sampling = Sampling()

    @classmethod
    def greedy(
        cls, text: str, max_tokens: int | None, seed: int | None = None
    ) -> ChatRequest:
        """One question whose answer has the likeliest tokens."""
        sampling = Sampling(temperature=0.0, seed=seed, max_tokens=max_tokens)
        return cls(
            messages=(ChatMessage(role="user", content=text),), sampling=sampling
        )


class ChatTimings(Value, frozen=True, kw_only=True):
    """Figures of one answer, as llama-server measured them."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Tokens of the prompt that the server had read before: they take no time."""
    prompt_ms: float = 0.0
    tokens: int = 0
    tok_per_s: float = 0.0
    first_token_s: float | None = None
    """Seconds from sending the request to its first token, measured by us."""

    @property
    def new_prompt_tokens(self) -> int:
        return self.prompt_tokens - self.cached_tokens

    @property
    def prompt_tok_per_s(self) -> float | None:
        """Speed of reading the part of the prompt that was new, if that was timed."""
        read = self.new_prompt_tokens
        return read / self.prompt_ms * 1000 if self.prompt_ms and read else None


class ChatDelta(Value, frozen=True, kw_only=True):
    """One piece of a streamed answer; the last one has ``done``."""

    text: str = ""
    reasoning: str = ""
    done: bool = False
    finish_reason: str = ""
    ahead: int = 0
    """Requests that are answered before this one."""
    waiting: str = ""
    """The reason to wait before it is asked: ``the cluster is loading``."""
    prompt_progress: float | None = None
    """0…1 while the prompt is being read."""
    timings: ChatTimings | None = None
    layers: tuple[LayerRange, ...] = ()
    """The split on which the answer ended; told with its end."""
    failure: Failure | None = None


class LogChunk(Value, frozen=True, kw_only=True):
    """Text of a process log from byte ``offset`` to ``next_offset``."""

    name: str
    text: str
    offset: int
    next_offset: int
    restarted: bool = False
    """The log is shorter than it was: a new process of the same name."""


class Reply(Value, frozen=True, kw_only=True):
    """One answer to a question, and what it was answered with."""

    text: str = ""
    reasoning: str = ""
    model: str = ""
    """Path of the model that answered."""
    layers: tuple[LayerRange, ...] = ()
    """The split it answered on."""
    layers_after: tuple[LayerRange, ...] = ()
    """The split on which it ended, where a launch in between made that another."""
    sampling: Sampling = Sampling()
    timings: ChatTimings | None = None
    finish_reason: str = ""
    """Why it ended; empty while it comes."""
    failure: Failure | None = None
    at: float = 0.0
    """Unix seconds when it was asked for."""
    question: str = ""
    """The question it answers, if that is not the turn's."""
    then: tuple[Turn, ...] = ()
    """The turns after it, while the conversation goes on from another answer."""

    @property
    def done(self) -> bool:
        return bool(self.finish_reason)

    @property
    def said(self) -> bool:
        """True if there is something of it to keep."""
        return bool(self.text or self.reasoning or self.then)


class Turn(Value, frozen=True, kw_only=True):
    """A question and its answers: several where it was asked again."""

    question: str
    """As it was first asked."""
    replies: tuple[Reply, ...] = ()
    shown: int = 0
    """Index of the answer that the conversation goes on from."""

    def __post_init__(self) -> None:
        if self.replies and not 0 <= self.shown < len(self.replies):
            raise ValueError(f"there is no answer {self.shown + 1} to go on from")

    @property
    def reply(self) -> Reply:
        """The answer that the conversation goes on from; an empty one without any."""
        return self.replies[self.shown] if self.replies else Reply()

    @property
    def asked(self) -> str:
        return self.reply.question or self.question


class Conversation(Value, frozen=True, kw_only=True):
    id: str
    cluster: str
    model: str = ""
    """Path of the model it is held with."""
    name: str = ""
    """Given by a person; empty: the first question names it."""
    system: str = ""
    sampling: Sampling = Sampling()
    turns: tuple[Turn, ...] = ()
    began_at: float = 0.0
    opened_at: float = 0.0
    """The one opened last is its cluster's and model's current one."""
    changed_at: float = 0.0

    @property
    def title(self) -> str:
        first = self.turns[0].asked if self.turns else ""
        text = " ".join((self.name or first).split())
        return text if len(text) <= TITLE_CHARS else f"{text[: TITLE_CHARS - 1]}…"

    @property
    def is_blank(self) -> bool:
        """True if nothing was said or named: nothing is lost with it."""
        return not (self.turns or self.name)


class ChatBrief(Value, frozen=True, kw_only=True):
    id: str
    cluster: str
    model: str
    title: str
    name: str = ""
    turns: int = 0
    changed_at: float = 0.0
    opened_at: float = 0.0
    answering: bool = False


class ChatListing(Value, frozen=True, kw_only=True):
    chats: tuple[ChatBrief, ...] = ()
    problems: tuple[str, ...] = ()
    """Files that cannot be read, a sentence each."""
    folder: str = ""
    """The folder they are kept in; empty if none is kept."""


class Answering(Value, frozen=True, kw_only=True):
    ahead: int = 0
    """Requests that are answered before it."""
    waiting: str = ""
    """The reason to wait before it is asked."""
    prompt_progress: float | None = None
    """0…1 while the prompt is being read."""


class ChatState(Value, frozen=True, kw_only=True):
    conversation: Conversation
    answering: Answering | None = None
    """None while no answer comes."""
    problem: str = ""
    """Why it is not kept, where the disk refuses it."""
    seq: int = 0
    """Grows with every change of this conversation while its controller lives."""


class QuestionRequest(Value, frozen=True, kw_only=True):
    question: str | None = None
    """None: in the words in which it was asked before."""
    again: int | None = None
    """Index of a question to ask again; None: a new one. What followed it is kept."""
    turns: int
    """The number of turns the client knows: another console may have gone on."""


class DraftRequest(Value, frozen=True, kw_only=True):
    """A question that is being typed."""

    question: str = ""
    again: int | None = None
    """Index of a question that it would take the place of."""


class PromptCount(Value, frozen=True, kw_only=True):
    """The prompt that a question would be, as the running model counts it."""

    tokens: int
    """Of the chat so far and the question, as the chat template writes them."""
    ctx_size: int
    """Tokens of a slot's context."""


class ChatChange(Value, frozen=True, kw_only=True):
    """A change of a conversation; None leaves a field as it is."""

    name: str | None = None
    system: str | None = None
    sampling: Sampling | None = None
    turn: int | None = None
    """Index of the question that ``shown`` is about; None: the last."""
    shown: int | None = None
    """Index of the answer to go on from."""


class ChatFrame(Value, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the stream of a conversation: a whole state, or what came since."""

    whole: ChatState | None = None
    text: str = ""
    reasoning: str = ""
    timings: ChatTimings | None = None
    answering: Answering | None = None
    seq: int = 0


def chat_framed(now: ChatState, last: ChatState | None) -> ChatFrame:
    if last is None or now.answering is None or not last.conversation.turns:
        return ChatFrame(whole=now)
    reply, before = _newest(now), _newest(last)
    grown = ChatFrame(
        text=reply.text[len(before.text) :],
        reasoning=reply.reasoning[len(before.reasoning) :],
        timings=reply.timings,
        answering=now.answering,
        seq=now.seq,
    )
    # The time of the change alone is not told anew.
    when = now.conversation.changed_at
    told = chat_applied(grown, last)
    conversation = msgspec.structs.replace(told.conversation, changed_at=when)
    is_told = msgspec.structs.replace(told, conversation=conversation) == now
    return grown if is_told else ChatFrame(whole=now)


def chat_applied(frame: ChatFrame, last: ChatState | None) -> ChatState:
    if frame.whole is not None:
        return frame.whole
    if last is None or not last.conversation.turns:
        raise ValueError("a chat begins in the middle")
    before = _newest(last)
    reply = msgspec.structs.replace(
        before,
        text=before.text + frame.text,
        reasoning=before.reasoning + frame.reasoning,
        timings=frame.timings,
    )
    return msgspec.structs.replace(
        last,
        conversation=with_newest(last.conversation, reply),
        answering=frame.answering,
        seq=frame.seq,
    )


def with_newest(conversation: Conversation, reply: Reply) -> Conversation:
    *earlier, turn = conversation.turns
    replies = (*turn.replies[:-1], reply)
    turn = msgspec.structs.replace(turn, replies=replies)
    return msgspec.structs.replace(conversation, turns=(*earlier, turn))


def _newest(state: ChatState) -> Reply:
    turns = state.conversation.turns
    return turns[-1].replies[-1] if turns and turns[-1].replies else Reply()
