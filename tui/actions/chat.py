"""Actions of the chat: its conversation, its text field, its sampling dialog."""

from __future__ import annotations

from tui.actions.action import Action

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
        "Go from the text field to the conversation; choose no question",
    ),
    Action("chat.stop", "escape", "stop_answer", "stop", "Stop the answer", True),
    Action(
        "chat.write", "enter,i", "write", "write", "Go to the text field", True, "⏎"
    ),
    Action(
        "chat.again",
        "r",
        "want('again')",
        "again",
        "Ask the chosen question again, else the last; what there is stays",
        True,
    ),
    Action(
        "chat.earlier_question",
        "left_curly_bracket,shift+up",
        "choose(-1)",
        "questions",
        "Choose the question before, to ask it again or edit it",
        True,
        "{ }",
    ),
    Action(
        "chat.later_question",
        "right_curly_bracket,shift+down",
        "choose(1)",
        "next question",
        "Choose the next question; after the last, none",
    ),
    Action(
        "chat.earlier_answer",
        "left_square_bracket",
        "variant(-1)",
        "answers",
        "The answer before to the chosen question, with what followed it",
        True,
        "[ ]",
    ),
    Action(
        "chat.later_answer",
        "right_square_bracket",
        "variant(1)",
        "next answer",
        "The next answer to the chosen question, with what followed it",
    ),
    Action(
        "chat.edit",
        "E",
        "edit",
        "edit",
        "Ask the chosen question, else the last, again in other words",
        True,
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
        "want('settings')",
        "settings",
        "Set the system prompt and how tokens are drawn",
        True,
    ),
    Action(
        "chat.new",
        "n",
        "want('new')",
        "new",
        "Begin another chat; this one stays",
        True,
    ),
    Action(
        "chat.open", "o", "want('open')", "chats", "Go on with an earlier chat", True
    ),
    Action("chat.rename", "R", "want('rename')", "name", "Give the chat a name"),
    Action(
        "chat.export",
        "x",
        "want('export')",
        "export",
        "Write the chat to a file, as Markdown or JSON",
    ),
    Action(
        "chat.delete", "delete", "want('delete')", "delete", "Delete the chat (asks)"
    ),
    Action(
        "chat.undo",
        "u",
        "want('undo')",
        "undo",
        "Take back asking again, another answer, new, chats or delete",
    ),
    Action("chat.up", "k", "scroll_lines(-1)", "up", "Scroll up"),
    Action("chat.down", "j", "scroll_lines(1)", "down", "Scroll down"),
    Action("chat.first", "g", "scroll_first", "first", "The oldest turn"),
    Action("chat.last", "G", "scroll_last", "newest", "The newest words"),
    Action("sampling.apply", "f2", "apply", "apply", "Use these settings", True),
    Action("sampling.cancel", "escape", "cancel", "cancel", "Change nothing", True),
    Action("chats.choose", "enter", "choose", "open", "Open this chat", True, "⏎"),
    Action("chats.down", "down", "move(1)", "down", "Next chat", True, "↑↓"),
    Action("chats.up", "up", "move(-1)", "up", "Previous chat"),
    Action("chats.page_down", "pagedown", "move(8)", "further", "Further down"),
    Action("chats.page_up", "pageup", "move(-8)", "back up", "Further up"),
    Action("chats.cancel", "escape", "cancel", "cancel", "Keep this chat", True),
)
