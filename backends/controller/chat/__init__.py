"""Conversations: kept on disk, answered in the background, shared by all consoles."""
