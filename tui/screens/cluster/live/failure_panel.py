"""The panel of a failure: its sentence, the remedy, and the evidence."""

from __future__ import annotations

import signal
from shlex import join
from typing import TYPE_CHECKING

from textual.reactive import reactive

from tui.app.messages import Copyable
from tui.model.peer_words import UNFIT
from tui.widgets.keys import takes_text, with_keys
from tui.widgets.strips import Part, StripWidget, line, wrapped

if TYPE_CHECKING:
    from textual.strip import Strip

    from backends.state import ClusterSnapshot, Failure

TAIL_LINES = 8
COMMAND_LINES = 3


class FailurePanel(StripWidget):
    """One failure with command line, exit status and the end of the log."""

    ALLOW_SELECT = True

    DEFAULT_CSS = """
    FailurePanel {
        height: auto;
    }
    """

    failure: reactive[Failure | None] = reactive(None, init=False, layout=True)
    to_mend: reactive[str] = reactive("", init=False)
    """The peer whose engine is the trouble; empty for none."""

    def get_content_height(self, container: object, viewport: object, w: int) -> int:
        return len(self._rows(w)) if self.failure else 0

    def draw(self, width: int, height: int) -> list[Strip]:
        return [line(row, width) for row in self._rows(width)]

    def copyable(self) -> Copyable | None:
        """The whole failure as text, for a bug report."""
        if self.failure is None:
            return None
        return Copyable("the failure", failure_text(self.failure))

    def watch_failure(self) -> None:
        self.redraw()

    def watch_to_mend(self) -> None:
        self.redraw()

    def _rows(self, width: int) -> list[list[Part]]:
        failure = self.failure
        if failure is None or width < 1:
            return []
        palette = self.palette
        what = wrapped(f"✗ {failure.what}", width, 2)
        rows = [[(text, palette.alarm)] for text in what]
        rows += [[(text, palette.text)] for text in wrapped(failure.hint, width, 2)]
        if failure.argv:
            command = wrapped(f"$ {join(failure.argv)}", width, COMMAND_LINES)
            rows += [[(text, palette.dim)] for text in command]
        if status := exit_text(failure):
            rows.append([(status, palette.warn)])
        rows += [
            [("│ ", palette.border), (text, palette.dim)]
            for text in failure.log_tail[-TAIL_LINES:]
        ]
        rows.append(self._keys(failure))
        return rows

    def _keys(self, failure: Failure) -> list[Part]:
        key, dim = self.palette.key, self.palette.dim
        typing = takes_text(self.screen.focused)
        offered = {
            "live.provision": f"provisions {self.to_mend}" if self.to_mend else "",
            "live.log": "opens the log" if failure.process else "",
            "app.copy": "copies all this",
            "cluster.launch": "tries again",
        }
        parts: list[Part] = []
        for action, does in offered.items():
            if does:
                named = with_keys(self.app, f"{{{action}}}", typing=typing)
                parts += [(named, key), (f" {does}   ", dim)]
        return parts


def exit_text(failure: Failure) -> str:
    """``exit code 1`` or ``killed by SIGKILL``; empty when neither is known."""
    if failure.exit_signal is not None:
        try:
            name = signal.Signals(failure.exit_signal).name
        except ValueError:
            name = f"signal {failure.exit_signal}"
        return f"killed by {name}"
    return "" if failure.exit_code is None else f"exit code {failure.exit_code}"


def failure_text(failure: Failure) -> str:
    """The failure as plain text."""
    command = f"$ {join(failure.argv)}" if failure.argv else ""
    head = [failure.what, failure.hint, command, exit_text(failure)]
    return "\n".join([*filter(None, head), *failure.log_tail])


def peer_to_mend(snapshot: ClusterSnapshot) -> str:
    """The peer of a failed launch that needs another engine; empty where none does.

    The failure itself may name it: an engine that fits ours may not fit another head's.
    """
    plan, failure = snapshot.plan, snapshot.failure
    if plan is None or failure is None:
        return ""
    named = failure.hint.rpartition("peers setup ")[2].rstrip(".")
    part = {plan.head, *(worker.peer for worker in plan.workers)}
    unfit = [p.name for p in snapshot.peers if p.state in UNFIT and p.name in part]
    names = [peer.name for peer in snapshot.peers if peer.name == named]
    return next(iter((*names, *unfit)), "")
