"""Inviting a machine that dials this console: a token, and who joins by it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from textual import events, on, work
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from backends.errors import ControllerError, DllmError
from backends.state import Peer, PeerInvitation
from backends.units import format_age
from tui.actions import bindings
from tui.api.services import ClusterService
from tui.app.messages import Copyable, PeerAdded
from tui.dialogs.add_peer import Wish, outcome_of
from tui.dialogs.dialog import Dialog
from tui.model.qr_code import qr_text
from tui.widgets.row_list import Choice, ChoiceList
from tui.widgets.safe_text import safe_line

LIFE_S = 3600.0
LOOK_EVERY_S = 0.5
HOW = """\
On the machine that is to join:  dllm-tui join TOKEN
It is good once, and stays so when this is closed."""
ROWS_BESIDE, COLUMNS_BESIDE = 18, 8
"""The rest of the dialog, beside the code."""


class InviteDialog(Dialog[Wish | None]):
    """Dismisses with the next step and the new peer's name, or None."""

    HELP = """\
## Invite a machine

A machine that this one cannot reach may reach this one, as from behind a router. There,
`dllm-tui join` with the token dials this console, now and whenever it must, and lends
that machine within its owner's limits.

- **{reading.copy}** copies the token
- The QR code says the same; it is shown where the terminal is large enough
"""
    BINDINGS = bindings("dialog", "raw")
    DEFAULT_CSS = """
    InviteDialog {
        & #invite-token { margin: 0 0 1 0; }
        & #invite-how { color: $dim; }
        & #invite-code {
            width: auto;
            margin: 1 0 0 0;
            color: white;
            background: black;
        }
        & #invite-state {
            margin: 1 0 0 0;
            &.-wrong { color: $bad; }
            &.-good { color: $ok; }
        }
        & ChoiceList { margin: 1 0 0 0; }
    }
    """

    def __init__(
        self,
        cluster: ClusterService,
        peers: tuple[Peer, ...],
        clock: Callable[[], float],
    ) -> None:
        super().__init__()
        self._cluster = cluster
        self._clock = clock
        self._before = {peer.name for peer in peers}
        self._made: PeerInvitation | None = None
        self._code = ""
        self._choices: tuple[Choice, ...] = ()
        self.follows = ""
        """The peer that has joined; empty before."""
        self._shown: dict[str, Static] = {
            part: Static(id=f"invite-{part}", markup=False)
            for part in ("token", "how", "code", "state")
        }

    def compose(self) -> ComposeResult:
        keys = ("raw.copy", "copies the token"), ("dialog.cancel", "closes")
        with self.frame("Invite a machine", *keys, box=VerticalScroll):
            yield from self._shown.values()

    def on_mount(self) -> None:
        self._shown["code"].display = False
        self._say("Making a token…")
        self._invite()

    @work(group="invite", exclusive=True, exit_on_error=False)
    async def _invite(self) -> None:
        try:
            made = await self._cluster.invite_peer("", life_s=LIFE_S)
            self._made = made
            self._code = await asyncio.to_thread(qr_text, made.token)
            self._shown["token"].update(made.token)
            self._shown["how"].update(HOW)
            self._shown["code"].update(self._code)
            self._fit()
            while (joined := await self._joined_now(made)) is None:
                if (left_s := made.expires_at - self._clock()) <= 0:
                    self._say(
                        "Nobody joined in time; the token is good no more", "wrong"
                    )
                    return
                left = format_age(left_s)
                self._say(f"Waiting at port {made.port} for it to join ({left} left)")
                await asyncio.sleep(LOOK_EVERY_S)
        except DllmError as error:
            self._say(str(error), "wrong")
            return
        self._joined(joined)

    async def _joined_now(self, made: PeerInvitation) -> Peer | None:
        # Another controller takes the token, too.
        with contextlib.suppress(ControllerError):
            return await self._cluster.joined_peer(made.id)
        return None

    def _joined(self, peer: Peer) -> None:
        self.follows = peer.name
        self._made = None
        self.show_keys(self.query_one(VerticalScroll), ("dialog.cancel", "closes"))
        for part in ("token", "how", "code"):
            self._shown[part].display = False
        self.post_message(PeerAdded(peer.name))
        self.show_peers((peer,))

    def on_resize(self, _: events.Resize) -> None:
        self._fit()

    def _fit(self) -> None:
        lines, (width, height) = self._code.splitlines(), self.app.size
        fits = len(lines) + ROWS_BESIDE <= height
        fits = fits and len(max(lines, key=len, default="")) + COLUMNS_BESIDE <= width
        self._shown["code"].display = fits and self._made is not None

    def show_peers(self, peers: tuple[Peer, ...]) -> None:
        for peer in peers:
            if self.follows and peer.name == self.follows:
                self._show_outcome(peer)

    def _show_outcome(self, peer: Peer) -> None:
        outcome = outcome_of(peer, was_known=peer.name in self._before)
        self._say(f"It has joined as {peer.name}. {outcome.text}", outcome.tone)
        choices = tuple(one for one in outcome.choices if one.id != "again")
        if choices != self._choices:
            self._choices = choices
            self._offer(choices)

    @work(group="offer", exclusive=True, exit_on_error=False)
    async def _offer(self, choices: tuple[Choice, ...]) -> None:
        await self.query(ChoiceList).remove()
        if choices:
            made = ChoiceList(choices)
            await self.query_one(VerticalScroll).mount(made)
            made.focus()

    @on(ChoiceList.Picked)
    def _picked(self, message: ChoiceList.Picked) -> None:
        message.stop()
        verb = message.row.id
        self.dismiss(None if verb == "close" else (verb, self.follows))

    def copyable(self) -> Copyable | None:
        return Copyable("the token", self._made.token) if self._made else None

    def _say(self, text: str, tone: str = "") -> None:
        state = self._shown["state"]
        state.update(safe_line(text))
        for known in ("good", "wrong"):
            state.set_class(known == tone, f"-{known}")
