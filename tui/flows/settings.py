"""Showing and changing the settings of config.toml, and following them at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from backends.errors import UsageError
from tui.actions.settings_check import all_problems
from tui.shell.console import REFUSED
from tui.shell.messages import Notice

if TYPE_CHECKING:
    from backends.settings import Problem, Setting, SettingsFile
    from tui.flows.console import DeskConsole


class SettingsFlow:
    """What the app runs in a worker; errors of the file come out of it."""

    def __init__(self, app: DeskConsole, file: SettingsFile | None) -> None:
        """Change this file; without one there is nothing to change."""
        self._app = app
        self._file = file

    async def all(self) -> list[Setting]:
        """Every setting as it counts; none where there is no file."""
        return await asyncio.to_thread(self._file.read) if self._file else []

    async def show(self, name: str = "") -> None:
        """Show every setting, those of this name first, until the user is done."""
        from tui.dialogs.settings import SettingsDialog

        if self._file is None:
            self._app.post_message(Notice("This console has no settings file"))
            return
        settings = await asyncio.to_thread(self._file.read)
        dialog = SettingsDialog(self._file.name, settings, self._change, find=name)
        await self._app.push_screen_wait(dialog)

    async def _change(self, name: str, text: str | None) -> list[Setting]:
        """Write one, let the console follow; all of them as they are then."""
        assert self._file is not None
        if self._app.readonly:
            raise UsageError(REFUSED)
        await asyncio.to_thread(self._file.change, name, text, self._problems)
        self._app.follow_settings(await asyncio.to_thread(self._file.config))
        return await asyncio.to_thread(self._file.read)

    def _problems(self, text: str) -> list[Problem]:
        return all_problems(text, self._app.theme_names)
