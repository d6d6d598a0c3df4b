"""Chat: the controller owns the conversation, the console follows it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Literal, NamedTuple, cast

from textual.app import SuspendNotSupported

from backends import text_editor
from backends.errors import DllmError
from backends.state import ChatChange, ChatState, Conversation, PromptCount
from backends.units import format_count
from tui.api.services import ClusterService
from tui.app.console import ConsoleApp
from tui.model.editor import PlanEditor
from tui.model.names import whole_path
from tui.screens.cluster.chat_pane import ChatPane

RETRY_MIN_S = 0.5
RETRY_MAX_S = 5.0
ARRIVES_S = 5.0
"""So long a question waits for the conversation that it goes on with."""


class _Undo(NamedTuple):
    """The effect of ``u``: open a chat, restore a deleted one, choose an answer."""

    verb: Literal["open", "restore", "choose"]
    chat: str
    turn: int = 0
    shown: int = 0


class ChatFlows:
    """Follows the current conversation of cluster and model, and works on it."""

    def __init__(
        self,
        app: ConsoleApp,
        cluster: ClusterService,
        editor: PlanEditor,
        pane: ChatPane,
    ) -> None:
        self._app = app
        self._cluster = cluster
        self._editor = editor
        self._pane = pane
        pane.session = self
        self._of: tuple[str, str] | None = None
        self._state: ChatState | None = None
        self._is_there = asyncio.Event()
        """Set when the controller has sent the conversation."""
        self._undo_of: _Undo | None = None
        self._told = ""

    # --- following -----------------------------------------------------------------

    def look(self) -> None:
        """Follow another conversation if the cluster or its model has changed."""
        of = self._cluster.cluster, self._model
        if self._model and of != self._of:
            self._of = of
            self._keep_undo(None)
            self._app.attempt(self._follow(), group="chat")

    def look_again(self) -> None:
        """Follow it from another moment."""
        self._of = None
        self.look()

    @property
    def _model(self) -> str:
        snapshot = self._editor.snapshot
        if snapshot is not None and snapshot.plan is not None and self._editor.alive:
            return snapshot.plan.model
        return self._editor.plan.model if self._editor.plan else ""

    async def _follow(self) -> None:
        """Show it as it changes; begin again when the controller was away."""
        pause_s = RETRY_MIN_S
        while True:
            try:
                stream = self._cluster.chats.states(self._model)
                states = cast("AsyncGenerator[ChatState, None]", stream)
                self._state = None
                self._is_there.clear()
                async with aclosing(states):
                    async for state in states:
                        pause_s = RETRY_MIN_S
                        self._show(state)
            except DllmError as error:
                self._tell_once(str(error))
            except Exception as error:
                # Whatever it is, a chat that stands still without a word is worse.
                self._tell_once(f"Unexpected {type(error).__name__}: {error}")
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, RETRY_MAX_S)

    def _show(self, state: ChatState) -> None:
        last = self._state
        if last and last.conversation.id != state.conversation.id:
            last = None
        if last and state.seq < last.seq:
            return
        self._state = state
        self._is_there.set()
        self._pane.show(state)
        if state.problem:
            self._tell_once(state.problem)
        elif last:
            self._told = ""

    def _tell_once(self, text: str) -> None:
        if text != self._told:
            self._told = text
            self._app.tell(text, "warning")

    # --- asking --------------------------------------------------------------------

    async def ask(self, question: str | None, again: int | None = None) -> None:
        """Ask, or ask again, None in the same words; nothing typed is lost."""
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(ARRIVES_S):
                    await self._is_there.wait()
            now = self._now
            state = await self._cluster.chats.ask(
                now.id, question, turns=len(now.turns), again=again
            )
        except DllmError as error:
            self._pane.sent_back(question or "", again)
            self._app.report(error.failure(self._app.clock()))
            return
        self._show(state)
        if again is not None:
            self._asked_again(now, again)

    def _asked_again(self, before: Conversation, turn: int) -> None:
        """Remember the way back, and say that follow-ups stay with the old answer."""
        asked = before.turns[turn]
        followed = len(before.turns) - turn - 1
        if asked.reply.said or followed:
            # Answers that said nothing, and that nothing followed, are not kept.
            shown = sum(reply.said for reply in asked.replies[: asked.shown])
            self._keep_undo(_Undo("choose", before.id, turn, shown))
        if followed:
            stay = f"{followed} follow-ups stay" if followed > 1 else "follow-up stays"
            text = f"Asked again. The {stay} with the earlier answer"
            self._app.tell(f"{text}: {{chat.undo}} goes back.")

    @property
    def _now(self) -> Conversation:
        if self._state is None:
            raise DllmError("The chat is still loading", "Try again in a moment.")
        return self._state.conversation

    async def count(self, question: str, again: int | None) -> PromptCount | None:
        """Count the prompt that a question would be; None if nobody tells."""
        if self._state is None:
            return None
        chat = self._state.conversation.id
        try:
            return await self._cluster.chats.count(chat, question, again=again)
        except DllmError:
            return None

    async def compose(self) -> None:
        """Have the draft edited in the user's editor, which gets the terminal."""
        app, failure = self._app, None
        try:
            # What comes meanwhile goes on, and is drawn afterwards.
            with app.batch_update(), app.suspend():
                try:
                    self._pane.draft = await text_editor.edit_text(self._pane.draft)
                except DllmError as error:
                    failure = error.failure(app.clock())
        except SuspendNotSupported:
            app.tell("There is no terminal here for an editor", "warning")
        app.refresh(layout=True)
        if failure is not None:
            app.report(failure)

    async def stop(self) -> None:
        self._show(await self._cluster.chats.stop(self._now.id))

    async def choose(self, turn: int, shown: int) -> None:
        now = self._now
        await self._change(ChatChange(turn=turn, shown=shown), now)
        self._keep_undo(_Undo("choose", now.id, turn, now.turns[turn].shown))

    async def _change(self, change: ChatChange, chat: Conversation) -> None:
        self._show(await self._cluster.chats.change(chat.id, change))

    # --- chats -----------------------------------------------------------------------

    async def new(self) -> None:
        now = self._now
        await self._cluster.chats.begin(self._model)
        self._keep_undo(_Undo("open", now.id))
        said = format_count(len(now.turns), "question")
        self._app.tell(f"New chat. {{chat.undo}} reopens the previous one ({said}).")

    async def open(self) -> None:
        from tui.dialogs.pick import ChatsDialog

        now = self._now
        listing = await self._cluster.chats.listing()
        for problem in listing.problems:
            self._app.tell(problem, "warning")
        dialog = ChatsDialog(
            listing.chats, now.id, self._cluster.cluster, self._app.clock()
        )
        chosen = await self._app.push_screen_wait(dialog)
        if chosen is not None and chosen != now.id:
            await self._cluster.chats.open(chosen, self._model)
            self._keep_undo(_Undo("open", now.id))

    async def delete(self) -> None:
        from tui.dialogs.dialog import confirm

        now = self._now
        questions = format_count(len(now.turns), "question")
        text = f"{now.title}\n\n{questions} and their answers are deleted from disk."
        dialog = confirm("Delete this chat?", text, "Delete it", "y")
        if await self._app.push_screen_wait(dialog) == "yes":
            await self._cluster.chats.delete(now.id)
            self._keep_undo(_Undo("restore", now.id))
            self._app.tell("Deleted the chat. {chat.undo} brings it back.")

    async def undo(self) -> None:
        """Bring back the chat left or deleted, or the answer that was gone on from."""
        chats, now, undo = self._cluster.chats, self._now, self._undo_of
        if undo is None:
            return
        if undo.verb == "choose":
            if undo.chat == now.id:
                await self.choose(undo.turn, undo.shown)
        elif undo.verb == "restore":
            await chats.restore(undo.chat)
            self._keep_undo(None)
        else:
            await chats.open(undo.chat, self._model)
            self._keep_undo(None if now.is_blank else _Undo("open", now.id))

    def _keep_undo(self, undo: _Undo | None) -> None:
        self._undo_of = undo
        self._pane.can_undo = undo is not None

    async def rename(self) -> None:
        from tui.dialogs.dialog import LineDialog

        now = self._now
        dialog = LineDialog(
            "Name this chat", now.name, now.title, "Empty: its first question names it."
        )
        name = await self._app.push_screen_wait(dialog)
        if name is not None:
            await self._change(ChatChange(name=name.strip()), now)

    async def settings(self) -> None:
        from tui.dialogs.sampling import ChatSettings, SamplingDialog

        now = self._now
        dialog = SamplingDialog(ChatSettings(now.system, now.sampling))
        chosen = await self._app.push_screen_wait(dialog)
        if chosen is not None:
            change = ChatChange(system=chosen.system, sampling=chosen.sampling)
            await self._change(change, now)

    async def export(self) -> None:
        from tui.dialogs.dialog import LineDialog
        from tui.flows.chat_export import export_text, suggested_file, write_export

        now = self._now
        typed = str(suggested_file(now, Path.cwd()))
        remark = "An ending of .json writes JSON, any other Markdown."
        while True:
            dialog = LineDialog("Write this chat to", typed, "a file", remark)
            given = await self._app.push_screen_wait(dialog)
            if not given or not given.strip():
                return
            typed = given
            file = Path(whole_path(typed))
            try:
                await asyncio.to_thread(write_export, file, export_text(now, file))
            except FileExistsError:
                remark = f"{file.name} is there already: give another name."
            else:
                self._app.tell(f"Wrote {file}")
                return
