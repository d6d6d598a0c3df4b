"""Errors that reach a user: one sentence each, saying what, where and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from backends.state import Failure, PeerQuestion, QuestionKind

TAIL_LINES = 15


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``Did you mean mini? `` for a name like a known one, else nothing."""
    # Imported here because no command but a mistyped one needs it.
    from difflib import get_close_matches

    like = get_close_matches(name, list(known))
    return f"Did you mean {' or '.join(like)}? " if like else ""


def unknown_peer(name: str, known: Iterable[str]) -> tuple[str, str]:
    """Say what is wrong with the name of a peer, and what to do."""
    names = list(known)
    return (
        f"There is no peer {name}",
        f"{did_you_mean(name, names)}Known: {', '.join(names) or 'none yet'}. "
        f"Add it: dllm-tui peers add {name}.",
    )


def cannot_take_part(name: str, why: str) -> str:
    """Say why a machine is left out; "now" once, if its owner does not lend it now."""
    why = why.removeprefix(f"{name} is not lent now: ")
    return f"{name} cannot take part now: {why}".rstrip(".")


class DllmError(Exception):
    """Base of every expected error; its text is fit to show as it is."""

    worker = ""
    """The worker that cannot be had for it; empty where it is about anything else."""

    def __init__(self, what: str, hint: str = "", tail: Sequence[str] = ()) -> None:
        joint = " " if what.endswith("?") else ". "
        super().__init__(f"{what}{joint}{hint}" if hint else what)
        self.what = what
        self.hint = hint
        self.tail = tuple(tail)[-TAIL_LINES:]
        """The last lines of a log, as evidence."""

    def failure(self, at: float = 0.0) -> Failure:
        return Failure(what=self.what, hint=self.hint, log_tail=self.tail, at=at)


@contextmanager
def disk_errors(
    doing: str,
    file: object,
    hint: str = "",
    kind: type[DllmError] = DllmError,
    *,
    passes: type[OSError] | tuple[()] = (),
) -> Iterator[None]:
    """Say ``Cannot write FILE (why)`` of what the disk refuses meanwhile."""
    try:
        yield
    except passes:
        raise
    except OSError as error:
        raise kind(f"Cannot {doing} {file} ({error.strerror})", hint) from error


@contextmanager
def about_worker(name: str) -> Iterator[None]:
    """Have what goes wrong meanwhile tell which worker cannot be had for it."""
    try:
        yield
    except DllmError as error:
        error.worker = name
        raise


class UsageError(DllmError):
    """The user asked for something that cannot be meant (exit code 2)."""


class ModelError(DllmError):
    """A model file cannot be read."""


class EngineError(DllmError):
    """llama.cpp is missing, unusable, or could not be built."""


class PlanError(DllmError):
    """A plan or split does not describe something that can run."""


class MachineError(DllmError):
    """A machine refused to start, stop or show something."""


class PeerUnreachable(MachineError):
    """A machine cannot be reached, or the connection to it broke."""


class Revoked(PeerUnreachable):
    """A machine lets us in no more; its owner has ended what ran there for us."""


class Withheld(PeerUnreachable):
    """A machine's owner lends it not now: it is paused, or out of hours."""


class NeedsAnswer(MachineError):
    """Only the user can tell how to go on with a connection."""

    def __init__(self, question: PeerQuestion) -> None:
        super().__init__(question.text, _UNATTENDED[question.kind])
        self.question = question


_ANSWERED = (
    "Answer it in the console (select the peer, Enter), or in a terminal: repeat "
    "dllm-tui peers add for it. "
)
_UNATTENDED = {
    QuestionKind.HOST_KEY: _ANSWERED
    + "If nobody can: dllm-tui peers add … --accept-host-key SHA256:….",
    QuestionKind.PASSWORD: _ANSWERED
    + "If nobody can: log in with a key instead (ssh-copy-id).",
    QuestionKind.PASSPHRASE: _ANSWERED
    + "If nobody can: give the key to an agent (ssh-add).",
}


class ControllerError(DllmError):
    """The background process cannot be reached or refused a request."""


class ProcessFailed(DllmError):
    """A process of ours ended, or never came up."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.what, failure.hint)
        self.evidence = failure

    def failure(self, at: float = 0.0) -> Failure:
        return self.evidence


class NeverListened(ProcessFailed):
    """A process of ours runs, and nobody can use it."""
