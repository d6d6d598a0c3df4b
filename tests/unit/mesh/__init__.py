"""A machine that is lent: tokens, the owner's limits, and the server."""
