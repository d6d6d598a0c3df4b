"""Actions of the chat: its conversation, its text field, its sampling dialog."""

from __future__ import annotations

from tui.action_table import Action

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
