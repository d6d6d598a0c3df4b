"""The frame of everything: app, themes, status line, keys, messages."""
