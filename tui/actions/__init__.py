"""Every action there is, and the keys that run it."""
