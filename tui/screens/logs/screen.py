"""Logs: what every process of the cluster writes, one tab each, and all as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import platformdirs
from click import echo_via_pager
from rich.cells import cell_len
from textual import on, work
from textual.actions import SkipAction
from textual.app import ComposeResult, SuspendNotSupported
from textual.await_complete import AwaitComplete
from textual.containers import Vertical
from textual.strip import Strip
from textual.widgets import ContentSwitcher, Static, Tab, Tabs

from backends.errors import DllmError
from backends.state import ClusterSnapshot, ProcessInfo
from backends.units import format_count
from tui.api.services import ClusterService
from tui.app.console import console_of
from tui.app.frame import ConsoleScreen
from tui.app.messages import Copyable, Raw
from tui.model.log_levels import LogLevel
from tui.model.names import by_role
from tui.screens.logs.feed import (
    LogFeed,
    MergedFeed,
    end_of_log,
    log_pages,
    save_log,
)
from tui.screens.logs.lines import LogFilter
from tui.screens.logs.view import LogStanding, LogView
from tui.widgets.inputs import FilterBar
from tui.widgets.keys import with_keys
from tui.widgets.strips import Drawn, Part, StripWidget, parts_width, spread

TELLING_CELLS = 16
"""A path cut shorter than this says nothing."""
LEVEL_WORDS = {
    LogLevel.DEBUG: "",
    LogLevel.INFO: "debug hidden",
    LogLevel.WARNING: "warnings and errors",
    LogLevel.ERROR: "errors only",
}


class LogStatus(StripWidget):
    DEFAULT_CSS = "LogStatus { height: 1; padding: 0 1; background: $surface; }"

    standing: Drawn[LogStanding | None] = Drawn(None)
    level: Drawn[LogLevel] = Drawn(LogLevel.DEBUG)
    path: Drawn[str] = Drawn("")

    def draw(self, width: int, height: int) -> list[Strip]:
        if self.standing is None:
            return []
        words = LEVEL_WORDS[self.level]
        left = [
            self._following(self.standing),
            *([(f"{words}  ", self.palette.warn)] if words else []),
            self._counts(self.standing),
        ]
        path = shorten_path(self.path, width - parts_width(left) - 2)
        return [spread(left, [(path, self.palette.dim)], width)]

    def _following(self, standing: LogStanding) -> Part:
        if standing.following:
            return "● following  ", self.palette.ok
        follows = with_keys(self.app, "{log.follow:short} follows")
        if not standing.unseen:
            return f"◌ paused, {follows}  ", self.palette.warn
        unseen = format_count(standing.unseen, "new line")
        return f"↓ {unseen}, {follows}  ", self.palette.warn

    def _counts(self, standing: LogStanding) -> Part:
        counted = format_count(standing.lines, "line")
        if standing.matching != standing.lines:
            shown = format_count(standing.matching, "line").rpartition(" ")[0]
            counted = f"{shown} of {counted}"
        return counted, self.palette.dim


def shorten_path(path: str, room: int) -> str:
    """A path in so many cells, cut on the left; nothing where that says nothing."""
    if cell_len(path) <= room:
        return path
    if room < TELLING_CELLS:
        return ""
    while cell_len(path) >= room:
        path = path[1:]
    return "…" + path


POLL_S = 0.5
GONE_LIMIT = 12
"""Tabs kept of processes that are no longer listed."""
EMPTY = """\
No process has run yet.

Logs of llama-server and of every rpc-server appear here
as soon as a model is launched: 1 goes to the Cluster screen."""


class LogsScreen(ConsoleScreen):
    """A tab per process, following the log of the one shown.

    A log is saved in ``save_folder``; None means the downloads.
    """

    AUTO_FOCUS = ""
    FIGURES = False

    HELP = LogView.HELP

    DEFAULT_CSS = """
    LogsScreen {
        & #log-tabs { height: 2; }
        & #log-none { padding: 1 2; color: $dim; display: none; }
        & #log-area { height: 1fr; }
        & ContentSwitcher { height: 1fr; }
        &.-empty {
            & #log-tabs, & #log-area { display: none; }
            & #log-none { display: block; }
        }
    }
    """

    def __init__(
        self,
        cluster: ClusterService,
        *,
        poll_s: float = POLL_S,
        save_folder: Path | None = None,
    ) -> None:
        super().__init__()
        self.add_class("-empty")
        self._cluster = cluster
        self._poll_s = poll_s
        self._save_folder = save_folder
        self._feeds: dict[str, LogFeed] = {}
        self._wanted = self._before_all = ""
        self._opened = 0
        self._added: list[AwaitComplete] = []
        self._all = MergedFeed(cluster, LogView("merged", id="log-all"))
        self._tabs = Tabs(Tab("all", id=_tab_id(self._all.view)), id="log-tabs")
        self._tabs.can_focus = False
        self._views = ContentSwitcher(id="log-views")
        self._filter_bar = FilterBar("text to keep, or /pattern", id="log-filter")
        self._status = LogStatus(id="log-status")

    def compose_body(self) -> ComposeResult:
        yield self._tabs
        yield Static(EMPTY, id="log-none", markup=False)
        with Vertical(id="log-area"):
            with self._views:
                yield self._all.view
            yield self._filter_bar
            yield self._status

    # --- processes and tabs -------------------------------------------------

    def show_snapshot(self, snapshot: ClusterSnapshot) -> None:
        super().show_snapshot(snapshot)
        found = [self._show_info(info) for info in by_role(snapshot.processes)]
        added = [mount for mount in found if mount is not None]
        listed = {info.name for info in snapshot.processes}
        for name, feed in self._feeds.items():
            feed.gone = name not in listed
        gone = [name for name, feed in self._feeds.items() if feed.gone]
        for name in gone[:-GONE_LIMIT]:
            feed = self._feeds.pop(name)
            self._tabs.remove_tab(_tab_id(feed.view))
            feed.view.remove()
        self._title_tabs()
        self._status.path = self._active.info.log_path if self._active else ""
        if self.has_class("-empty") and self._feeds:
            self._wanted = self._wanted or next(iter(self._feeds))
        self.set_class(not self._feeds, "-empty")
        if added or self._wanted:
            self._added = added or self._added
            self._open_once_there()

    def show_process(self, name: str) -> None:
        self._wanted = name
        if self.is_mounted and self.shown is not None:
            self._open_once_there()

    def _show_info(self, info: ProcessInfo) -> AwaitComplete | None:
        feed = self._feeds.get(info.name)
        if feed is not None:
            feed.update(info)
            return None
        self._opened += 1
        view = LogView(info.name, id=f"log-{self._opened}")
        feed = self._feeds[info.name] = LogFeed(info, view)
        self._views.add_content(view)
        return self._tabs.add_tab(Tab(feed.title(), id=_tab_id(view)))

    @work(group="log-tabs", exit_on_error=False)
    async def _open_once_there(self) -> None:
        for mount in self._added:
            await mount
        feed = self._feeds.get(self._wanted)
        wanted, self._wanted = self._wanted, ""
        if feed is not None:
            self._tabs.active = _tab_id(feed.view)
            feed.view.action_follow()
            feed.view.focus()
        elif wanted:
            said = f"There is no log of {wanted} any more"
            console_of(self).tell(said, "warning")

    def _title_tabs(self) -> None:
        titles = {_tab_id(feed.view): feed.title() for feed in self._feeds.values()}
        for tab in self._tabs.query(Tab):
            title = titles.get(tab.id or "")
            if title is not None and title != tab.label:
                tab.label = title

    @property
    def _view(self) -> LogView | None:
        if self._active is not None:
            return self._active.view
        return self._all.view if self._feeds else None

    @property
    def _active(self) -> LogFeed | None:
        active = self._tabs.active
        feeds = self._feeds.values()
        return next((feed for feed in feeds if _tab_id(feed.view) == active), None)

    @on(Tabs.TabActivated)
    def _tab_activated(self, event: Tabs.TabActivated) -> None:
        event.stop()
        feed, view = self._active, self._view
        if view is None:
            return
        self._views.current = view.id
        self._status.standing = view.standing
        self._status.path = feed.info.log_path if feed else ""
        self._apply_filter()
        if not self._filter_bar.has_focus_within:
            view.focus()
        self._restart_reading()

    def action_next_log(self, step: int) -> None:
        views = [self._all.view, *(feed.view for feed in self._feeds.values())]
        if self._view is None:
            raise SkipAction
        view = views[(views.index(self._view) + step) % len(views)]
        self._tabs.active = _tab_id(view)

    def action_all(self) -> None:
        """Show all logs as one, or again the one before."""
        if self._active is not None:
            self._before_all = _tab_id(self._active.view)
            self._tabs.active = _tab_id(self._all.view)
        elif any(_tab_id(f.view) == self._before_all for f in self._feeds.values()):
            self._tabs.active = self._before_all

    # --- reading --------------------------------------------------------------

    def on_screen_resume(self) -> None:
        if self._view is not None:
            self._view.focus()
        self._restart_reading()

    def on_screen_suspend(self) -> None:
        self.workers.cancel_group(self, "logs")

    def hold(self, held: bool) -> None:
        if held == self.status_line.held:
            return
        super().hold(held)
        if held:
            self.workers.cancel_group(self, "logs")
        else:
            self._restart_reading()

    def _restart_reading(self) -> None:
        if not self.is_current or self._view is None or self.status_line.held:
            return
        if self._active is not None:
            self._read(self._active)
        else:
            self._read_all()

    def read_again(self) -> None:
        self._all.forget()
        for feed in self._feeds.values():
            feed.forget()
        self._restart_reading()

    @work(group="logs", exclusive=True, exit_on_error=False)
    async def _read(self, feed: LogFeed) -> None:
        while True:
            try:
                offset, limit = feed.next_read
                feed.take(await self._cluster.read_log(feed.info.name, offset, limit))
                if feed.is_behind:
                    await asyncio.sleep(0)
                    continue
            except DllmError as error:
                if str(error) != feed.trouble:
                    feed.trouble = str(error)
                    console_of(self).report(error.failure())
            await asyncio.sleep(self._poll_s)

    @work(group="logs", exclusive=True, exit_on_error=False)
    async def _read_all(self) -> None:
        while True:
            if self.shown is not None:
                await self._all.read(self.shown)
            await asyncio.sleep(0 if self._all.is_behind else self._poll_s)

    # --- filter, status, saving -----------------------------------------------

    @on(LogView.Changed)
    def _log_changed(self, event: LogView.Changed) -> None:
        event.stop()
        if event.view is self._view:
            self._status.standing = event.standing
            self._count()

    def action_filter(self) -> None:
        self._filter_bar.open()

    def action_unfilter(self) -> None:
        if self._view is not None and self._view.leave_line():
            return
        if self._filter_bar.text:
            self._filter_bar.action_clear()
        elif self._status.level is not LogLevel.DEBUG:
            self._status.level = LogLevel.DEBUG
            self._apply_filter()
        else:
            raise SkipAction

    def action_level(self) -> None:
        self._status.level = self._status.level.after()
        self._apply_filter()

    @on(FilterBar.Changed)
    def _filter_changed(self, event: FilterBar.Changed) -> None:
        event.stop()
        self._apply_filter()

    @on(FilterBar.Left)
    def _filter_left(self, event: FilterBar.Left) -> None:
        event.stop()
        if self._view is not None:
            self._view.focus()

    def _apply_filter(self) -> None:
        """Filter the log shown by text and level; a pattern that is none is ignored."""
        view, text = self._view, self._filter_bar.text
        if view is None:
            return
        try:
            merged = view is self._all.view
            wanted = LogFilter.parse(text, merged=merged) if text else None
        except ValueError as error:
            self._filter_bar.wrong = True
            self._filter_bar.note = str(error)
            view.set_filter(view.filter, self._status.level)
            return
        self._filter_bar.wrong = False
        view.set_filter(wanted, self._status.level)
        self._count()

    def _count(self) -> None:
        if self._view is not None and not self._filter_bar.wrong:
            standing = self._view.standing
            kept = f"{standing.matching} of {standing.lines}"
            self._filter_bar.note = kept if self._filter_bar.text else ""

    def raw(self) -> Raw | None:
        feed = self._active
        return Raw(f"process {feed.info.name}", feed.info) if feed else super().raw()

    def copyable(self) -> Copyable | None:
        return self._view.copyable() if self._view else None

    @work(group="log-save", exclusive=True, exit_on_error=False)
    async def action_save(self) -> None:
        if self._view is None:
            return
        name, pages = self._view.title, _lines(self._view)
        if self._active is not None:
            pages = log_pages(self._cluster, name)
        folder = self._save_folder or Path(platformdirs.user_downloads_dir())
        try:
            path = await save_log(pages, name, folder)
        except DllmError as error:
            console_of(self).report(error.failure())
        else:
            console_of(self).tell(f"Saved the {name} log to {path}")

    @work(group="log-pager", exclusive=True, exit_on_error=False)
    async def action_pager(self) -> None:
        if self._view is None:
            return
        try:
            if self._active is None:
                text = "\n".join(self._view.lines)
            else:
                text = await end_of_log(self._cluster, self._view.title)
        except DllmError as error:
            console_of(self).report(error.failure())
            return
        try:
            with self.app.suspend():
                echo_via_pager(text, color=False)
        except SuspendNotSupported:
            said = "There is no terminal here for a pager: {log.save} saves the log"
            console_of(self).tell(said, "warning")


async def _lines(view: LogView) -> AsyncIterator[str]:
    for line in view.lines:
        yield f"{line}\n"


def _tab_id(view: LogView) -> str:
    return f"tab-{view.id}"
