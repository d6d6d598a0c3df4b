"""Make bindings from the table of actions, and check the keys of a user."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from textual.binding import Binding, BindingType
from textual.dom import DOMNode

from tui.actions.table import ACTIONS, Action

PLACES = {
    "app": "",
    "cluster": "cluster",
    "split": "cluster.split",
    "peers": "cluster.peers",
    "live": "cluster.live",
    "chat": "cluster.chat",
    "token": "cluster.token",
    "composer": "cluster.chat",
    "log": "logs",
    "layers": "layers",
    "models": "models",
    "traffic": "traffic",
    "lab": "lab",
    "slider": "lab",
}
"""Area of an action to the screen, and the pane, that does it; not of dialogs."""
FUNCTION_KEYS = frozenset(f"f{number}" for number in range(1, 13))


ACTING = frozenset(
    {
        *("cluster.launch", "layers.launch", "cluster.stop", "live.provision"),
        *("peers.add", "peers.provision", "peers.cancel", "peers.copy"),
        *("peers.remove", "peers.data", "models.get", "models.cancel"),
        "models.remove",
        *(
            action.id
            for action in ACTIONS
            if action.area in {"lab", "slider"} and "focus_slider" not in action.action
        ),
    }
)
"""Actions that change the cluster, a machine or a link: not for who only watches."""
IN_DIALOGS = frozenset({"app.help", "app.copy", "app.interrupt"})
SCREEN_ACTIONS = frozenset(
    action.action.removeprefix("app.").partition("(")[0]
    for action in ACTIONS
    if action.area in {"app", "cluster", "layers", "models", "peers", "split"}
    and action.action.startswith("app.")
    and action.id not in IN_DIALOGS
)
"""Methods of the app that do nothing while a dialog is open."""
_MOVES = frozenset(
    {
        *("up", "down", "left", "right", "first", "last", "page_up", "page_down"),
        *("choose", "send", "newline", "erase", "cancel", "clear", "leave"),
        *("palette", "interrupt", "back", "write"),
    }
)
NO_COMMANDS = frozenset(
    action.id
    for action in ACTIONS
    if action.area not in {"cluster", "live", "path"}
    and action.id.partition(".")[2] in _MOVES
)
"""Actions that only make sense as keys: the palette does not list them."""


def action_of(action_id: str) -> Action:
    return _BY_ID[action_id]


def is_action(action_id: str) -> bool:
    return action_id in _BY_ID


_BY_ID = {action.id: action for action in ACTIONS}


def acts(action: object, node: DOMNode) -> bool:
    """True if an action, as this node binds it, changes anything."""
    return any(
        binding.id in ACTING and binding.action == action
        for bound in node._bindings.key_to_bindings.values()
        for binding in bound
    )


def bindings(*areas: str) -> list[BindingType]:
    """The bindings of these areas, for a widget's ``BINDINGS``."""
    return [
        binding
        for action in ACTIONS
        if action.area in areas
        for binding in _bindings(action)
    ]


def keymap_problems(keymap: Mapping[str, str]) -> list[str]:
    """The problems of a user's keys; Textual would ignore them silently."""
    unknown = sorted(keymap.keys() - _BY_ID.keys())
    problems = [f"The configuration gives keys to no action: {id_}" for id_ in unknown]
    return problems + [
        f"The configuration gives {key} to {action.id}: {clash}"
        for action in ACTIONS
        for key in split_keys(keymap.get(action.id, ""))
        for clash in _clashes(action, key, keymap)
    ]


def _clashes(action: Action, key: str, keymap: Mapping[str, str]) -> Iterator[str]:
    """The effect of a key that other actions have in the same place."""
    others = [
        other
        for other in ACTIONS
        if other is not action and key in split_keys(keymap.get(other.id, other.keys))
    ]
    for other in others:
        if other.area == action.area:
            yield f"{other.id} lost it"
        elif _is_around(other.area, action.area):
            yield f"{other.id} lost it there"
    inner = [other.id for other in others if _is_around(action.area, other.area)]
    if inner:
        yield f"where {' or '.join(inner)} is offered it stays that"


def _is_around(outer: str, inner: str) -> bool:
    if not {outer, inner} <= PLACES.keys():
        return False
    around, within = PLACES[outer], PLACES[inner]
    return around != within and (not around or within.startswith(f"{around}."))


def split_keys(keys: str) -> list[str]:
    return [key.strip() for key in keys.split(",") if key.strip()]


def _bindings(action: Action) -> list[BindingType]:
    """One binding; a second, with priority, for function keys beside other keys.

    A text field takes letters and digits, and Textual's some function keys too: those
    that change screens must work from everywhere.
    """
    keys = split_keys(action.keys)
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
