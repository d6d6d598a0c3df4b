"""The screens beside the first; imported when they are needed: a start is short."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tui.app.app import DllmApp
    from tui.app.frame import ConsoleScreen


def _logs(app: DllmApp) -> ConsoleScreen:
    from tui.screens.logs.screen import LogsScreen

    return LogsScreen(app.cluster)


def _traffic(app: DllmApp) -> ConsoleScreen:
    from tui.screens.traffic.screen import TrafficScreen

    return TrafficScreen(app.cluster)


def _models(app: DllmApp) -> ConsoleScreen:
    from tui.screens.models.screen import ModelsScreen

    return ModelsScreen(app.cluster)


def _lab(app: DllmApp) -> ConsoleScreen:
    from tui.screens.lab.screen import LabScreen

    return LabScreen(app.cluster)


MODES: Mapping[str, Callable[[DllmApp], ConsoleScreen]] = {
    "traffic": _traffic,
    "lab": _lab,
    "logs": _logs,
    "models": _models,
}
"""The function that makes the screen of each mode."""
