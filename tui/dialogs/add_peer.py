"""Adding a machine: its address, its name, and the outcome."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.strip import Strip
from textual.widgets import Input, Label, Static

from backends.errors import DllmError
from backends.machine_names import is_place, is_token, suggested_name
from backends.state import (
    FoundWorker,
    FoundWorkers,
    KnownMachine,
    Peer,
    PeerState,
    Transport,
)
from backends.units import format_bytes, format_digits
from tui.actions import bindings
from tui.api.services import ClusterService
from tui.app.messages import PeerAdded
from tui.dialogs.dialog import Dialog
from tui.model.peer_words import UNFIT, note_text
from tui.widgets.form_fields import TickBox
from tui.widgets.inputs import LineInput
from tui.widgets.row_list import Choice, ChoiceList, RowList
from tui.widgets.safe_text import safe_line
from tui.widgets.strips import clip, line

LOOK_EVERY_S = 1.0
OPENING = "As for ssh: mini, ada@mini:2222. Or a token of dllm-tui worker"
OPENING_BARE = "Address of a running rpc-server: 10.0.0.7:50052"
FORM_KEYS = (
    ("adding.add", "adds"),
    ("adding.down", "picks"),
    ("adding.invite", "invites"),
    ("adding.cancel", "closes"),
)
Wish = tuple[str, str]


COMPARING = (
    # The first has the focus: a second Enter is to agree to nothing.
    Choice("refuse", "No", "n", "somebody else may have answered"),
    Choice("agree", "Yes, both show the same", "y"),
)


class NameList(RowList):
    """Workers found here and machines known, as typed; the field keeps the focus."""

    MOST = 6
    LEAST = -1

    def move(self, by: int) -> None:
        super().move(by)
        self.action_choose()

    def row(self, row: KnownMachine | FoundWorker, here: bool, width: int) -> Strip:
        palette = self.palette
        style = palette.strong if here else palette.dim
        shown = [("▸ " if here else "  ", palette.key)]
        where, how, has = f" {row.address}  ", "found here", ""
        if isinstance(row, FoundWorker):
            where += f"{row.version}  "
        elif row.told_by:
            how = f"told by {clip(row.told_by, 16)}  "
            has = ", ".join(device.name for device in row.devices)
        else:
            return line([*shown, (safe_line(row.name), style)], width)
        shown += [
            (clip(safe_line(row.name), 16), style),
            (safe_line(where), palette.dim),
            (safe_line(how), palette.key),
            (safe_line(has), palette.dim),
        ]
        return line(shown, width)


class AddPeerDialog(Dialog[Wish | None]):
    """Dismisses with the next step and a peer's name, or None if all is done."""

    HELP = """\
## Add a machine

Type what you would give to **ssh**, or pick a name of your ssh configuration. A *bare
rpc-server* is one that somebody else started: only its `host:port` is known, and
nothing is installed there.

A machine whose owner lends it (`dllm-tui worker` there) is listed as *found here* if it
is on the same network. Pick it, and compare the six digits that both screens show.
Elsewhere type its address and port, or paste the **token** that it shows.

One that cannot be reached from here may dial this console: **{adding.invite}** makes a
token for it.

A machine that another console of yours has for a peer is listed as *told by* that one.
"""
    BINDINGS = bindings("adding")
    TYPING = True
    DEFAULT_CSS = """
    AddPeerDialog {
        & Horizontal { height: 1; }
        & Label { width: 10; color: $dim; }
        & NameList { margin: 1 0 0 0; }
        & #add-remark {
            height: auto;
            max-height: 8;
            margin: 1 0 0 0;
            color: $dim;
            &.-wrong { color: $bad; }
            &.-good { color: $ok; }
            &.-busy { color: $foreground; }
        }
        & #add-choices { height: auto; margin: 1 0 0 0; }
        & .-form #add-choices { display: none; }
        & .-added NameList { display: none; }
    }
    """

    def __init__(self, cluster: ClusterService, peers: tuple[Peer, ...] = ()) -> None:
        super().__init__()
        self._cluster = cluster
        self.follows = ""
        """The peer being added; empty before."""
        self._added = self._was_known = False
        self._peers = peers
        self._known: tuple[KnownMachine, ...] = ()
        self._found = FoundWorkers()
        self._digits = ""
        self._suggested = ""
        self._picked = self._typed = ""
        self._shown: AddOutcome | None = None
        self._address = LineInput(placeholder="mini", id="add-address")
        self._called = LineInput(placeholder="filled in", id="add-name")
        self._bare = TickBox("bare rpc-server, started by somebody else")
        self._names = NameList()
        self._remark = Static(OPENING, id="add-remark", markup=False)
        self._choices = Vertical(id="add-choices")
        self._box = Vertical(classes="dialog -form")

    def compose(self) -> ComposeResult:
        self._box.border_title = "Add a machine"
        self.show_keys(self._box, *FORM_KEYS)
        with self._box:
            yield Horizontal(Label("address"), self._address)
            yield Horizontal(Label("name"), self._called)
            yield Horizontal(Label(""), self._bare)
            yield self._names
            yield self._remark
            yield self._choices

    def on_mount(self) -> None:
        self._address.focus()
        self._read_names()
        self._look_around()
        self.set_interval(LOOK_EVERY_S, self._look_around)

    def action_cancel(self) -> None:
        if self._digits:
            # The owner of that machine is not to compare any more.
            self.app.run_worker(self._decided(False), exit_on_error=False)
        super().action_cancel()

    @work(group="around", exclusive=True, exit_on_error=False)
    async def _look_around(self) -> None:
        with contextlib.suppress(DllmError):
            found = await self._cluster.found_workers()
            if found.problem and found.problem != self._found.problem:
                self._say(found.problem)
            self._found = found
            self._show_names()

    @work(group="names", exit_on_error=False)
    async def _read_names(self) -> None:
        try:
            self._known = await self._cluster.peers_to_pick()
            self._show_names()
        except DllmError as error:
            self._say(str(error), "wrong")

    def _show_names(self) -> None:
        wanted = self._typed
        here = [one for one in self._found.workers if not one.peer]
        chosen = self._names.chosen
        self._names.rows = rows = (
            *(w for w in here if wanted in f"{w.name} {w.address}".lower()),
            *(k for k in self._known if wanted in f"{k.name} {k.address}".lower()),
        )
        # They come and go: the cursor stays with its row.
        if chosen in rows:
            self._names.selected = rows.index(chosen)

    @on(Input.Changed, "#add-address")
    def _address_changed(self, event: Input.Changed) -> None:
        if event.value != self._picked:
            self._picked, self._typed = "", event.value.strip().lower()
            self._show_names()
        if self._called.value in ("", self._suggested):
            taken = {peer.name for peer in self._peers}
            # A worker names itself.
            itself = is_token(event.value) or any(
                one.address == event.value for one in self._found.workers
            )
            told = {one.address: one.name for one in self._known}
            named = told.get(event.value, event.value)
            self._suggested = "" if itself else suggested_name(named, taken)
            self._called.value = self._suggested
        self._open_form()

    @on(TickBox.Changed)
    def _bare_changed(self) -> None:
        self._names.display = not self._bare.value
        self._address.placeholder = "10.0.0.7:50052" if self._bare.value else "mini"
        self._open_form()

    def action_invite(self) -> None:
        if not self.follows:
            self.dismiss(("invite", ""))

    def action_pick(self, by: int) -> None:
        if self._names.display:
            self._names.move(by)

    @on(RowList.Picked)
    def _row_picked(self, message: RowList.Picked) -> None:
        message.stop()
        if isinstance(message.row, Choice):
            self._go_on(message.row)
        elif not self.follows:
            address = message.row.address
            self._picked = self._address.value = address
            self._address.cursor_position = len(address)

    @on(Input.Submitted)
    def action_add(self) -> None:
        if not self._address.value.strip():
            self._say("Type an address, or pick a name.", "wrong")
        elif not self.follows:
            self._add(self._address.value.strip(), self._called.value.strip())

    @work(group="add", exclusive=True, exit_on_error=False)
    async def _add(self, address: str, name: str) -> None:
        way = "bare" if self._bare.value else "ssh"
        way = "token" if is_token(address) else way
        self._say(f"Adding {name or 'it'}…", "busy")
        self.follows = name or address
        before = {peer.name for peer in self._peers}
        try:
            digits = ""
            if way == "ssh" and is_place(address):
                digits = await self._begin_pairing(name, address)
            if digits:
                peer = await self._cluster.pairing_outcome(digits)
            else:
                told = [one for one in self._known if one.address == address]
                keys = told[0].fingerprints if told else ()
                asked = {way: address}
                peer = await self._cluster.add_peer(name, **asked, trusted=keys)
        except DllmError as error:
            self.follows = self._digits = ""
            await self._choices.remove_children()
            self.show_keys(self._box, *FORM_KEYS)
            self._form_is_open(True)
            self._say(str(error), "wrong")
            self._address.focus()
            return
        self._digits = ""
        await self._choices.remove_children()
        # A lent machine is known by its key, whatever it is called here.
        self._was_known = peer.name in before
        self._added, self.follows = True, peer.name
        self.post_message(PeerAdded(peer.name))
        self.show_keys(self._box, ("adding.cancel", "closes"))
        self._form_is_open(False)
        self._show_outcome(peer)
        self.show_peers(self._peers)

    async def _begin_pairing(self, name: str, address: str) -> str:
        """Show digits, if a worker listens there; an SSH server has none."""
        pairing = await self._cluster.begin_pairing(name, address)
        self._digits = digits = pairing.digits
        if digits:
            self._form_is_open(False)
            self.show_keys(self._box, ("adding.cancel", "closes"))
            shown = format_digits(digits)
            self._say(f"Does the screen of {pairing.name} show {shown}?", "busy")
            choices = ChoiceList(COMPARING)
            await self._choices.mount(choices)
            choices.focus()
        return digits

    async def _decided(self, agrees: bool) -> None:
        digits, self._digits = self._digits, ""
        # Who waits for the outcome is told what goes wrong.
        with contextlib.suppress(DllmError):
            await self._cluster.decide_pairing(digits, agrees=agrees)

    @work(group="decide", exit_on_error=False)
    async def _decide(self, agrees: bool) -> None:
        await self._choices.remove_children()
        self._say("Waiting for the owner of that machine…", "busy")
        await self._decided(agrees)

    def show_peers(self, peers: tuple[Peer, ...]) -> None:
        self._peers = peers
        for peer in peers:
            if self._added and peer.name == self.follows:
                self._show_outcome(peer)

    def _show_outcome(self, peer: Peer) -> None:
        outcome = outcome_of(peer, was_known=self._was_known)
        if outcome == self._shown:
            return
        before, self._shown = self._shown, outcome
        self._say(outcome.text, outcome.tone)
        if before is None or before.choices != outcome.choices:
            self._offer(outcome)

    @work(group="offer", exclusive=True, exit_on_error=False)
    async def _offer(self, outcome: AddOutcome) -> None:
        await self._choices.remove_children()
        if outcome.choices:
            choices = ChoiceList(outcome.choices)
            await self._choices.mount(choices)
            choices.focus()

    def _go_on(self, choice: Choice) -> None:
        if choice in COMPARING:
            self._decide(choice.id == "agree")
        elif choice.id == "again":
            self._forget()
        else:
            self.dismiss(None if choice.id == "close" else (choice.id, self.follows))

    @work(group="add", exclusive=True, exit_on_error=False)
    async def _forget(self) -> None:
        try:
            await self._cluster.remove_peer(self.follows)
        except DllmError as error:
            self._say(str(error), "wrong")
            return
        self.follows, self._added, self._shown = "", False, None
        await self._choices.remove_children()
        self.show_keys(self._box, *FORM_KEYS)
        self._form_is_open(True)
        self._open_form()
        self._address.focus()

    def _form_is_open(self, is_open: bool) -> None:
        for field in (self._address, self._called, self._bare):
            field.disabled = not is_open
        self._box.set_class(is_open, "-form")
        self._box.set_class(not is_open, "-added")

    def _open_form(self) -> None:
        self._say(OPENING_BARE if self._bare.value else OPENING)

    def _say(self, text: str, tone: str = "") -> None:
        self._remark.update(safe_line(text))
        for known in ("busy", "good", "wrong"):
            self._remark.set_class(known == tone, f"-{known}")


# --- the outcome ----------------------------------------------------------------------

_LATER = Choice("close", "Later", "c", "it stays among the peers")
_CHOICES = {
    PeerState.READY: (
        Choice("join", "Let it work in the split", "w"),
        Choice("close", "Done", "c"),
    ),
    PeerState.NO_ENGINE: (
        Choice("provision", "Install the engine", "p", "in your own folder there"),
        _LATER,
    ),
    PeerState.ASKING: (Choice("answer", "Answer it", "a"), _LATER),
    PeerState.UNREACHABLE: (
        Choice("again", "Change the address", "e"),
        Choice("close", "Keep it", "c", "it is tried again and again"),
    ),
}
_LIKE = {
    PeerState.MISMATCH: PeerState.NO_ENGINE,
    PeerState.FAILED: PeerState.UNREACHABLE,
    PeerState.STARTING: PeerState.READY,
    PeerState.SERVING: PeerState.READY,
}


class AddOutcome(NamedTuple):
    """The state of a new peer in words."""

    text: str
    tone: str
    """``busy``, ``good`` or ``wrong``."""
    choices: tuple[Choice, ...] = ()


def outcome_of(peer: Peer, *, was_known: bool = False) -> AddOutcome:
    """``was_known``: it has a new place, and is not to be removed again."""
    if was_known:
        made = outcome_of(peer)
        kept = tuple(choice for choice in made.choices if choice.id != "again")
        text = f"{peer.name} was known already: its place is the new one. {made.text}"
        return made._replace(text=text, choices=kept)
    state = _LIKE.get(peer.state, peer.state)
    choices: tuple[Choice, ...] = _CHOICES.get(state, ())
    if state is PeerState.NO_ENGINE and peer.transport == Transport.INVITED:
        # Its owner installs engines there.
        choices = (_LATER,)
    note = note_text(peer)
    if state is PeerState.READY:
        free = ", ".join(
            f"{device.name} {format_bytes(device.usable_bytes)} free"
            for device in peer.devices
        )
        has = f": {free}" if free else ""
        return AddOutcome(f"{peer.name} is ready{has}.", "good", choices)
    if state in UNFIT:
        return AddOutcome(f"{peer.name} is reached. {note}", "busy", choices)
    if state is PeerState.ASKING:
        return AddOutcome(f"{peer.name} needs your input.", "busy", choices)
    if state is PeerState.UNREACHABLE:
        return AddOutcome(note or f"{peer.name} cannot be reached.", "wrong", choices)
    doing = peer.work.title if peer.work else f"Reaching {peer.name}"
    return AddOutcome(f"{doing}…", "busy")
