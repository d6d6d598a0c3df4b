"""Actions of the frame: of every screen, and of the Cluster screen's own panes."""

from __future__ import annotations

from typing import NamedTuple


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
    Action("peers.add", "a", "ask('add')", "add", "Make another machine known", True),
    Action(
        "peers.open",
        "enter",
        "ask('open')",
        "open",
        "Answer what the peer asks, else show all that is known of it",
        True,
        "⏎",
    ),
    Action(
        "peers.use",
        "w",
        "ask('use')",
        "worker",
        "Let the peer work in the split, or leave it out",
        True,
    ),
    Action(
        "peers.lead",
        "h",
        "ask('lead')",
        "head",
        "Let the peer run llama-server, or this machine again",
    ),
    Action(
        "peers.provision",
        "p",
        "ask('provision')",
        "provision",
        "Install the engine and our helper on the peer",
        True,
    ),
    Action(
        "peers.cancel",
        "x",
        "ask('cancel')",
        "end work",
        "End what goes on at the peer; the next time it goes on from there",
        True,
    ),
    Action(
        "peers.undo",
        "u",
        "app.undo_plan",
        "undo",
        "Take the last change of head or workers back",
    ),
    Action("peers.probe", "r", "ask('probe')", "look again", "Look at the peer now"),
    Action(
        "peers.copy", "c", "ask('copy')", "copy model", "Copy the model to the peer"
    ),
    Action("peers.log", "o", "ask('log')", "open log", "Read the log of its worker"),
    Action(
        "peers.remove",
        "delete,backspace",
        "ask('remove')",
        "remove",
        "Forget the peer (asks); what is installed there stays",
    ),
)

ADD_PEER = (
    Action("adding.down", "down", "pick(1)", "pick", "Next name", True, "↑↓"),
    Action("adding.up", "up", "pick(-1)", "up", "Previous name"),
    Action("adding.cancel", "escape", "cancel", "close", "Close", True),
    Action("tick.switch", "space", "switch", "switch", "Switch it on or off", True),
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
    Action(
        "live.provision",
        "p",
        "provision",
        "provision",
        "Install our engine on the peer whose own does not fit",
        True,
    ),
)

DIALOG = (
    Action("choice.choose", "enter", "choose", "choose", "Give the selected answer"),
    Action("choice.down", "down,j,tab", "select(1)", "down", "Next answer"),
    Action("choice.up", "up,k,shift+tab", "select(-1)", "up", "Previous answer"),
    Action("dialog.cancel", "escape", "cancel", "cancel", "Close, changing nothing"),
)
