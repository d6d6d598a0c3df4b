"""Actions of the Cluster screen: of the whole, its split, peers and live figures."""

from __future__ import annotations

from tui.actions.action import Action

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
    Action(
        "cluster.settings",
        "p",
        "app.launch_settings",
        "settings",
        "Set context, KV cache, slots, threads and further arguments of a launch",
        True,
    ),
    Action("cluster.model", "m", "app.pick_model", "model", "Pick another model", True),
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
        "right,plus",
        "move(1)",
        "move",
        "Move the boundary right: one layer more for the device on its left",
        True,
        "←→",
    ),
    Action(
        "split.less", "left,minus", "move(-1)", "one less", "Move the boundary left"
    ),
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
        "split.set",
        "equals_sign,enter",
        "number",
        "set",
        "Type how many layers the device left of the boundary gets; again applies it",
        True,
        "=",
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
    Action(
        "peers.filter",
        "slash",
        "filter",
        "filter",
        "Show only peers with these words in name, role, state or way",
    ),
    Action("peers.unfilter", "escape", "unfilter", "show all", "Remove the filter"),
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
        "app.undo",
        "undo",
        "Take the last change back: of head, workers or layers",
    ),
    Action("peers.probe", "r", "ask('probe')", "look again", "Look at the peer now"),
    Action(
        "peers.copy", "c", "ask('copy')", "copy model", "Copy the model to the peer"
    ),
    Action(
        "peers.data",
        "d",
        "ask('data')",
        "data",
        "Choose how data go to the peer: directly, or through SSH",
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


LAUNCHING = (
    Action("launching.apply", "f2,enter", "apply", "apply", "Use these settings", True),
    # With priority: what is typed next, however fast, belongs to the next field.
    Action(
        "launching.down",
        "down,tab",
        "app.focus_next",
        "next",
        "Next field",
        priority=True,
    ),
    Action(
        "launching.up",
        "up,shift+tab",
        "app.focus_previous",
        "previous",
        "Previous field",
        priority=True,
    ),
    Action("launching.cancel", "escape", "cancel", "cancel", "Change nothing", True),
)


LIVE = (
    Action(
        "live.log",
        "O",
        "screen.open_log",
        "open log",
        "Read the log of the process that failed, or of llama-server",
        True,
    ),
    Action(
        "live.provision",
        "P",
        "screen.provision",
        "provision",
        "Install our engine on the peer whose own does not fit",
        True,
    ),
)
