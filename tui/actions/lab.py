"""Actions of the Lab: its sliders and its links."""

from __future__ import annotations

from tui.actions.action import Action

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
    Action(
        "slider.set",
        "equals_sign,enter",
        "number",
        "set",
        "Type a value; again takes it",
        True,
        "=",
    ),
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
