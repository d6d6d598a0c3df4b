"""``dllm-tui --plain``: the console as lines of text, for screen readers.

A line is a question, and ``/COMMAND`` is any command of ``dllm-tui``. Nothing is drawn
over, nothing has a colour or a box, and an answer comes in whole sentences.
"""

from __future__ import annotations

import asyncio
import io
import re
import readline
import shlex
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial

from backends.client.client import ControllerClient
from backends.errors import DllmError, UsageError, did_you_mean
from backends.state import ClusterSnapshot, Event, EventTone
from backends.text_editor import edit_text
from tui.cli.chats import answer_text, answered
from tui.cli.command import run
from tui.cli.output import say, show, warn
from tui.cli.status import current_snapshot
from tui.model.names import model_name

PROMPT = "> "
NEWS_EVERY_S = 0.5
LEAVE = ("/quit", "/q", "/exit")
TONES = {
    EventTone.INFORMATION: "",
    EventTone.WARNING: "Warning: ",
    EventTone.ERROR: "Error: ",
}
HELP = """\
A line is a question to the model; the chat is kept.
/again asks the last question again. /new begins another chat.
/edit asks what you write in your editor, VISUAL or EDITOR.
/status tells what runs, /events what happened, /peers the machines, /models the models.
/up MODEL launches, /links slow all --latency 10ms slows links, /down stops the cluster.
Any other command of dllm-tui works with / before it; /COMMAND --help tells about one.
Ctrl-C stops an answer or a command. /quit or Ctrl-D leaves; the cluster keeps running.\
"""
# The end of a sentence or of a line; "3.5" and "1. First" are none.
_END = re.compile(r"(?:(?<!\d)\.|[!?:;])['\")\]*]*\s|\n")


class SentenceStream:
    """Text that comes in pieces, given on in whole sentences or lines."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._text = ""

    def feed(self, piece: str) -> None:
        self._text += piece
        ends = [match.end() for match in _END.finditer(self._text)]
        if ends:
            self._give(self._text[: ends[-1]])
            self._text = self._text[ends[-1] :]

    def end(self) -> None:
        self._give(self._text)
        self._text = ""

    def _give(self, text: str) -> None:
        if text.strip():
            self._write(text.rstrip().lstrip("\n"))


class News:
    """Events as they happen, a line each; kept back while something else is said."""

    def __init__(self, client: ControllerClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._kept: list[str] = []
        self._waiting = False

    def begin(self) -> None:
        # A thread knows of no --readonly by itself.
        follow = partial(copy_context().run, asyncio.run, self._follow())
        threading.Thread(target=follow, daemon=True).start()

    @contextmanager
    def while_waiting(self) -> Iterator[None]:
        """Tell events at once in the block, which waits for the user."""
        with self._lock:
            self._waiting = True
            self._tell()
        try:
            yield
        finally:
            with self._lock:
                self._waiting = False

    def add(self, events: Sequence[Event]) -> None:
        cluster = self._client.cluster
        lines = [event_line(e) for e in events if e.cluster in ("", cluster)]
        with self._lock:
            self._kept += lines
            if self._waiting and lines:
                asks = sys.stdin.isatty()
                if asks:
                    show()
                self._tell()
                if asks:
                    show(PROMPT + readline.get_line_buffer(), end="")

    def _tell(self) -> None:
        for line in self._kept:
            say(line)
        self._kept.clear()

    async def _follow(self) -> None:
        newest: int | None = None
        # Without a terminal any more, nobody reads them.
        with suppress(OSError, ValueError):
            while True:
                with suppress(DllmError):
                    if newest is None or await self._client.running():
                        found = await self._client.events(after=newest or 0)
                        # What happened before is for /events.
                        if newest is not None:
                            self.add(found)
                        newest = found[-1].number if found else newest or 0
                await asyncio.sleep(NEWS_EVERY_S)


def event_line(event: Event) -> str:
    hint = f" {event.hint}" if event.hint else ""
    return f"{TONES[event.tone]}{event.sentence}{hint}"


class PlainConsole:
    """Reads lines, and asks the model or runs a command.

    Args:
        command: Runs a command line of ``dllm-tui``, and returns its exit code.
        names: The names of all commands.
    """

    def __init__(
        self, cluster: str, *, command: Callable[[list[str]], int], names: Sequence[str]
    ) -> None:
        self._client = ControllerClient(cluster=cluster)
        self._news = News(ControllerClient(cluster=cluster))
        self._command = command
        self._names = names
        self._chat = ""
        """The id of the chat; empty before the first question."""
        self._draft = ""
        """Written in the editor, and not answered."""

    def run(self) -> None:
        """Stay until the user leaves; the cluster stays as it is."""
        if sys.stdin is None:
            raise UsageError("Standard input is closed", "Give a terminal or a pipe.")
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")
        show(opening_text(run(current_snapshot(self._client.cluster))))
        self._news.begin()
        while (line := self._read()) is not None:
            try:
                if line.startswith("/"):
                    self._obey(line[1:])
                elif line:
                    run(self._ask(line))
            except DllmError as error:
                warn(f"dllm-tui: {error}")
            except KeyboardInterrupt:
                warn("Stopped.")

    def _read(self) -> str | None:
        """The next line; None if the user leaves."""
        try:
            with self._news.while_waiting():
                line = input(PROMPT if sys.stdin.isatty() else "").strip()
        except EOFError:
            return None
        except KeyboardInterrupt:
            show()
            say("Ctrl-C ends nothing here; /quit leaves.")
            return ""
        return None if line in LEAVE else line

    def _obey(self, line: str) -> None:
        try:
            words = shlex.split(line)
        except ValueError:
            raise UsageError("A quote is not closed", "Close it.") from None
        match words:
            case [] | ["help"]:
                show(HELP)
            case ["new"]:
                self._chat = ""
                say("The next question begins another chat.")
            case ["again"]:
                run(self._ask(None))
            case ["edit"]:
                self._edit()
            case [name, *_] if name not in self._names:
                hint = did_you_mean(name, self._names) or "/help lists commands."
                raise UsageError(f"There is no command /{name}", hint)
            case _:
                self._command(linear_words(words))

    def _edit(self) -> None:
        if not sys.stdin.isatty():
            raise UsageError("There is no terminal here for an editor", "Type a line.")
        question = run(edit_text(self._draft))
        if not question:
            say("Nothing was written.")
            return
        # Kept, so that one that is refused can be edited again.
        self._draft = question
        show(question)
        run(self._ask(question))
        self._draft = ""

    async def _ask(self, question: str | None) -> None:
        if not self._chat and question is None:
            raise UsageError("Nothing was asked yet", "Type a question first.")
        self._chat = self._chat or await self._begun()
        chat = (await self._client.chats.get(self._chat)).conversation
        again = len(chat.turns) if question is None else None
        sentences = SentenceStream(show)
        try:
            answer = await answered(self._client, chat, question, again, sentences.feed)
        finally:
            sentences.end()
        say(answer_text(answer))

    async def _begun(self) -> str:
        snapshot = await self._client.snapshot()
        if snapshot.plan is None:
            raise UsageError("No model is served", "/up MODEL launches one.")
        return (await self._client.chats.begin(snapshot.plan.model)).conversation.id


def opening_text(snapshot: ClusterSnapshot) -> str:
    """The first lines: what runs, and what to type."""
    if snapshot.plan is None:
        runs = "Nothing runs. /up MODEL launches a model, /models lists them."
    else:
        model = model_name(snapshot.plan.model)
        runs = f"{snapshot.state.value.capitalize()}: {model}. Type a question."
    return f"dllm-tui, cluster {snapshot.cluster}. {runs} /help tells more."


def linear_words(words: Sequence[str]) -> list[str]:
    """A command line that comes back to the prompt, and draws no screen."""
    name, *options = words
    ours = set(options[: options.index("--")] if "--" in options else options)
    if ours & {"-h", "--help"}:
        return list(words)
    if name == "up" and not ours & {"--detach", "--dry-run"}:
        return [name, "--detach", *options]
    if name == "plans" and options[:1] == ["launch"] and "--detach" not in ours:
        return [name, "launch", "--detach", *options[1:]]
    if name == "demo" and "--headless" not in ours:
        raise UsageError("demo draws a screen", "Use /demo --headless.")
    if name == "replay" and "--export" not in ours:
        raise UsageError("replay draws a screen", "Use /replay FILE --export OUT.")
    return list(words)
