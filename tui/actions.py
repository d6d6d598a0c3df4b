"""Every action of the console in one table: keys, footer, help and palette read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.binding import Binding, BindingType

from tui.action_chat import CHAT
from tui.action_table import (
    ADD_PEER,
    APP,
    CLUSTER,
    DIALOG,
    LIVE,
    PEERS,
    SPLIT,
    Action,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

FUNCTION_KEYS = frozenset(f"f{number}" for number in range(1, 13))


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

MODEL_PICKER = (
    Action("picker.choose", "enter", "choose", "use", "Use this model", True, "⏎"),
    Action("picker.down", "down", "move(1)", "down", "Next model", True, "↑↓"),
    Action("picker.up", "up", "move(-1)", "up", "Previous model"),
    Action("picker.page_down", "pagedown", "move(8)", "further", "Further down"),
    Action("picker.page_up", "pageup", "move(-8)", "back up", "Further up"),
    Action("picker.cancel", "escape", "cancel", "cancel", "Keep the model", True),
)


TRAFFIC = (
    Action(
        "traffic.pause",
        "space",
        "pause",
        "pause",
        "Hold the token waterfall while data keeps coming",
        True,
        "space",
    ),
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


SLIDER = (
    Action("slider.more", "right,l", "step(1)", "step", "One step up", True, "←→"),
    Action("slider.less", "left,h", "step(-1)", "one less", "One step down"),
    Action(
        "slider.much_more", "shift+right,L", "step(4)", "four more", "Four steps up"
    ),
    Action(
        "slider.much_less", "shift+left,H", "step(-4)", "four less", "Four steps down"
    ),
    Action(
        "slider.down",
        "down,j",
        "screen.focus_slider(1)",
        "select",
        "Next slider",
        True,
        "↑↓",
    ),
    Action("slider.up", "up,k", "screen.focus_slider(-1)", "up", "Previous slider"),
    Action("slider.least", "home", "to_end(-1)", "least", "The least there is"),
    Action("slider.most", "end", "to_end(1)", "most", "The most there is"),
    Action("slider.apply", "enter", "apply_typed", "apply", "Take the typed number"),
    Action(
        "slider.erase",
        "backspace",
        "erase_typed",
        "erase",
        "Erase the last digit typed",
    ),
    Action(
        "slider.cancel",
        "escape",
        "cancel",
        "cancel",
        "Cancel the drag or the number being typed",
    ),
)

LAB = (
    Action("lab.as_it_is", "n", "put('none')", "as it is", "The link as it is"),
    Action(
        "lab.ethernet", "g", "put('ethernet')", "Ethernet", "Pretend Ethernet, 1 Gbit/s"
    ),
    Action("lab.wifi", "w", "put('wifi')", "Wi-Fi", "Pretend a good Wi-Fi"),
    Action(
        "lab.far_room", "f", "put('far')", "far room", "Pretend 5 GHz, two walls away"
    ),
    Action("lab.wan", "r", "put('wan')", "WAN", "Pretend the internet, 20 ms away"),
    Action(
        "lab.all", "A", "put_on_all", "on all", "Put this link's lab on all links", True
    ),
    Action("lab.remove", "c", "clear", "clear", "Leave the link as it is", True),
    Action("lab.remove_all", "C", "clear_all", "clear all", "Leave all as they are"),
    Action("lab.undo", "u", "undo", "undo", "Take the last change back", True),
)


NO_COMMANDS = frozenset(
    action.id
    for action in (
        *APP,
        *SPLIT,
        *PEERS,
        *CHAT,
        *LOGS,
        *MODELS,
        *TRAFFIC,
        *SLIDER,
        *LAB,
        *MODEL_PICKER,
        *ADD_PEER,
        *DIALOG,
    )
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
        *TRAFFIC,
        *SLIDER,
        *LAB,
        *MODEL_PICKER,
        *ADD_PEER,
        *DIALOG,
    )


def bindings(*areas: str) -> list[BindingType]:
    """The bindings of these areas, for a widget's ``BINDINGS``."""
    return [
        binding
        for action in all_actions()
        if action.area in areas
        for binding in _bindings(action)
    ]


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


def _bindings(action: Action) -> list[BindingType]:
    """One binding; a second, with priority, for function keys beside other keys.

    A text field takes letters and digits, and Textual's some function keys too: those
    that change screens must work from everywhere.
    """
    keys = _split(action.keys)
    function_keys = [key for key in keys if key in FUNCTION_KEYS]
    others = [key for key in keys if key not in FUNCTION_KEYS]
    if not others or not function_keys:
        return [_binding(action, keys, priority=action.priority)]
    return [
        _binding(action, others, priority=action.priority),
        _binding(action, function_keys, priority=True),
    ]


def _binding(action: Action, keys: list[str], *, priority: bool) -> Binding:
    return Binding(
        ",".join(keys),
        action.action,
        action.label,
        show=action.show,
        key_display=action.display,
        priority=priority,
        tooltip=action.tooltip,
        id=action.id,
    )
