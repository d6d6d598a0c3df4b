"""Actions of the Logs screen."""

from __future__ import annotations

from tui.actions.action import Action

LOGS = (
    Action(
        "log.next",
        "right_square_bracket",
        "screen.next_log(1)",
        "log",
        "Next log",
        True,
        "[ ]",
    ),
    Action(
        "log.previous",
        "left_square_bracket",
        "screen.next_log(-1)",
        "previous log",
        "Previous log",
    ),
    Action(
        "log.filter",
        "slash",
        "screen.filter",
        "filter",
        "Show only lines with a text or a /pattern",
        True,
        "/",
    ),
    Action(
        "log.level",
        "v",
        "screen.level",
        "level",
        "Leave out debugging, then all but warnings, then all but errors",
        True,
    ),
    Action("log.fold", "w", "fold", "wrap", "Wrap long lines, or cut them", True),
    Action(
        "log.save", "S", "screen.save", "save", "Save the whole log to a file", True
    ),
    Action(
        "log.pager",
        "P",
        "screen.pager",
        "pager",
        "Read the whole log in your pager ($PAGER)",
    ),
    Action(
        "log.follow",
        "end,G",
        "follow",
        "follow",
        "Go to the newest line and follow",
        True,
        "End",
    ),
    Action("log.first", "home,g", "scroll_home", "first", "The oldest line held"),
    Action("log.up", "up,k", "scroll_up", "up", "A line up"),
    Action("log.down", "down,j", "scroll_down", "down", "A line down"),
    Action("log.left", "left,h", "sideways(-1)", "left", "Move sideways"),
    Action("log.right", "right,l", "sideways(1)", "right", "Move sideways"),
    Action(
        "log.unfilter",
        "escape",
        "screen.unfilter",
        "show all",
        "Remove the filter, then the level",
    ),
    Action("filter.clear", "escape", "clear", "clear", "Remove the filter", True),
)
