"""Conversations: kept on disk, answered whoever looks, shared by all consoles."""
