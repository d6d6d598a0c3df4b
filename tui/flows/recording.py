"""Recording what the console receives: begun and ended by a key."""

from __future__ import annotations

from tui.api.services import RecordService
from tui.app.console import ClusterConsole, Flow

TITLE = "Record this console?"
TEXT = """\
What it is told goes to a file in this folder, to be replayed anywhere: snapshots, \
events, logs and chats. API keys, tokens and passwords are left out; names and \
addresses of machines are not."""


class RecordFlow(Flow):
    """Begins a record, follows it, and ends it."""

    def __init__(self, app: ClusterConsole, records: RecordService | None) -> None:
        super().__init__(app)
        self._records = records

    def look(self) -> None:
        """Follow the record that goes on, if one does."""
        if self._records is not None and self._records.file:
            self._app.show_recording(True)
            self._app.attempt(self._follow(self._records), group="recording")

    async def switch(self) -> None:
        # Imported when needed, like all dialogs.
        from tui.dialogs.dialog import ChoiceDialog
        from tui.widgets.row_list import Choice

        records = self._records
        if records is None:
            self._app.tell(self._app.refusal, "warning")
            return
        if records.file:
            said = await records.end()
            self._app.show_recording(False)
            self._app.tell(f"Recorded {said}")
            return
        choices = (
            Choice("words", "Record all", "r", "with prompts and answers"),
            Choice("none", "Record without words", "w", "each sign becomes a dot"),
            Choice("cancel", "Cancel", "n"),
        )
        chosen = await self._app.push_screen_wait(ChoiceDialog(TITLE, TEXT, choices))
        if chosen in ("words", "none"):
            size = self._app.size.width, self._app.size.height
            records.begin(size=size, words=chosen == "words")
            self._app.tell(f"Recording to {records.file}; {{app.record}} ends it")
            self.look()

    async def _follow(self, records: RecordService) -> None:
        file = records.file
        why = await records.follow()
        self._app.show_recording(False)
        if why:
            self._app.tell(f"The record {file} ends here: {why}", "error")
