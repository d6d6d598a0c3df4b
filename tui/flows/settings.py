"""Showing and changing the settings of config.toml, and following them at once."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from backends.config import Setting, SettingsFile
from backends.errors import DllmError, UsageError
from tui.app.console import ClusterConsole, Flow
from tui.settings_check import all_problems

NO_FILE = "This console has no settings file"


class SettingsFlow(Flow):
    """Shows and writes settings; raises errors of the file."""

    def __init__(self, app: ClusterConsole, file: SettingsFile | None) -> None:
        super().__init__(app)
        self._file = file

    async def all(self) -> list[Setting]:
        return await asyncio.to_thread(self._file.read) if self._file else []

    async def value(self, name: str) -> Any:
        return next((one.value for one in await self.all() if one.name == name), None)

    async def show(self, name: str = "") -> None:
        from tui.dialogs.settings import SettingsDialog

        if self._file is None:
            self._app.tell(NO_FILE)
            return
        settings = await asyncio.to_thread(self._file.read)
        dialog = SettingsDialog(self._file.name, settings, self.change, find=name)
        await self._app.push_screen_wait(dialog)

    async def switch_pulse(self) -> None:
        """Turn the token pulse on or off, now and from the next start on."""
        wanted = not self._app.pulse
        self._app.pulse = wanted
        if self._file is not None and not self._app.readonly:
            await self.change("pulse", "true" if wanted else "false")
        still = wanted and not self._app.pulses
        why = ", but motion is off (NO_MOTION or TEXTUAL_ANIMATIONS)" if still else ""
        self._app.tell(f"The token pulse is {'on' if wanted else 'off'}{why}")

    async def change(self, name: str, text: str | None) -> list[Setting]:
        """Write one, let console and controller follow; return all as they are then."""
        if self._file is None:
            raise UsageError(NO_FILE)
        if self._app.readonly:
            raise UsageError(self._app.refusal)
        # Its dialog may be closed meanwhile: all of it happens, or nothing.
        return await asyncio.shield(self._write(self._file, name, text))

    async def _write(
        self, file: SettingsFile, name: str, text: str | None
    ) -> list[Setting]:
        problems = partial(all_problems, themes=self._app.theme_names)
        await asyncio.to_thread(file.change, name, text, problems)
        self._app.follow_settings(await asyncio.to_thread(file.config))
        try:
            await self._cluster.settings_taken()
        except DllmError as error:
            said = f"The controller has not applied this yet: {error}"
            self._app.tell(said, "warning")
        return await asyncio.to_thread(file.read)
