"""Dialogs of a peer: its facts, and the questions of its connection.

All text comes from another machine: it is shown as it is, never read as markup.
"""

from __future__ import annotations

from collections.abc import Callable

from rich.table import Table
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Input, Static

from backends.state import Peer, PeerAnswer, PeerQuestion, QuestionKind
from tui.actions import bindings
from tui.app.messages import Copyable, Raw
from tui.dialogs.dialog import Dialog
from tui.model.peer_words import peer_rows
from tui.widgets.inputs import LineInput
from tui.widgets.palette import palette_from
from tui.widgets.row_list import Choice, ChoiceList
from tui.widgets.safe_text import safe_line
from tui.widgets.strips import retitle

LABEL_WIDTH = 9


class PeerDialog(Dialog[None]):
    """A list to read; ``y`` copies all of it."""

    HELP = """\
## Peer

All that is known of one machine; it follows the machine while it is open.
"""
    BINDINGS = bindings("dialog", "reading", "json")

    def __init__(self, peer: Peer, clock: Callable[[], float]) -> None:
        super().__init__()
        self._peer = peer
        self._clock = clock
        self._text = Static(markup=False)

    def compose(self) -> ComposeResult:
        keys = ("reading.copy", "copies"), ("dialog.cancel", "closes")
        title = f"Peer · {self._peer.name}"
        with self.frame(title, *keys, box=VerticalScroll):
            yield self._text

    def on_mount(self) -> None:
        self._text.update(self._table())

    def show_peers(self, peers: tuple[Peer, ...]) -> None:
        for peer in peers:
            if peer.name == self._peer.name and peer != self._peer:
                self._peer = peer
                self._text.update(self._table())

    def raw(self) -> Raw:
        return Raw(f"peer {self._peer.name}", self._peer)

    def copyable(self) -> Copyable | None:
        lines = [f"{label:{LABEL_WIDTH}}  {t}".rstrip() for label, t in self._rows()]
        return Copyable(f"what is known of {self._peer.name}", "\n".join(lines))

    def _rows(self) -> list[tuple[str, str]]:
        rows = peer_rows(self._peer, self._clock())
        return [(label, safe_line(text)) for label, text in rows]

    def _table(self) -> Table:
        palette = palette_from(self.app.theme_variables)
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(style=palette.dim, width=LABEL_WIDTH)
        table.add_column(style=palette.text, ratio=1, overflow="fold")
        for label, text in self._rows():
            # A string could hold markup; a Text holds only itself.
            table.add_row(label, Text(text))
        return table


# --- questions --------------------------------------------------------------------


GROUP = 4
TRUST_REMARK = (
    "On that machine, cat /etc/ssh/*.pub | ssh-keygen -lf - prints it: compare them. "
    "A trusted key is remembered, as ssh does."
)
SECRET_REMARK = "Used for this connection, never stored."
_TITLES = {
    QuestionKind.HOST_KEY: "Unknown host key",
    QuestionKind.PASSWORD: "Password",
    QuestionKind.PASSPHRASE: "Passphrase",
}


class QuestionDialog(Dialog[PeerAnswer | None]):
    """Dismisses with the answer; None when the user gives none."""

    HELP = """\
## Question

A connection waits for you: whether to trust a machine that was never met, or for a
secret, which is used once and never stored.
"""
    BINDINGS = bindings("dialog")
    DEFAULT_CSS = """
    QuestionDialog {
        & Static { margin: 0 0 1 0; }
        & LineInput { margin: 0 0 1 0; }
    }
    """

    def __init__(self, peer: Peer, question: PeerQuestion) -> None:
        super().__init__()
        self._peer = peer
        self.question = question

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            retitle(box, f"{_TITLES[self.question.kind]} · {self._peer.name}")
            yield from self.compose_question()

    def compose_question(self) -> ComposeResult:
        raise NotImplementedError

    def show_peers(self, peers: tuple[Peer, ...]) -> None:
        questions = {peer.name: peer.question for peer in peers}
        if questions.get(self._peer.name) != self.question and self.is_current:
            self.dismiss(None)

    def _answer(self, text: str) -> None:
        self.dismiss(PeerAnswer(kind=self.question.kind, text=text))


class HostKeyDialog(QuestionDialog):
    """Asks whether to trust a key never seen before; the default is not to."""

    def compose_question(self) -> ComposeResult:
        yield Static(self._key(), markup=False)
        yield Static(TRUST_REMARK, markup=False)
        # No letter trusts: a key meant for another place must not either.
        yield ChoiceList(
            (Choice("cancel", "Cancel", "n"), Choice("trust", "Trust and connect", ""))
        )

    def on_mount(self) -> None:
        keys = ("choice.choose", "chooses"), ("dialog.cancel", "cancels")
        self.show_keys(self.query_one(Vertical), *keys)

    @on(ChoiceList.Picked)
    def _chosen(self, message: ChoiceList.Picked) -> None:
        message.stop()
        if message.row.id == "trust":
            self._answer(self.question.fingerprint)
        else:
            self.dismiss(None)

    def _key(self) -> Text:
        palette = palette_from(self.app.theme_variables)
        question = self.question
        rows = (
            ("host", self._peer.address or self._peer.name),
            ("key", question.key_type or "unknown"),
            ("fingerprint", question.fingerprint.rpartition(":")[0]),
        )
        text = Text()
        for label, value in rows:
            text.append(f"{label:12}", palette.dim)
            text.append(f"{safe_line(value)}\n", palette.strong)
        text.append(fingerprint_text(question.fingerprint), palette.text)
        return text


class SecretDialog(QuestionDialog):
    """Asks for something nobody may read over a shoulder."""

    TYPING = True

    def compose_question(self) -> ComposeResult:
        yield Static(safe_line(self.question.text), markup=False)
        yield LineInput(password=True)
        yield Static(SECRET_REMARK, markup=False)

    def on_mount(self) -> None:
        keys = ("choice.choose", "connects"), ("dialog.cancel", "cancels")
        self.show_keys(self.query_one(Vertical), *keys)
        self.query_one(LineInput).focus()

    @on(Input.Submitted)
    def _submitted(self, message: Input.Submitted) -> None:
        message.stop()
        if message.value:
            self._answer(message.value)


def question_dialog(peer: Peer) -> QuestionDialog | None:
    question = peer.question
    if question is None:
        return None
    if question.kind is QuestionKind.HOST_KEY:
        return HostKeyDialog(peer, question)
    return SecretDialog(peer, question)


def fingerprint_text(fingerprint: str) -> str:
    """``abcd efgh …`` of ``SHA256:abcdefgh…``: groups that an eye can compare."""
    code = safe_line(fingerprint).rpartition(":")[2]
    return " ".join(code[at : at + GROUP] for at in range(0, len(code), GROUP))
