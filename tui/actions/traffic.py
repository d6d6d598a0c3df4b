"""Actions of the Traffic screen."""

from __future__ import annotations

from tui.actions.action import Action

TRAFFIC = (
    Action(
        "traffic.filter",
        "slash",
        "filter",
        "filter",
        "Filter by worker and command",
        True,
        "/",
    ),
    Action("traffic.sort", "o", "sort", "sort", "Sort by the next column", True),
    Action("traffic.reverse", "O", "reverse", "reverse", "Turn the order round"),
    Action(
        "traffic.median",
        "v",
        "median",
        "median",
        "Show the median of the latest tokens, or the latest one",
        True,
    ),
    Action(
        "traffic.worker",
        "w",
        "next_worker",
        "worker",
        "Show the tokens of one worker alone, or of all",
    ),
    Action(
        "traffic.export",
        "x",
        "export",
        "export",
        "Write the latest tokens to a file as a Chrome trace",
        True,
    ),
    Action("traffic.down", "j", "move(1)", "down", "Next row"),
    Action("traffic.up", "k", "move(-1)", "up", "Previous row"),
    Action("traffic.first", "g", "move(-100000)", "first", "First row"),
    Action("traffic.last", "G", "move(100000)", "last", "Last row"),
    Action("traffic.unfilter", "escape", "unfilter", "show all", "Remove the filter"),
)


TOKEN = (
    Action(
        "token.median",
        "v",
        "median",
        "median",
        "Show the median of the latest tokens, or the latest one",
        True,
    ),
    Action(
        "token.worker",
        "w",
        "next_worker",
        "worker",
        "Show the tokens of one worker alone, or of all",
        True,
    ),
)
