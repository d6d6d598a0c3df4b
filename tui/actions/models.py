"""Actions of the Models screen."""

from __future__ import annotations

from tui.actions.action import Action

MODELS = (
    Action("models.choose", "enter", "choose", "use", "Use this model", True, "⏎"),
    Action("models.filter", "slash", "filter", "filter", "Filter by name", True, "/"),
    Action("models.sort", "o", "sort", "sort", "Sort by the next column", True),
    Action("models.reverse", "O", "reverse", "reverse", "Turn the order round"),
    Action(
        "models.rescan",
        "r",
        "rescan",
        "rescan",
        "Look through the model folders again",
        True,
    ),
    Action(
        "models.path",
        "p",
        "open_path",
        "path…",
        "Use any GGUF file by its path",
        True,
    ),
    Action("models.down", "j", "move(1)", "down", "Next model"),
    Action("models.up", "k", "move(-1)", "up", "Previous model"),
    Action("models.first", "g", "move(-100000)", "first", "First model"),
    Action("models.last", "G", "move(100000)", "last", "Last model"),
    Action(
        "models.detail_down",
        "shift+down",
        "scroll_detail(2)",
        "detail down",
        "Scroll what is known of the model",
    ),
    Action(
        "models.detail_up",
        "shift+up",
        "scroll_detail(-2)",
        "detail up",
        "Scroll it back",
    ),
    Action("models.unfilter", "escape", "unfilter", "show all", "Remove the filter"),
)

PATH = (
    Action(
        "path.complete", "tab", "complete", "complete", "Complete the path being typed"
    ),
)
