"""Actions of every screen, and of the dialogs."""

from __future__ import annotations

from tui.actions.action import Action

APP = (
    Action(
        "app.cluster",
        "1,f1",
        "app.show_mode('cluster')",
        "Cluster",
        "Peers, split, live figures and chat",
    ),
    Action(
        "app.traffic",
        "3,f3",
        "app.show_mode('traffic')",
        "Traffic",
        "Where each token's time goes, and every command on every link",
    ),
    Action(
        "app.lab",
        "4,f4",
        "app.show_mode('lab')",
        "Lab",
        "Make links slower, and see what becomes of the speed",
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
        "app.find",
        "command",
        "Find any action, peer, model, log, theme or setting by name, and go there",
        True,
        ":",
    ),
    Action("app.copy", "y", "app.copy", "copy", "Copy what the focused pane offers"),
    Action(
        "app.copy_command",
        "Y",
        "app.copy_command",
        "copy command",
        "Copy the command line of the llama-server that runs",
    ),
    Action(
        "app.screenshot",
        "f12",
        "app.screenshot",
        "screenshot",
        "Save a picture (SVG) of the screen",
    ),
    Action(
        "app.zoom",
        "z",
        "screen.zoom",
        "zoom",
        "Give the focused pane the whole screen, and back",
        True,
    ),
    Action(
        "app.freeze",
        "space",
        "app.freeze",
        "freeze",
        "Hold all panes as they are while data keeps coming, or go on",
    ),
    Action(
        "app.settings",
        "comma",
        "app.settings",
        "settings",
        "Show and change every setting of config.toml",
        display=",",
    ),
    Action("app.theme", "t", "app.theme", "theme", "Pick a theme with a live preview"),
    Action(
        "app.events",
        "e",
        "app.events",
        "events",
        "What happened in the last days, with its evidence, and what toasts have said",
    ),
    Action(
        "app.clusters",
        "N",
        "app.clusters",
        "clusters",
        "Go to another cluster of this machine",
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


DIALOGS = (
    Action(
        "dialogs.help",
        "question_mark,f1",
        "app.help",
        "help",
        "Help and keys of this dialog, and back",
    ),
)


DIALOG = (
    Action("choice.choose", "enter", "choose", "choose", "Give the selected answer"),
    Action("choice.down", "down,j,tab", "select(1)", "down", "Next answer"),
    Action("choice.up", "up,k,shift+tab", "select(-1)", "up", "Previous answer"),
    Action("dialog.cancel", "escape", "cancel", "cancel", "Close, changing nothing"),
)


SETTINGS = (
    Action("settings.down", "down", "move(1)", "select", "Next setting", True, "↑↓"),
    Action("settings.up", "up", "move(-1)", "up", "Previous setting"),
    Action("settings.page_down", "pagedown", "move(8)", "further", "Further down"),
    Action("settings.page_up", "pageup", "move(-8)", "back up", "Further up"),
    Action(
        "settings.cancel", "escape", "cancel", "back", "Leave the value, then the list"
    ),
)


FINDER = (
    Action("finder.choose", "enter", "choose", "go", "Go there, or do it"),
    Action("finder.down", "down", "move(1)", "down", "Next match"),
    Action("finder.up", "up", "move(-1)", "up", "Previous match"),
    Action("finder.page_down", "pagedown", "move(8)", "further", "Further down"),
    Action("finder.page_up", "pageup", "move(-8)", "back up", "Further up"),
    Action("finder.cancel", "escape", "cancel", "cancel", "Go nowhere"),
)


EVENTS = (
    Action("events.open", "enter", "open", "more", "Show the evidence", True, "⏎"),
    Action("events.filter", "slash", "screen.filter", "filter", "Filter", True, "/"),
    Action("events.down", "down,j", "select(1)", "down", "Next event"),
    Action("events.up", "up,k", "select(-1)", "up", "Previous event"),
    Action("events.page_down", "pagedown", "select(12)", "further", "Further down"),
    Action("events.page_up", "pageup", "select(-12)", "back up", "Further up"),
    Action("events.first", "home,g", "select(-10000)", "first", "The oldest event"),
    Action("events.last", "end,G", "select(10000)", "last", "The newest event"),
    Action("evidence.log", "o", "open_log", "open log", "Go to the process's log"),
)


READING = (
    Action("reading.close", "q,enter", "cancel", "close", "Close"),
    Action("reading.copy", "y", "app.copy", "copy", "Copy all of it"),
)


OPTION = (
    Action("option.left", "left,h", "pick(-1)", "choose", "Choose the one before"),
    Action("option.right", "right,l", "pick(1)", "choose", "Choose the next one"),
)


ADD_PEER = (
    Action("adding.add", "enter", "add", "add", "Make the machine known"),
    Action("adding.down", "down", "pick(1)", "pick", "Next name", True, "↑↓"),
    Action("adding.up", "up", "pick(-1)", "up", "Previous name"),
    Action("adding.cancel", "escape", "cancel", "close", "Close", True),
    Action("tick.switch", "space", "switch", "switch", "Switch it on or off", True),
)


MODEL_PICKER = (
    Action("picker.choose", "enter", "choose", "use", "Use this model", True, "⏎"),
    Action("picker.down", "down", "move(1)", "down", "Next model", True, "↑↓"),
    Action("picker.up", "up", "move(-1)", "up", "Previous model"),
    Action("picker.page_down", "pagedown", "move(8)", "further", "Further down"),
    Action("picker.page_up", "pageup", "move(-8)", "back up", "Further up"),
    Action("picker.cancel", "escape", "cancel", "cancel", "Keep the model", True),
)
