"""Every action of the console in one table: keys, footer, help and palette read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from textual.binding import Binding, BindingType

if TYPE_CHECKING:
    from collections.abc import Mapping


class Action(NamedTuple):
    """One thing a key does."""

    id: str
    """``area.verb``; what a keymap in the configuration names."""
    keys: str
    """Default keys, separated by commas, in Textual's spelling."""
    action: str
    """The action to run, in the namespace of the widget that binds it."""
    label: str
    """One or two words for the footer."""
    tooltip: str
    """One sentence for help and palette."""
    show: bool = False
    """Whether the footer offers it."""
    display: str | None = None
    """How the footer writes the keys, where the spelling is clumsy."""
    priority: bool = False
    """Whether it wins over the focused widget."""

    @property
    def area(self) -> str:
        """The pane or screen it belongs to."""
        return self.id.partition(".")[0]


APP = (
    Action(
        "app.cluster",
        "1,f1",
        "app.show_mode('cluster')",
        "Cluster",
        "Peers, split, live figures and chat",
    ),
    Action(
        "app.logs", "5,f5", "app.show_mode('logs')", "Logs", "The log of each process"
    ),
    Action(
        "app.models",
        "6,f6",
        "app.show_mode('models')",
        "Models",
        "Model files found on this machine",
    ),
    Action(
        "app.help",
        "question_mark",
        "app.help",
        "help",
        "Help and keys of the focused pane",
        True,
        "?",
    ),
    Action(
        "app.palette",
        "colon,ctrl+p",
        "app.command_palette",
        "command",
        "Find and run any action by name",
        True,
        ":",
    ),
    Action("app.copy", "y", "app.copy", "copy", "Copy what the focused pane offers"),
    Action("app.theme", "t", "app.theme", "theme", "Pick a theme with a live preview"),
    Action(
        "app.events",
        "e",
        "app.events",
        "events",
        "Read again what toasts have said",
    ),
    Action(
        "app.quit",
        "q,ctrl+q",
        "app.quit_console",
        "quit",
        "Leave the console; asks what to do with a running cluster",
        True,
    ),
    Action(
        "app.interrupt",
        "ctrl+c",
        "app.interrupt",
        "copy selection",
        "Copy the selected text; never ends anything",
    ),
    Action("app.back", "escape", "app.back", "back", "Leave zoom, then this screen"),
)

CLUSTER = (
    Action(
        "cluster.launch",
        "l",
        "app.launch",
        "launch",
        "Run the split as it is shown",
        True,
    ),
    Action(
        "cluster.stop", "s", "app.stop", "stop", "Stop the running cluster (asks)", True
    ),
    Action(
        "cluster.balance",
        "b",
        "app.balance",
        "balance",
        "Deal the layers out by the memory of the devices",
        True,
    ),
    Action("cluster.model", "m", "app.pick_model", "model", "Pick another model", True),
    Action(
        "cluster.zoom",
        "z",
        "screen.zoom",
        "zoom",
        "Give the focused pane the whole screen, and back",
        True,
    ),
    Action("cluster.next_pane", "tab", "screen.next_pane", "next pane", "Next pane"),
    Action(
        "cluster.previous_pane",
        "shift+tab",
        "screen.previous_pane",
        "previous pane",
        "Previous pane",
    ),
)

SPLIT = (
    Action(
        "split.more",
        "right",
        "move(1)",
        "move",
        "Move the boundary right: one layer more for the device on its left",
        True,
        "←→",
    ),
    Action("split.less", "left", "move(-1)", "one less", "Move the boundary left"),
    Action(
        "split.much_more",
        "shift+right",
        "move(4)",
        "four more",
        "Move the boundary four layers right",
    ),
    Action(
        "split.much_less",
        "shift+left",
        "move(-4)",
        "four less",
        "Move the boundary four layers left",
    ),
    Action(
        "split.none",
        "home",
        "move_to_end(-1)",
        "far left",
        "Move the boundary as far left as it goes",
    ),
    Action(
        "split.all",
        "end",
        "move_to_end(1)",
        "far right",
        "Move the boundary as far right as it goes",
    ),
    Action(
        "split.next_boundary",
        "right_square_bracket",
        "pick(1)",
        "pick",
        "Pick the next boundary",
        True,
        "[]",
    ),
    Action(
        "split.previous_boundary",
        "left_square_bracket",
        "pick(-1)",
        "previous boundary",
        "Pick the previous boundary",
    ),
    Action(
        "split.later",
        "greater_than_sign",
        "reorder(1)",
        "swap",
        "Exchange the device left of the boundary with the next one",
        True,
        "<>",
    ),
    Action(
        "split.earlier",
        "less_than_sign",
        "reorder(-1)",
        "earlier",
        "Exchange the device left of the boundary with the one before",
    ),
    Action("split.undo", "u", "undo", "undo", "Take the last change back", True),
    Action("split.redo", "U,ctrl+y", "redo", "redo", "Make the undone change again"),
    Action(
        "split.apply",
        "enter",
        "apply_typed",
        "apply",
        "Give the device left of the boundary the number of layers typed",
    ),
    Action(
        "split.erase", "backspace", "erase_typed", "erase", "Erase the last digit typed"
    ),
    Action(
        "split.cancel",
        "escape",
        "cancel",
        "cancel",
        "Cancel the drag or the number being typed",
    ),
)

PEERS = (
    Action("peers.down", "down,j", "select(1)", "select", "Next peer", True, "↑↓"),
    Action("peers.up", "up,k", "select(-1)", "up", "Previous peer"),
    Action("peers.first", "home,g", "select(-1000)", "first", "First peer"),
    Action("peers.last", "end,G", "select(1000)", "last", "Last peer"),
)

LIVE = (
    Action(
        "live.log",
        "o",
        "open_log",
        "open log",
        "Read the log of the process that failed, or of llama-server",
        True,
    ),
)

DIALOG = (
    Action("choice.choose", "enter", "choose", "choose", "Give the selected answer"),
    Action("choice.down", "down,j,tab", "select(1)", "down", "Next answer"),
    Action("choice.up", "up,k,shift+tab", "select(-1)", "up", "Previous answer"),
    Action("dialog.cancel", "escape", "cancel", "cancel", "Close, changing nothing"),
)

# The four blocks below belong to the chat, Logs and Models code.
CHAT = (
    Action("composer.send", "enter", "send", "send", "Send the question", True),
    Action(
        "composer.newline",
        "ctrl+j,shift+enter",
        "newline",
        "new line",
        "Begin a new line",
        True,
        "^j",
    ),
    Action(
        "composer.page_up", "pageup", "page(-1)", "scroll up", "Scroll the conversation"
    ),
    Action(
        "composer.page_down", "pagedown", "page(1)", "scroll down", "Scroll it down"
    ),
    Action(
        "chat.leave",
        "escape",
        "leave",
        "leave",
        "Go from the text field to the conversation",
    ),
    Action("chat.stop", "escape", "stop_answer", "stop", "Stop the answer", True),
    Action(
        "chat.write", "enter,i", "write", "write", "Go to the text field", True, "⏎"
    ),
    Action(
        "chat.again", "r", "regenerate", "again", "Ask the last question again", True
    ),
    Action(
        "chat.edit",
        "E",
        "edit_last",
        "edit",
        "Take the last question back into the text field",
    ),
    Action(
        "chat.reasoning",
        "v",
        "toggle_reasoning",
        "reasoning",
        "Show or fold what the model thought",
    ),
    Action(
        "chat.settings",
        "p",
        "settings",
        "settings",
        "Set the system prompt and how tokens are drawn",
        True,
    ),
    Action(
        "chat.new",
        "n",
        "new_conversation",
        "new",
        "Forget this conversation and begin another",
        True,
    ),
    Action(
        "chat.bring_back",
        "u",
        "bring_back",
        "bring back",
        "Bring back the conversation before it was begun anew, asked again or edited",
    ),
    Action("chat.up", "k", "scroll_lines(-1)", "up", "Scroll up"),
    Action("chat.down", "j", "scroll_lines(1)", "down", "Scroll down"),
    Action("chat.first", "g", "scroll_first", "first", "The oldest turn"),
    Action("chat.last", "G", "scroll_last", "newest", "The newest words"),
    Action("sampling.apply", "f2", "apply", "apply", "Use these settings", True),
    Action("sampling.cancel", "escape", "cancel", "cancel", "Change nothing", True),
)

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
    Action("log.fold", "w", "fold", "wrap", "Wrap long lines, or cut them", True),
    Action(
        "log.save", "S", "screen.save", "save", "Save the whole log to a file", True
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
    Action("log.right", "right", "sideways(1)", "right", "Move sideways"),
    Action(
        "log.unfilter", "escape", "screen.unfilter", "show all", "Remove the filter"
    ),
    Action("filter.clear", "escape", "clear", "clear", "Remove the filter", True),
)

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
    Action("models.unfilter", "escape", "unfilter", "show all", "Remove the filter"),
)

MODEL_PICKER = (
    Action("picker.choose", "enter", "choose", "use", "Use this model", True, "⏎"),
    Action("picker.down", "down", "move(1)", "down", "Next model", True, "↑↓"),
    Action("picker.up", "up", "move(-1)", "up", "Previous model"),
    Action("picker.page_down", "pagedown", "move(8)", "further", "Further down"),
    Action("picker.page_up", "pageup", "move(-8)", "back up", "Further up"),
    Action("picker.cancel", "escape", "cancel", "cancel", "Keep the model", True),
)


NO_COMMANDS = frozenset(
    action.id
    for action in (*APP, *SPLIT, *PEERS, *CHAT, *LOGS, *MODELS, *MODEL_PICKER, *DIALOG)
    if action.id.partition(".")[2]
    in {
        "up",
        "down",
        "left",
        "right",
        "first",
        "last",
        "page_up",
        "page_down",
        "choose",
        "send",
        "newline",
        "apply",
        "erase",
        "cancel",
        "clear",
        "leave",
        "palette",
        "interrupt",
        "back",
        "write",
    }
)
"""Actions that only make sense as keys: the palette does not list them."""


def all_actions() -> tuple[Action, ...]:
    """Every action there is, area by area."""
    return (
        *APP,
        *CLUSTER,
        *SPLIT,
        *PEERS,
        *LIVE,
        *CHAT,
        *LOGS,
        *MODELS,
        *MODEL_PICKER,
        *DIALOG,
    )


def bindings(*areas: str) -> list[BindingType]:
    """The bindings of these areas, for a widget's ``BINDINGS``."""
    return [_binding(action) for action in all_actions() if action.area in areas]


def keymap_problems(keymap: Mapping[str, str]) -> list[str]:
    """What is wrong with a user's keys; Textual would pass over it in silence."""
    known = {action.id for action in all_actions()}
    unknown = sorted(set(keymap) - known)
    problems = [f"The configuration gives keys to no action: {id_}" for id_ in unknown]
    return problems + [
        f"The configuration gives {key} to {action.id}: {other.id} lost it"
        for action in all_actions()
        for key in _split(keymap.get(action.id, ""))
        for other in all_actions()
        if other.area == action.area and other is not action
        if key in _split(keymap.get(other.id, other.keys))
    ]


def _split(keys: str) -> list[str]:
    return [key.strip() for key in keys.split(",") if key.strip()]


def _binding(action: Action) -> Binding:
    return Binding(
        action.keys,
        action.action,
        action.label,
        show=action.show,
        key_display=action.display,
        priority=action.priority,
        tooltip=action.tooltip,
        id=action.id,
    )
